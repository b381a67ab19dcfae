"""How an upstream behaves: values in, a verdict out. The time is an argument; chance has a seed.

The stub's process and the virtual upstream both run this code, so a weather is the same in both.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

OK: Final = 200
THROTTLED: Final = 429
FAILED: Final = 500
NO_HEADERS: Final[Mapping[str, str]] = {}
WAY_THERE_S: Final = 0.02
"""The longest way to an upstream: calls do not arrive exactly as they were sent, nor in that order."""


class Verdict(NamedTuple):
    """What becomes of one call."""

    status: int
    after_s: float
    """From the call's arrival to the end of the answer or refusal."""
    headers: Mapping[str, str] = NO_HEADERS
    cut: bool = False
    """The connection breaks in the middle of the answer."""


@dataclass(kw_only=True)
class Calm:
    """Answers everything, but for shares of calls that chance chooses. Other kinds add to that."""

    seed: int = 0
    answer_s: float = 0.415
    """The median; answers are spread log-normally around it."""
    spread: float = 0.4
    refusal_s: float = 0.02
    hint_s: float | None = 1.0
    """The `Retry-After` of a 429; None sends none."""
    throttled: float = 0.0
    failing: float = 0.0
    cut: float = 0.0

    in_flight: int = field(default=0, init=False)
    """Accepted calls."""
    max_in_flight: int = field(default=0, init=False)
    log: list[tuple[float, int]] = field(default_factory=list, init=False)
    """(time, status) of every call that arrived; 0 is an answer that was cut."""

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed} verdicts")
        self._services = random.Random(f"{self.seed} services")

    def arrive(self, now: float, size: float) -> Verdict:
        """Judge and count a call; `leave` must follow when it is over."""
        verdict = self.judge(now, size)
        self.log.append((now, 0 if verdict.cut else verdict.status))
        if verdict.status == OK:
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
        return verdict

    def leave(self, verdict: Verdict) -> None:
        self.in_flight -= verdict.status == OK

    def judge(self, now: float, size: float) -> Verdict:
        # One draw a call, whatever becomes of it: the same seed hits the same calls under every client.
        draw = self._chance.random()
        if draw < self.throttled:
            return self.throttle(self.hint_s)
        if draw < self.throttled + self.failing:
            return Verdict(FAILED, self.refusal_s)
        refusal = self.refusal(now, size)
        if refusal is not None:
            return refusal
        took_s = self.service_s(now)
        if draw >= 1 - self.cut:
            return Verdict(OK, took_s / 2, cut=True)
        return Verdict(OK, took_s, self.answer_headers(now))

    def refusal(self, now: float, size: float) -> Verdict | None:
        """Why this call is not answered, besides chance."""

    def service_s(self, now: float) -> float:
        return self.answer_s * self._services.lognormvariate(0, self.spread)

    def answer_headers(self, now: float) -> Mapping[str, str]:
        return NO_HEADERS

    def throttle(self, hint_s: float | None, headers: Mapping[str, str] = NO_HEADERS) -> Verdict:
        hint = {} if hint_s is None else {"retry-after": f"{hint_s:g}"}
        return Verdict(THROTTLED, self.refusal_s, {**hint, **headers})


@dataclass(kw_only=True)
class Quota(Calm):
    """So many starts in any second. From `change_at` on the quota is another one, at once or step by step."""

    rate: float = 20.0
    change_at: float = math.inf
    changed: float = 20.0
    grows_per_s: float = 0.0
    _starts: deque[float] = field(default_factory=deque, init=False)

    def refusal(self, now: float, size: float) -> Verdict | None:
        while self._starts and self._starts[0] <= now - 1:
            self._starts.popleft()
        rate = self.changed if now >= self.change_at else self.rate + self.grows_per_s * now
        if len(self._starts) >= int(rate):
            return self.throttle(self.hint_s)
        self._starts.append(now)
        return None


@dataclass(kw_only=True)
class Windows(Calm):
    """So many starts in each window. The hint is the window's end in whole seconds, or always `hint_s`."""

    size: int = 84
    span_s: float = 6.0
    exact: bool = True
    _window: int = field(default=-1, init=False)
    _used: int = field(default=0, init=False)

    def refusal(self, now: float, size: float) -> Verdict | None:
        window = int(now / self.span_s)
        if window != self._window:
            self._window, self._used = window, 0
        if self._used >= self.size:
            return self.throttle(math.ceil((window + 1) * self.span_s - now) if self.exact else self.hint_s)
        self._used += 1
        return None


