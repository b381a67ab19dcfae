"""How fast a gate drains, measured from how long slots are held; from it come honest estimates."""

from typing import Final

UNKNOWN_WAIT_S: Final = 30.0
SHORTEST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0
ENOUGH_SAMPLES: Final = 5
_MEMORY: Final = 1 / 32
_SHARE_MEMORY: Final = 1 / 16
_LEAST_BATCH_SHARE: Final = 0.2


class Drain:
    """Running means of hold times and of the share of grants that batch gets while it waits."""

    __slots__ = ("batch_share", "hold_s", "samples")

    def __init__(self) -> None:
        self.hold_s = 0.0
        self.samples = 0
        self.batch_share = 1.0

    def held(self, seconds: float) -> None:
        self.samples += 1
        self.hold_s += (seconds - self.hold_s) * max(_MEMORY, 1 / self.samples)

    def granted_while_batch_waits(self, *, to_batch: bool) -> None:
        self.batch_share += ((1.0 if to_batch else 0.0) - self.batch_share) * _SHARE_MEMORY

    def wait_s(self, count: int, *, slots: int, starts_per_s: float, batch: bool = False) -> float | None:
        """How long until `count` waiters are granted; None before anything was measured."""
        if not self.samples:
            return None
        per_grant_s = max(self.hold_s / max(1, slots), 1 / starts_per_s)
        if batch:
            per_grant_s /= max(self.batch_share, _LEAST_BATCH_SHARE)
        return count * per_grant_s


def spread(seconds: float | None, chance: float) -> float:
    """A Retry-After from an estimate: 1–60 s, spread by a quarter so that the refused do not return together."""
    estimate_s = UNKNOWN_WAIT_S if seconds is None else seconds
    clamped_s = min(max(estimate_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)
    return max(SHORTEST_RETRY_S, clamped_s * (0.75 + 0.5 * chance))
