"""How much an upstream takes, learned where refusals are seen to depend on our own load.

A refusal alone says nothing about our load. What does: refused calls were started at a higher load than those that passed;
then the load between them is a limit. If all were started at the same load, we slow down and look. Each limit is on trial
until it is seen to help.
"""

import enum
import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.core.start import Outcome, Start

SPAN_S: Final = 1.03
"""Rates are counted over a second, and a little more for jitter on the way. Over much longer windows everything that
grows with time would look like a load that is refused."""
LEAST_GAP: Final = 0.5
CRITICAL: Final = 1.95
FEWEST: Final = 8
"""Fewer refused or passed starts prove nothing."""
LEAST: Final = 2.0
"""The load at a lone start is 1, and that must pass."""
TRIAL_STARTS: Final = 40
SURE: Final = 0.02
"""It is proven earlier if so long a run without a refusal had only this chance."""
BETTER: Final = 0.75
"""A lower limit that left no more than this share of the refusals has shown that the rest is chance."""
FIRST_RAISE_S: Final = 3.0
NEXT_RAISE_S: Final = 1.5
LONGEST_RAISE_S: Final = 8.0
"""Between two raises: at first, after one that went well, and after several that did not."""
RAISE_STARTS: Final = 40
"""After raises that failed, the next waits for up to so many starts, or the longest time if that is longer: each costs
a refusal or two."""
RAISE: Final = 0.05
LEAST_USUAL: Final = 0.02
ENOUGH: Final = 50
"""Starts that are looked at before a limit is tried without a threshold."""
GUESS_SHARE: Final = 0.45
"""So many of them must have been refused for that."""
GUESS_WAIT_S: Final = (10.0, 80.0)
"""Before the next such trial; each that fails doubles it."""
HELD_SHARE: Final = 0.07
"""So many more refusals than a limit left put it to the test again."""
SLOWER: Final = 0.8
SPACING: Final = 0.5
"""Starts under a limit are at least this share of the even gap apart."""
LOOKS_APART_S: Final = 0.05


MOST_OF_ONE: Final = 0.8
"""What is learned of all tenants' calls rests for at most this share on one tenant's."""


class Measure(enum.IntEnum):
    """What a limit counts; the number is the place in `Start.loads`.

    Of two that separate equally well the first is meant: quotas are written in starts, and where calls have one size,
    tokens are starts by another name.
    """

    STARTS = 0
    IN_FLIGHT = 1
    TOKENS = 2


class Window:
    """The starts of the last second: all of them, and those that were not refused."""

    __slots__ = ("_starts", "passed", "passed_tokens", "tokens")

    def __init__(self) -> None:
        self._starts: deque[Start] = deque()
        self.passed = 0
        self.passed_tokens = 0.0
        self.tokens = 0.0

    def __len__(self) -> int:
        return len(self._starts)

    def trim(self, now: float) -> None:
        starts, oldest_at = self._starts, now - SPAN_S
        while starts and starts[0].at <= oldest_at:
            start = starts.popleft()
            self.tokens -= start.tokens
            if not start.refused:
                self.passed -= 1
                self.passed_tokens -= start.tokens
        if not starts:
            self.tokens = self.passed_tokens = 0.0

    def add(self, start: Start) -> None:
        self._starts.append(start)
        self.passed += 1
        self.passed_tokens += start.tokens
        self.tokens += start.tokens

    def refuse(self, start: Start) -> None:
        """`start`, not marked as refused yet, was refused; it may have left the window."""
        if self._starts and start.number >= self._starts[0].number:
            self.passed -= 1
            self.passed_tokens -= start.tokens

    def opens_at(self) -> float:
        return self._starts[0].at + SPAN_S + 1e-6