@dataclass(kw_only=True)
class Bucket(Calm):
    """A token bucket: `depth` at once, `rate` a second. A call costs its size. A rival may take from it, in waves."""

    rate: float = 20.0
    depth: float = 100.0
    tells: bool = False
    """Sends rate-limit headers, as OpenAI does."""
    exact: bool = False
    """The hint is when the call fits."""
    rival_per_s: float = 0.0
    rival_swing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rivals = random.Random(f"{self.seed} rivals")
        self._level, self._at, self._next_rival = self.depth, 0.0, 0.0

    def refusal(self, now: float, size: float) -> Verdict | None:
        while self.rival_per_s and self._next_rival < now:
            self._take(self._next_rival, 1.0)
            rate = self.rival_per_s + self.rival_swing * math.sin(self._next_rival / 8)
            self._next_rival += self._rivals.expovariate(rate)
        if self._take(now, size):
            return None
        hint_s = (size - self._level) / self.rate if self.exact else self.hint_s
        return self.throttle(hint_s, self.answer_headers(now))

    def answer_headers(self, now: float) -> Mapping[str, str]:
        if not self.tells:
            return NO_HEADERS
        reset_ms = (self.depth - self._level) / self.rate * 1000
        return {
            "x-ratelimit-limit-requests": f"{self.depth:g}",
            "x-ratelimit-remaining-requests": str(int(self._level)),
            "x-ratelimit-reset-requests": f"{reset_ms:.0f}ms",
        }

    def _take(self, now: float, cost: float) -> bool:
        self._level, self._at = min(self.depth, self._level + (now - self._at) * self.rate), now
        if self._level < cost:
            return False
        self._level -= cost
        return True


@dataclass(kw_only=True)
class Spells(Calm):
    """Everything is refused at times; `span_s` repeats them."""

    status: int = FAILED
    times: Sequence[tuple[float, float]] = ((3.0, 7.0),)
    every_s: float = math.inf

    def refusal(self, now: float, size: float) -> Verdict | None:
        at = now % self.every_s
        if not any(start_s <= at < end_s for start_s, end_s in self.times):
            return None
        return (
            self.throttle(self.hint_s) if self.status == THROTTLED else Verdict(self.status, self.refusal_s)
        )


@dataclass(kw_only=True)
class Crowd(Calm):
    """At most so many in flight. More are refused, or slow everything down."""

    most: int = 8
    slows: bool = False

    def refusal(self, now: float, size: float) -> Verdict | None:
        return self.throttle(self.hint_s) if self.in_flight >= self.most and not self.slows else None

    def service_s(self, now: float) -> float:
        slowdown = max(1.0, (self.in_flight + 1) / self.most) if self.slows else 1.0
        return super().service_s(now) * slowdown


@dataclass(kw_only=True)
class Queue(Calm):
    """Serves so many at once and lets the others wait, as Ollama does."""

    places: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self._free_at = [0.0] * self.places

    def service_s(self, now: float) -> float:
        done = max(now, heapq.heappop(self._free_at)) + super().service_s(now)
        heapq.heappush(self._free_at, done)
        return done - now


@dataclass(kw_only=True)
class Tail(Calm):
    """A share of answers takes `tail_s`."""

    share: float = 0.02
    tail_s: float = 8.0

    def service_s(self, now: float) -> float:
        took_s = super().service_s(now)
        return self.tail_s if self._services.random() < self.share else took_s


@dataclass(kw_only=True)
class Slower(Calm):
    """Answers take `factor` times as long after each period, at most `most` times; with `fails`, some fail then, too."""

    every_s: float = 10.0
    factor: float = 2.0
    most: float = 8.0
    fails: float = 0.0

    def service_s(self, now: float) -> float:
        return super().service_s(now) * min(self.most, self.factor ** int(now / self.every_s))

    def refusal(self, now: float, size: float) -> Verdict | None:
        if now >= self.every_s and self._services.random() < self.fails:
            return Verdict(FAILED, self.refusal_s)
        return None


@dataclass(kw_only=True)
class Zeros(Calm):
    """Refuses nothing, but its headers say that nothing is left."""

    def answer_headers(self, _now: float) -> Mapping[str, str]:
        limits = {"limit": "60", "remaining": "0", "reset": "60s"}
        return {f"x-ratelimit-{name}-requests": value for name, value in limits.items()}


@dataclass(kw_only=True)
class Cold(Calm):
    """The first call loads the model; all calls wait until that is done."""

    load_s: float = 20.0
    _ready_at: float = field(default=-1.0, init=False)

    def service_s(self, now: float) -> float:
        if self._ready_at < 0:
            self._ready_at = now + self.load_s
        return max(0.0, self._ready_at - now) + super().service_s(now)
