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
_MOST_CORRECTION: Final = 4.0
"""Estimates are not wrong by more, either way. What goes beyond says more about who counted."""


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


@dataclass(slots=True, eq=False)
class Reservation:
    """One start inside the window. It stays until it is a minute old, or was never sent."""

    at: float
    tokens: float
    estimate: int
    tenant: str
    previous_start: float
    counts: bool = True
    running: bool = True
    """Its call has not ended: its tokens are an estimate."""


class Pacing:
    """The starts of the last minute of one upstream."""

    __slots__ = (
        "_by_tenant",
        "_correction",
        "_last_start",
        "_requests",
        "_running",
        "_starts",
        "_tokens",
        "active",
        "rules",
    )

    def __init__(self, rules: PacingRules) -> None:
        self.rules = rules
        self.active = bool(rules.interval_s or rules.requests_per_minute or rules.tokens_per_minute)
        self._last_start = float("-inf")
        self._starts: deque[Reservation] = deque()
        self._requests = 0
        self._tokens = 0.0
        self._by_tenant: dict[str, float] = {}
        self._running: dict[str, float] = {}
        """The same of calls that have not ended."""
        self._correction = 1.0
        """Reported tokens per estimated token, learned from usage."""

    def next_at(self, now: float, estimate: int, tenant: str | None = None) -> float:
        """The earliest instant at which a call of this size may start; `now` or earlier means at once.

        A tenant leaves the others twice as many tokens as they used within the window, up to half of it, and does not
        reserve more than half for calls that have not ended while others call. None: any tenant's call.
        """
        self._forget(now)
        return max(self._last_start + self.rules.interval_s, self._window_opens_at(now, estimate, tenant))

    def called_lately(self, now: float) -> bool:
        """Whether a start is within the window."""
        self._forget(now)
        return bool(self._starts)

    def start(self, now: float, estimate: int, tenant: str = "local") -> Reservation:
        tokens = self._fitted(estimate)
        reservation = Reservation(now, 0.0, estimate, tenant, self._last_start)
        self._last_start = now
        self._starts.append(reservation)
        self._requests += 1
        self._use(reservation, tokens)
        return reservation

    def _use(self, reservation: Reservation, tokens: float) -> None:
        """From now on it stands for so many tokens."""
        if reservation.counts:
            more, tenant = tokens - reservation.tokens, reservation.tenant
            self._tokens += more
            self._by_tenant[tenant] = self._by_tenant.get(tenant, 0.0) + more
            if reservation.running:
                self._running[tenant] = self._running.get(tenant, 0.0) + more
        reservation.tokens = tokens

    def ended(self, reservation: Reservation) -> None:
        """Its call is over."""
        if reservation.running and reservation.counts:
            self._running[reservation.tenant] -= reservation.tokens
        reservation.running = False

    def settle(self, reservation: Reservation, used_tokens: int) -> None:
        """The provider has counted: the estimate gives way to the truth, and the next ones learn."""
        self._use(reservation, used_tokens)
        if reservation.estimate:
            factor = used_tokens / reservation.estimate
            factor = min(max(factor, 1 / _MOST_CORRECTION), _MOST_CORRECTION)
            self._correction += _LEARNING * (factor - self._correction)

    def release_tokens(self, reservation: Reservation) -> None:
        """The call ended without usage: its start still counts, its tokens do not."""
        self._use(reservation, 0.0)

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
                self._use(oldest, 0.0)
                # Late news of its usage must not be counted against a window it has left.
                oldest.counts = False
        if not starts:
            self._tokens = 0.0
            self._by_tenant.clear()
            self._running.clear()

    def _fitted(self, estimate: int) -> float:
        """A call larger than half of the window counts as half: one call never needs an empty window."""
        return min(estimate * self._correction, (self.rules.tokens_per_minute or 0) / 2)

    def _window_opens_at(self, now: float, estimate: int, tenant: str | None) -> float:
        most_requests = self.rules.requests_per_minute or float("inf")
        most_tokens = self.rules.tokens_per_minute or float("inf")
        tokens = self._fitted(estimate)
        requests_left, tokens_left = self._requests, self._tokens
        others_left = running_left = 0.0
        if tenant is not None:
            others_left = tokens_left - self._by_tenant.get(tenant, 0.0)
            running_left = self._running.get(tenant, 0.0)
        opens_at = now
        for start in self._starts:
            for_others = min(most_tokens / 2, max(0.0, 2 * others_left))
            own_fits = others_left < 1 or (
                tokens_left - others_left + tokens <= most_tokens - for_others
                and running_left + tokens <= most_tokens / 2
            )
            if requests_left < most_requests and tokens_left + tokens <= most_tokens and own_fits:
                break
            if start.counts:
                requests_left -= 1
                tokens_left -= start.tokens
                if start.tenant != tenant:
                    others_left -= start.tokens
                elif start.running:
                    running_left -= start.tokens
                opens_at = start.at + WINDOW_S
        return opens_at