@dataclass(slots=True, eq=False)
class Limit:
    """A load that is not exceeded.

    It is on trial until it is seen to halve the share of refusals; then it is raised while that brings no more of them.
    """

    since: float
    measure: Measure
    most: float
    before: float
    """The share of refusals when it was set."""
    former: "Limit | None" = None
    """The proven limit that it is to better; that one comes back if it does not."""
    guessed: bool = False
    """Set without a threshold, to see whether slowing down helps."""
    proven: bool = False
    settled: bool = False
    """A raise was undone: what the upstream takes is known, not only what it takes at least."""
    residue: float = 0.0
    """The share of refusals that it left when it was proven: chance, not load."""
    raise_at: float = math.inf
    _base: float = 0.0
    _raised_at: float = math.inf
    _undone_at: float = math.inf
    """When the last raise began, and when it was undone."""
    _wait_s: float = FIRST_RAISE_S
    _usual: float = 0.0
    _starts: int = 0
    _refused: int = 0
    _steps: int = 0

    def __post_init__(self) -> None:
        self._base = self.most = max(LEAST, self.most)

    def tried(self, starts: int, refused: int) -> bool:
        """Whether its trial is over: enough was seen, or all speaks for it, or it cannot succeed any more."""
        all_speaks_for_it = not refused and starts >= FEWEST and (1 - self.before / 2) ** starts < SURE
        return all_speaks_for_it or starts >= TRIAL_STARTS or refused > self.before / 2 * TRIAL_STARTS

    def proved(self, now: float, residue: float) -> None:
        self.proven, self.residue, self.former = True, residue, None
        self.raise_at = now + self._wait_s

    def lift(self, now: float, usual: float) -> None:
        """Raise it by a little, then by more while that goes well. `usual` is the share of refusals under it."""
        if self._raised_at < self._undone_at == math.inf:
            self._steps, self._wait_s = self._steps + 1, NEXT_RAISE_S
        self._base, self.raise_at = self.most, now + self._wait_s
        self._raised_at, self._undone_at = now, math.inf
        # After one that failed, the next is undone by its first refusal that chance does not explain.
        least = 0.0 if self.settled else LEAST_USUAL
        self._usual, self._starts, self._refused = min(usual, max(self.residue, least)), 0, 0
        self.most += max(1.0, RAISE * self.most) * 2**self._steps

    def saw(self, now: float, start: Start) -> bool:
        """How a start went. More refusals than usual undo the last raise (True), and the next one waits longer."""
        if start.at < self._raised_at or self._undone_at < math.inf:
            return False
        self._starts += 1
        self._refused += start.refused
        if self._refused < (1 if self.settled else 2) + 2 * self._usual * self._starts:
            return False
        longest_s = LONGEST_RAISE_S
        if self.measure is Measure.STARTS:
            longest_s = max(longest_s, RAISE_STARTS / self.most)
        self._wait_s = min(longest_s, 2 * self._wait_s)
        self.most, self._undone_at, self._steps, self.settled = self._base, now, 0, True
        self.raise_at = now + self._wait_s
        return True

    def explains(self, start: Start) -> bool:
        """It was refused because the limit was raised, so it says nothing about a closed upstream."""
        return self._raised_at <= start.at <= self._undone_at

    @property
    def allows(self) -> float:
        """What it lets through: calls in flight, or starts or tokens a second. The load at `most` is the first refused."""
        if self.measure is Measure.TOKENS:
            return self.most / SPAN_S
        calls = math.ceil(self.most) - 1
        return calls if self.measure is Measure.IN_FLIGHT else calls / SPAN_S

    @property
    def words(self) -> str:
        allows = f"{self.allows:,.0f}" if self.allows >= 100 else f"{self.allows:.3g}"
        why = ": refusals began above it" if self.proven else ", on trial: kept if it halves the refusals"
        return f"limited to {allows} {_UNITS[self.measure]}{why}"


_UNITS: Final = {
    Measure.IN_FLIGHT: "calls in flight",
    Measure.STARTS: "starts/s",
    Measure.TOKENS: "tokens/s",
}


