"""The last minutes in spans of a few seconds: what screens draw. An event costs a few additions; all else waits until somebody looks."""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from headgate.core.call import Lane
from headgate.core.events import Cancelled, Event, RequestRefused, Responded, RetryScheduled
from headgate.observe.recent import REFUSALS

SPAN_S: Final = 5
MOST_SPANS: Final = 180
BOUNDS_MS: Final = tuple(10 ** (step / 10) for step in range(56))
"""From a millisecond to five minutes, ten to a decade: a percentile is off by an eighth at most."""


class Spread:
    """How values spread: counts between bounds."""

    __slots__ = ("_known", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.total = 0
        self._known: dict[float, tuple[int, float]] = {}
        """Percentiles that were asked for, and of how many values: most spans never change again."""

    def put(self, value_ms: float) -> None:
        self.counts[bisect_left(BOUNDS_MS, value_ms)] += 1
        self.total += 1

    def add(self, other: "Spread") -> None:
        if other.total:
            self.counts = [mine + others for mine, others in zip(self.counts, other.counts, strict=True)]
            self.total += other.total

    def percentile_ms(self, share: float) -> float | None:
        """The bound below which this share of the values lies; None without any."""
        if not self.total:
            return None
        of, value_ms = self._known.get(share, (0, 0.0))
        if of != self.total:
            value_ms = self._find(share * self.total)
            self._known[share] = (self.total, value_ms)
        return value_ms

    def _find(self, rank: float) -> float:
        for bound_ms, count in zip(BOUNDS_MS, self.counts, strict=False):
            rank -= count
            if rank <= 0:
                return bound_ms
        return BOUNDS_MS[-1]


class Span:
    """What happened within a few seconds, or in several spans together."""

    __slots__ = (
        "answered",
        "cancelled",
        "failed",
        "gate_refusals",
        "latency",
        "number",
        "reasons",
        "refused",
        "retries",
        "waits",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        """Counted from the beginning of time, each `SPAN_S` long."""
        self.answered = 0
        self.failed = 0
        self.cancelled = 0
        self.refused = 0
        """Requests that nobody took."""
        self.gate_refusals = 0
        """One request may be refused by several gates, and answered by another."""
        self.retries = 0
        self.reasons: Counter[str] = Counter()
        """Why requests failed or were refused: classes and codes of ours."""
        self.latency = Spread()
        """Of those that were answered."""
        self.waits = {lane: Spread() for lane in Lane}

    def add(self, other: "Span") -> None:
        self.answered += other.answered
        self.failed += other.failed
        self.cancelled += other.cancelled
        self.refused += other.refused
        self.gate_refusals += other.gate_refusals
        self.retries += other.retries
        self.reasons += other.reasons
        self.latency.add(other.latency)
        for lane, waits in self.waits.items():
            waits.add(other.waits[lane])

    @property
    def ended(self) -> int:
        """Requests that are over."""
        return self.answered + self.failed + self.refused + self.cancelled


_QUIET: Final = Span(-1)
"""Stands for every span in which nothing happened; nobody counts into it."""


class Series:
    """`gateway.listen(series)`, then look. `now` is monotonic."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)
        """Only those in which something happened, oldest first."""
        self._current = Span(-MOST_SPANS)

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind is Responded:
            self._responded(event)  # type: ignore[arg-type]  # `isinstance` costs several times as much here
        elif kind is RetryScheduled:
            self._span().retries += 1
        elif kind is RequestRefused:
            self._span().gate_refusals += 1
        elif kind is Cancelled:
            self._span().cancelled += 1

    def spans(self, most: int = MOST_SPANS) -> list[Span]:
        """The last so many, oldest first, the running one last; those without events are empty."""
        newest = self._number()
        kept = {span.number: span for span in self._spans}
        return [kept.get(number, _QUIET) for number in range(newest - most + 1, newest + 1)]

    def together(self, most: int) -> Span:
        """The last so many as one."""
        newest = self._number()
        whole = Span(newest)
        for span in self._spans:
            if span.number > newest - most:
                whole.add(span)
        return whole

    def covered_s(self, most: int) -> float:
        """How long the last so many are: the running one is not over."""
        return (most - 1) * SPAN_S + self._now() % SPAN_S

    def _responded(self, event: Responded) -> None:
        span = self._span()
        if event.error is None:
            span.answered += 1
            span.latency.put(event.latency_ms)
        else:
            # A failure is told with its class, its status and the provider's code; only the class is ours.
            reason = event.error.partition(" ")[0]
            span.reasons[reason] += 1
            if reason in REFUSALS:
                span.refused += 1
            else:
                span.failed += 1
        span.waits[event.lane].put(event.queue_ms)

    def _span(self) -> Span:
        number = self._number()
        if number != self._current.number:
            self._current = Span(number)
            self._spans.append(self._current)
        return self._current

    def _number(self) -> int:
        return int(self._now() // SPAN_S)
