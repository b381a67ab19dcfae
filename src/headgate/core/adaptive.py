"""Adaptive concurrency: add slots slowly while calls succeed, cut them at once on a throttle or a timeout."""

from typing import Final

CUT: Final = 0.75


class AdaptiveLimit:
    """Additive increase, multiplicative decrease, between 1 and the configured slots."""

    __slots__ = ("_last_cut_at", "_limit", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._limit = float(most)
        self._last_cut_at = float("-inf")

    @property
    def slots(self) -> int:
        return int(self._limit)

    def succeeded(self, *, in_use: int) -> None:
        # A limit nobody reaches says nothing about the upstream, so it does not grow.
        if in_use >= self.slots:
            self._limit = min(float(self.most), self._limit + 1 / self._limit)

    def pushed_back(self, *, started_at: float, now: float) -> None:
        """A throttle or timeout. Calls that began before the last cut were judged by it already."""
        if started_at >= self._last_cut_at:
            self._limit = max(1.0, self._limit * CUT)
            self._last_cut_at = now
