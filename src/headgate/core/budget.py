"""Bounds the retries sent to an upstream by a share of its calls. First attempts are never refused.

The default is two per call, what the SDK alone would send, and no cap: when it is used up, throttled calls wait longer.
A share that was set is a cap: when it is used up, failed calls are not retried.
"""

from typing import Final

SDK_SHARE: Final = 2.0
BURST: Final = 100
"""As if so many calls had just come."""


class RetryBudget:
    """A bucket of retries that every call fills by `share`."""

    __slots__ = ("capacity", "left", "share", "strict")

    def __init__(self, share: float | None = None) -> None:
        self.strict = share is not None
        self.share = SDK_SHARE if share is None else share
        self.capacity = self.left = max(1.0, self.share * BURST) if self.share else 0.0

    @property
    def share_left(self) -> float:
        return self.left / self.capacity if self.capacity else 0.0

    def first_attempt(self) -> None:
        if self.left < self.capacity:
            self.left = min(self.capacity, self.left + self.share)

    def take(self) -> bool:
        """Pay for a retry; False when nothing is left."""
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def give_back(self) -> None:
        """A retry that was never sent costs nothing."""
        self.left = min(self.capacity, self.left + 1)