class Learning:
    """The limit of one upstream, if there is one. The log and the window of its starts belong to the intake."""

    def __init__(
        self,
        log: deque[Start],
        window: Window,
        changed: Callable[[Limit | None], None],
        *,
        for_all: bool = False,
    ) -> None:
        self._for_all = for_all
        """A limit for all tenants has to be seen by two."""
        self.limit: Limit | None = None
        self._log = log
        self._window = window
        self._changed = changed
        self._guess_at = -math.inf
        self._guess_wait_s = GUESS_WAIT_S[0]
        self._looked_at = -math.inf

    def starts_at(self, limit: Limit, now: float, tokens: float, in_flight: int, last_at: float) -> float:
        """When the limit lets a call of this size start. Time may raise it here."""
        if limit.measure is Measure.IN_FLIGHT:
            load, spaced_at = in_flight + 1.0, now
        else:
            window = self._window
            window.trim(now)
            # A call larger than the limit must pass, too.
            own = min(tokens, limit.most / 2) if limit.measure is Measure.TOKENS else 1.0
            load = own + (window.tokens if limit.measure is Measure.TOKENS else len(window))
            spaced_at = max(now, last_at + SPACING * SPAN_S * own / limit.most)
        if load >= limit.most and now >= limit.raise_at:
            under = [start.outcome is Outcome.THROTTLED for start in self._log if start.at >= limit.since]
            limit.lift(now, sum(under) / max(1, len(under)))
            self._changed(limit)
        if load < limit.most:
            return spaced_at
        if limit.measure is Measure.IN_FLIGHT:
            return limit.raise_at
        return min(limit.raise_at, self._window.opens_at())

    def settled(self, measure: Measure) -> float:
        """How much it takes in this measure; infinity where that is not known."""
        limit = self.limit
        return limit.allows if limit is not None and limit.settled and limit.measure is measure else math.inf

    # ---- Learning -----------------------------------------------------------------------------------

    def ended(self, now: float, start: Start, grace_s: float) -> bool:
        """A call was answered or throttled. True: a limit was dropped that held others back."""
        limit = self.limit
        if limit is not None and not start.probe and limit.saw(now, start):
            self._changed(limit)
        if limit is not None and not limit.proven:
            return self._try(limit, now, self._recent(limit.since, now, grace_s))
        if start.refused and now >= self._looked_at + LOOKS_APART_S:
            self._looked_at = now
            self._look(now, self._recent(-math.inf if limit is None else limit.since, now, grace_s))
        return False

    def _recent(self, since: float, now: float, grace_s: float) -> list[Start]:
        """The starts that are old enough for all their refusals to be back."""
        return [
            start
            for start in self._log
            if since <= start.at <= now - grace_s and start.outcome in _COMPARED and not start.probe
        ]

    def _look(self, now: float, recent: list[Start]) -> None:
        """Does the share of refusals depend on the load? Compare; if that says nothing, slow down and look."""
        limit = self.limit
        if self._for_all and not _by_two(start for start in recent if start.refused):
            return
        bad = [start.loads for start in recent if start.refused]
        good = [start.loads for start in recent if not start.refused]
        least = HELD_SHARE + (0.0 if limit is None else limit.residue)
        if len(bad) < FEWEST or (limit is not None and len(bad) < least * max(len(recent), ENOUGH)):
            return
        share = len(bad) / len(recent)
        found = [
            (*at, measure)
            for measure in Measure
            if (at := threshold([loads[measure] for loads in bad], [loads[measure] for loads in good]))
        ]
        if found:
            _, most, measure = max(found, key=lambda found: found[0])
            self._set(Limit(now, measure, most, share, limit))
        elif len(recent) < ENOUGH:
            return
        elif limit is not None:
            self._set(Limit(now, limit.measure, SLOWER * limit.most, share, limit))
        elif share >= GUESS_SHARE and now >= self._guess_at:
            # All were started at the same load: what passed just before may be the limit.
            self._set(Limit(now, Measure.STARTS, self._passed_before(recent[-1]), share, guessed=True))

    def closed_again(self, now: float, start: Start) -> None:
        """It closed soon after it had opened, so it is no closed door: what passed just before may be its limit."""
        passed, limit = self._passed_before(start), self.limit
        if passed >= FEWEST and (limit is None or passed <= SLOWER * limit.most):
            share = sum(other.refused for other in self._log) / len(self._log)
            self._set(Limit(now, Measure.STARTS, passed, share, limit, guessed=True))

    def _passed_before(self, start: Start) -> int:
        """How many starts passed within the second before this one."""
        return sum(
            not other.refused and other.number < start.number and other.at > start.at - SPAN_S
            for other in self._log
        )

    def _try(self, limit: Limit, now: float, recent: list[Start]) -> bool:
        refused = sum(start.refused for start in recent)
        if not limit.tried(len(recent), refused):
            return False
        share, former = refused / len(recent), limit.former
        if share <= limit.before / 2:
            self._guess_wait_s = GUESS_WAIT_S[0]
            limit.proved(now, 0.0 if former is None else former.residue)
            self._changed(limit)
            return False
        if former is not None and share < BETTER * former.before:
            # A slower rate did not help: what is left of the refusals is chance.
            former.since = now
            former.proved(now, min(share, limit.before))
            self._set(former)
            return False
        self._set(None)
        if limit.guessed:
            self._guess_at = now + self._guess_wait_s
            self._guess_wait_s = min(GUESS_WAIT_S[1], 2 * self._guess_wait_s)
        return True

    def _set(self, limit: Limit | None) -> None:
        self.limit = limit
        self._changed(limit)


def _by_two(refused: Iterable[Start]) -> bool:
    """More than one tenant's calls, and none of them nearly all."""
    counts = Counter(start.tenant for start in refused)
    return len(counts) > 1 and max(counts.values()) <= MOST_OF_ONE * counts.total()


_COMPARED: Final = frozenset({None, Outcome.ANSWERED, Outcome.THROTTLED})


def threshold(refused: Sequence[float], passed: Sequence[float]) -> tuple[float, float] | None:
    """(gap, load): the load that best separates refused from passed starts; None where chance could explain it.

    It is where the distributions of both lie farthest apart: Kolmogorov and Smirnov's measure.
    """
    few, many = len(refused), len(passed)
    if few < FEWEST or many < FEWEST:
        return None
    below, above = sorted(refused), sorted(passed)
    gap, load = max(
        (bisect_left(above, load) / many - bisect_left(below, load) / few, load) for load in set(below)
    )
    least = max(LEAST_GAP, CRITICAL * math.sqrt((few + many) / (few * many)))
    return (gap, load) if gap >= least else None
