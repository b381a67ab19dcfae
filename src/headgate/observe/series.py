"""The last minutes, second by second: what screens draw. An event costs a few additions; nothing else happens until somebody looks."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from headgate.core.events import Cancelled, Event, RequestRefused, Responded, RetryScheduled
from headgate.core.messages import Lane

KEPT_S: Final = 900
BOUNDS_MS: Final = tuple(10 ** (step / 10) for step in range(56))
"""From a millisecond to five minutes, ten to a decade: a percentile is off by an eighth at most."""


class Spread:
    """How values spread: counts between bounds."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)

    def put(self, value_ms: float) -> None:
        self.counts[bisect_left(BOUNDS_MS, value_ms)] += 1

    def add(self, other: "Spread") -> None:
        self.counts = [mine + others for mine, others in zip(self.counts, other.counts, strict=True)]

    def percentile_ms(self, share: float) -> float | None:
        """The bound below which this share of the values lies; None without any."""
        left = share * sum(self.counts)
        if left == 0:
            return None
        for bound, count in zip(BOUNDS_MS, self.counts, strict=False):
            left -= count
            if left <= 0:
                return bound
        return BOUNDS_MS[-1]


class Span:
    """What happened within a second, or within several of them together."""

    __slots__ = ("answered", "at", "cancelled", "failed", "latency", "refused", "retries", "waits")

    def __init__(self, at: int) -> None:
        self.at = at
        self.answered = 0
        self.failed = 0
        self.cancelled = 0
        self.refused = 0
        """By gates; one request may be refused by several, and answered by another."""
        self.retries = 0
        self.latency = Spread()
        """Of those that were answered."""
        self.waits = {lane: Spread() for lane in Lane}

    def add(self, other: "Span") -> None:
        self.answered += other.answered
        self.failed += other.failed
        self.cancelled += other.cancelled
        self.refused += other.refused
        self.retries += other.retries
        self.latency.add(other.latency)
        for lane, waits in self.waits.items():
            waits.add(other.waits[lane])

    @property
    def ended(self) -> int:
        """Requests that are over."""
        return self.answered + self.failed + self.cancelled


class Series:
    """`gateway.listen(series)`, then look. `now` is monotonic."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seconds: deque[Span] = deque(maxlen=KEPT_S)
        """Only those in which something happened, oldest first."""
        self._current = Span(-KEPT_S)

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind is Responded:
            self._responded(event)  # type: ignore[arg-type]  # `isinstance` costs several times as much here
        elif kind is RetryScheduled:
            self._second().retries += 1
        elif kind is RequestRefused:
            self._second().refused += 1
        elif kind is Cancelled:
            self._second().cancelled += 1

    def last(self, seconds: int) -> Span:
        """The last so many seconds together."""
        since = int(self._now()) - seconds
        together = Span(since)
        for second in self._since(since):
            together.add(second)
        return together

    def spans(self, seconds: int, each_s: int) -> list[Span]:
        """The last so many seconds in spans of equal length, oldest first, the running one last."""
        newest = int(self._now()) // each_s
        oldest = newest - seconds // each_s + 1
        spans = [Span(index * each_s) for index in range(oldest, newest + 1)]
        for second in self._since(oldest * each_s - 1):
            index = second.at // each_s - oldest
            if index < len(spans):
                spans[index].add(second)
        return spans

    def _responded(self, event: Responded) -> None:
        second = self._second()
        if event.error is None:
            second.answered += 1
            second.latency.put(event.latency_ms)
        else:
            second.failed += 1
        second.waits[event.lane].put(event.queue_ms)

    def _second(self) -> Span:
        at = int(self._now())
        if at != self._current.at:
            self._current = Span(at)
            self._seconds.append(self._current)
        return self._current

    def _since(self, second: int) -> Iterator[Span]:
        return (kept for kept in self._seconds if kept.at > second)
