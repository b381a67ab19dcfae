"""How many slots of an upstream one tenant may use: all while it is alone, about half while others call as well."""

import math
from typing import Final

OTHERS_MEMORY_S: Final = 30.0
"""Half of the room that other tenants have needed is kept for them for so long."""


class Shares:
    """The slots in use by tenant."""

    __slots__ = ("_largest", "_others_at", "_others_peak", "_slots", "used")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.used: dict[str, int] = {}
        self._largest = ""
        """The tenant with the most slots."""
        self._others_peak = 0.0
        """How many slots all other tenants needed at one time lately."""
        self._others_at = 0.0

    def has_half(self, tenant: str) -> bool:
        return self.used.get(tenant, 0) >= max(1, self._slots // 2)

    def opens_at(self, tenant: str, now: float) -> float:
        """Beyond half of the slots a tenant leaves twice as many as the others needed lately; that fades."""
        if tenant != self._largest or self._others_peak <= 0 or not self.has_half(tenant):
            return now
        left = self._slots - self.used[tenant]
        if left <= 0:
            return now
        return max(now, self._others_at + OTHERS_MEMORY_S * math.log2(2 * self._others_peak / left) + 1e-6)

    def take(self, tenant: str, now: float, in_use: int) -> None:
        """One more slot of this tenant; `in_use` are those of all."""
        used = self.used[tenant] = self.used.get(tenant, 0) + 1
        if tenant == self._largest:
            return
        most = self.used.get(self._largest, 0)
        if used > most:
            self._largest = tenant
            return
        fading = 0.5 ** ((now - self._others_at) / OTHERS_MEMORY_S)
        if in_use - most >= self._others_peak * fading:
            self._others_peak, self._others_at = in_use - most, now

    def give_back(self, tenant: str) -> None:
        if (left := self.used[tenant] - 1) > 0:
            self.used[tenant] = left
        else:
            del self.used[tenant]
