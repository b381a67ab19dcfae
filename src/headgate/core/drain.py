"""How fast a gate drains, measured from how long answers take; the estimates for callers come from it."""

from collections import deque
from typing import Final

UNKNOWN_WAIT_S: Final = 30.0
SHORTEST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0
ENOUGH_SAMPLES: Final = 5
_MEMORY: Final = 1 / 32
_SHARE_MEMORY: Final = 1 / 16
_LEAST_BATCH_SHARE: Final = 0.2
_DEVIATIONS: Final = 3
_MAX_RETURNS: Final = 10_000


class Drain:
    """Running means of how long answers take, how far they stray from that, and of the share of grants for batch."""

    __slots__ = ("_first_at", "_returns", "_warm", "answer_s", "batch_share", "samples", "strays_s")

    def __init__(self) -> None:
        self.answer_s = 0.0
        self.strays_s = 0.0
        self.samples = 0
        self.batch_share = 1.0
        self._first_at: float | None = None
        self._warm = False
        self._returns: deque[float] = deque(maxlen=_MAX_RETURNS)
        """When rejected callers are expected to retry, roughly in this order."""

    def expected_back(self, now: float) -> int:
        """How many rejected callers have yet to retry: the next one is asked to retry after them."""
        returns = self._returns
        while returns and returns[0] <= now:
            returns.popleft()
        return len(returns)

    def rejected(self, retry_at: float) -> None:
        self._returns.append(retry_at)

    def answered(self, seconds: float, now: float) -> None:
        if self._first_at is None:
            self._first_at = now
        elif now - seconds < self._first_at:
            # What began before anything had been answered may have waited for a model to be loaded.
            if self._warm:
                return
        elif not self._warm:
            self._warm, self.samples = True, 0
        self.samples += 1
        weight = max(_MEMORY, 1 / self.samples)
        stray_s = seconds - self.answer_s
        self.answer_s += stray_s * weight
        if self.samples == 1:
            self.strays_s = 0.0
        else:
            self.strays_s += (abs(stray_s) - self.strays_s) * weight

    @property
    def sure(self) -> bool:
        """Enough was measured to refuse somebody for it."""
        return self._warm and self.samples >= ENOUGH_SAMPLES

    @property
    def nearly_all_answer_s(self) -> float:
        """The time within which nearly all answers come; 0 before enough were measured."""
        return self.answer_s + _DEVIATIONS * self.strays_s if self.sure else 0.0

    def granted_while_batch_waits(self, *, to_batch: bool) -> None:
        self.batch_share += ((1.0 if to_batch else 0.0) - self.batch_share) * _SHARE_MEMORY

    def wait_s(self, count: int, *, slots: float, starts_per_s: float, batch: bool = False) -> float | None:
        """How long until `count` waiters are granted; None before anything was measured."""
        if not self.samples:
            return None
        per_grant_s = max(self.answer_s / max(1.0, slots), 1 / starts_per_s)
        if batch:
            per_grant_s /= max(self.batch_share, _LEAST_BATCH_SHARE)
        return count * per_grant_s


def spread(seconds: float | None, chance: float) -> float:
    """A Retry-After from an estimate: 1–60 s, spread over as long as the backlog needs, so that the refused do not return together."""
    estimate_s = UNKNOWN_WAIT_S if seconds is None else seconds
    clamped_s = min(max(estimate_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)
    return max(SHORTEST_RETRY_S, clamped_s * (0.75 + 0.5 * chance))
