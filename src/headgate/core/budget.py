"""How many retries an upstream can bear. First attempts are never touched by it.

The bucket is shared by all calls to one upstream. Below about 22 % failures it stays full and every
retry is allowed; above, it drains, and extra load tends to zero as the upstream gets worse: a full outage
costs 35 retries, then none until something succeeds.
"""

from collections.abc import Mapping
from typing import Final

from headgate.core.failures import FailureKind

CAPACITY: Final = 500.0
COST: Final[Mapping[FailureKind, float]] = {
    FailureKind.TRANSIENT: 14.0,
    FailureKind.THROTTLED: 5.0,
    # A regeneration burdens a healthy upstream as a throttled retry does: cheap, but not free.
    FailureKind.INVALID_OUTPUT: 5.0,
}
FIRST_TRY_GAIN: Final = 1.0


class RetryBudget:
    """A bucket of tokens. `capacity=math.inf` switches it off."""

    __slots__ = ("capacity", "tokens")

    def __init__(self, capacity: float = CAPACITY) -> None:
        self.capacity = capacity
        self.tokens = capacity

    def take(self, kind: FailureKind) -> float | None:
        """Pay for a retry after a failure of this kind; None when the bucket cannot pay."""
        cost = COST.get(kind, 0.0)
        if cost > self.tokens:
            return None
        self.tokens -= cost
        return cost

    def give_back(self, cost: float) -> None:
        """A retry that succeeded, or was never sent, costs nothing."""
        self.tokens = min(self.capacity, self.tokens + cost)

    def first_try_succeeded(self) -> None:
        self.tokens = min(self.capacity, self.tokens + FIRST_TRY_GAIN)
