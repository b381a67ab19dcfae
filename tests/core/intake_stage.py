"""An `Intake` in virtual numbers: single calls by hand, or a crowd of callers before an upstream of `weathers.kinds`."""

import heapq
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from typing import Any, Final, NamedTuple

from weathers.kinds import OK, THROTTLED, Calm, Verdict

from headgate.core.intake import CHANCE, FIRST_SHARE, Closed, Intake, Limited, News
from headgate.core.limit import Limit, Measure
from headgate.core.start import Outcome, Start

TENANT: Final = "local"
REFUSED_AFTER_S: Final = 0.02
RUN: Final = math.ceil(math.log(CHANCE) / math.log(FIRST_SHARE))
"""So many refusals in a row close an upstream of which nothing is known yet."""
OUTCOMES: Final[Mapping[int, Outcome]] = {OK: Outcome.ANSWERED, THROTTLED: Outcome.THROTTLED}


def own(slots: int, **rules: Any) -> Intake:
    """The calls of one tenant, which close and limit the upstream for that tenant."""
    return Intake(slots, tenant=TENANT, **rules)


# ---- By hand --------------------------------------------------------------------------------------------------


def started(intake: Intake, at: float, *, tokens: float = 0.0) -> Start:
    return intake.start(at, tokens, TENANT)


def call(
    intake: Intake, at: float, outcome: Outcome, *, took_s: float = REFUSED_AFTER_S, hint_s: float = 0.0
) -> Start:
    """One call from its start to its end, with no other between them."""
    start = started(intake, at)
    intake.end(round(at + took_s, 9), start, outcome, hint_s)
    return start


def calls(intake: Intake, outcome: Outcome, number: int, *, at: float = 0.0, hint_s: float = 0.0) -> None:
    """So many started at once; they end at once, too."""
    for start in [started(intake, at) for _ in range(number)]:
        intake.end(at + REFUSED_AFTER_S, start, outcome, hint_s)


def closed(*, hint_s: float = 0.0, outcome: Outcome = Outcome.THROTTLED, slots: int = 8) -> Intake:
    """An upstream that closed at 0."""
    intake = own(slots)
    close(intake, outcome, at=0.0, hint_s=hint_s)
    return intake


def close(intake: Intake, outcome: Outcome, *, at: float, hint_s: float = 0.0) -> None:
    """One call after the other is refused until it closes."""
    for _ in range(100):
        if not intake.closed:
            call(intake, at - REFUSED_AFTER_S, outcome, hint_s=hint_s)
    assert intake.closed


# ---- A crowd --------------------------------------------------------------------------------------------------


class Learned(NamedTuple):
    """A limit as it was when it changed."""

    at: float
    measure: Measure | None
    """None: there is no limit any more."""
    most: float = math.inf
    proven: bool = False


@dataclass
class Story:
    """What a crowd of callers went through."""

    news: list[tuple[float, News]] = field(default_factory=list)
    limits: list[Learned] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)

    def closed_at(self, after_s: float = 0.0) -> list[float]:
        return [at for at, news in self.news if isinstance(news, Closed) and at >= after_s]

    def limited_s(self, until_s: float) -> float:
        """How long there was a limit."""
        changes = [*self.limits, Learned(until_s, None)]
        return sum(end.at - begin.at for begin, end in pairwise(changes) if begin.measure is not None)

    def answered(self, since_s: float, until_s: float) -> float:
        """Answers a second in that time."""
        return sum(since_s <= at < until_s for at in self.answered_at) / (until_s - since_s)


@dataclass(order=True)
class _Call:
    since: float
    number: int
    size: float = field(compare=False)
    tries: int = field(compare=False, default=0)


class _Crowd:
    """Callers come, wait their turn, are answered or refused and come back, oldest first, as at a gate."""

    def __init__(self, intake: Intake, upstream: Calm, *, slots: int, tokens: float, seed: int) -> None:
        self.story = Story()
        self.intake = intake
        self.upstream = upstream
        self.slots = slots
        self.tokens = tokens
        self._chance = random.Random(f"{seed} callers")
        self._numbers = count()
        self._line: list[_Call] = []
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._looks_at = math.inf

    def run(self, arrivals: Iterable[tuple[float, float]], until_s: float) -> None:
        for at, size in arrivals:
            self._put(at, partial(self._comes, _Call(at, next(self._numbers), size)))
        while self._events and self._events[0][0] <= until_s:
            now, _, happens = heapq.heappop(self._events)
            happens(now)
            self._grant(now)
            self._note(now)

    def _put(self, at: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), happens))

    def _comes(self, call: _Call, now: float) -> None:
        heapq.heappush(self._line, call)

    def _look(self, now: float) -> None:
        self._looks_at = math.inf

    def _grant(self, now: float) -> None:
        while self._line and self.intake.in_flight < self.slots:
            tokens = self._line[0].size * self.tokens
            at = self.intake.opens_at(now, tokens)
            if at > now:
                if at < self._looks_at:
                    self._looks_at = at
                    self._put(at, self._look)
                return
            call = heapq.heappop(self._line)
            start = started(self.intake, now, tokens=tokens)
            verdict = self.upstream.arrive(now, call.size)
            self._put(now + verdict.after_s, partial(self._ends, call, start, verdict))

    def _ends(self, call: _Call, start: Start, verdict: Verdict, now: float) -> None:
        self.upstream.leave(verdict)
        hint_s = float(verdict.headers.get("retry-after", 0.0))
        self.intake.end(now, start, OUTCOMES.get(verdict.status, Outcome.FAILED), hint_s)
        if verdict.status == OK:
            self.story.answered_at.append(now)
            return
        call.tries += 1
        backoff_s = min(8.0, 0.25 * 2**call.tries) * self._chance.uniform(0.75, 1)
        self._put(now + max(hint_s, backoff_s), partial(self._comes, call))

    def _note(self, now: float) -> None:
        for news in self.intake.news:
            self.story.news.append((now, news))
            if isinstance(news, Limited):
                self.story.limits.append(_learned(now, news.limit))
        self.intake.news = []


def _learned(now: float, limit: Limit | None) -> Learned:
    return Learned(now, None) if limit is None else Learned(now, limit.measure, limit.most, limit.proven)


def play(
    intake: Intake,
    upstream: Calm,
    arrivals: Iterable[tuple[float, float]],
    *,
    slots: int = 64,
    tokens_per_size: float = 0.0,
    until_s: float = math.inf,
    seed: int = 0,
) -> Story:
    """`arrivals` are times and sizes."""
    crowd = _Crowd(intake, upstream, slots=slots, tokens=tokens_per_size, seed=seed)
    crowd.run(arrivals, until_s)
    return crowd.story


def steady(rate: float, for_s: float, *, since: float = 0.0, seed: int = 0) -> list[tuple[float, float]]:
    """So many callers a second, as chance sends them."""
    chance = random.Random(f"{seed} arrivals")
    arrivals, at = [], since
    while (at := at + chance.expovariate(rate)) < since + for_s:
        arrivals.append((at, 1.0))
    return arrivals
