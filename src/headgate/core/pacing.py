"""When the next call may start: spacing, requests per minute, tokens per minute.

The promise is strict: never two starts closer than `interval_s`, never more than N requests or tokens in
any sixty seconds. Tokens are reserved by estimate at the start and settled with the reported usage.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from headgate.core.problems import Review

WINDOW_S: Final = 60.0
_LEARNING: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingRules:
    interval_s: float = 0.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        review = Review()
        review.number("interval_s", self.interval_s, most=3600)
        review.number("requests_per_minute", self.requests_per_minute, least=1, whole=True)
        review.number("tokens_per_minute", self.tokens_per_minute, least=1, whole=True)
        review.refuse()


class Reservation:
    """One start inside the window. It stays until it is a minute old, or was never sent."""

    __slots__ = ("at", "counts", "estimate", "previous_start", "tokens")

    def __init__(self, at: float, tokens: float, estimate: int, previous_start: float) -> None:
        self.at = at
        self.tokens = tokens
        self.estimate = estimate
        self.previous_start = previous_start
        self.counts = True


class Pacing:
    """The starts of the last minute of one upstream."""

    __slots__ = ("_correction", "_last_start", "_requests", "_starts", "_tokens", "active", "rules")

    def __init__(self, rules: PacingRules) -> None:
        self.rules = rules
        self.active = bool(rules.interval_s or rules.requests_per_minute or rules.tokens_per_minute)
        self._last_start = float("-inf")
        self._starts: deque[Reservation] = deque()
        self._requests = 0
        self._tokens = 0.0
        self._correction = 1.0
        """Reported tokens per estimated token, learned from usage."""

    def next_at(self, now: float, estimate: int) -> float:
        """The earliest instant at which a call of this size may start; `now` or earlier means at once."""
        self._forget(now)
        return max(self._last_start + self.rules.interval_s, self._window_opens_at(now, estimate))

    def start(self, now: float, estimate: int) -> Reservation:
        tokens = self._fitted(estimate)
        reservation = Reservation(now, tokens, estimate, self._last_start)
        self._last_start = now
        self._starts.append(reservation)
        self._requests += 1
        self._tokens += tokens
        return reservation

    def settle(self, reservation: Reservation, used_tokens: int) -> None:
        """The provider has counted: the estimate gives way to the truth, and the next ones learn."""
        if reservation.counts:
            self._tokens += used_tokens - reservation.tokens
        reservation.tokens = used_tokens
        if reservation.estimate:
            self._correction += _LEARNING * (used_tokens / reservation.estimate - self._correction)

    def release_tokens(self, reservation: Reservation) -> None:
        """The call ended without usage: its start still counts, its tokens do not."""
        if reservation.counts:
            self._tokens -= reservation.tokens
        reservation.tokens = 0.0

    def undo(self, reservation: Reservation) -> None:
        """The call was never sent: nothing of it counts."""
        if not reservation.counts:
            return
        self.release_tokens(reservation)
        reservation.counts = False
        self._requests -= 1
        if self._last_start == reservation.at:
            self._last_start = reservation.previous_start

    @property
    def starts_per_s(self) -> float:
        """The fastest sustained rate these rules allow, as far as it is known."""
        limits = [float("inf")]
        if self.rules.interval_s:
            limits.append(1 / self.rules.interval_s)
        if self.rules.requests_per_minute:
            limits.append(self.rules.requests_per_minute / WINDOW_S)
        if self.rules.tokens_per_minute and self._requests and self._tokens > 0:
            limits.append(self.rules.tokens_per_minute / WINDOW_S * self._requests / self._tokens)
        return min(limits)

    def _forget(self, now: float) -> None:
        starts = self._starts
        while starts and starts[0].at <= now - WINDOW_S:
            oldest = starts.popleft()
            if oldest.counts:
                self._requests -= 1
                self._tokens -= oldest.tokens
                # Late news of its usage must not be counted against a window it has left.
                oldest.counts = False
        if not starts:
            self._tokens = 0.0

    def _fitted(self, estimate: int) -> float:
        """A call larger than the whole window counts as the whole window: it goes when that is empty."""
        return min(estimate * self._correction, self.rules.tokens_per_minute or 0)

    def _window_opens_at(self, now: float, estimate: int) -> float:
        most_requests = self.rules.requests_per_minute or float("inf")
        most_tokens = self.rules.tokens_per_minute or float("inf")
        tokens = self._fitted(estimate)
        requests_left, tokens_left = self._requests, self._tokens
        opens_at = now
        for start in self._starts:
            if requests_left < most_requests and tokens_left + tokens <= most_tokens:
                break
            if start.counts:
                requests_left -= 1
                tokens_left -= start.tokens
                opens_at = start.at + WINDOW_S
        return opens_at
