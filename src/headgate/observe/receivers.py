"""How many deliveries may be on their way: in all, for one tenant, and to one receiver that fails or dawdles.

Workers have other jobs, too, and what one tenant's receivers do must not keep another's messages waiting.
"""

from collections import Counter
from typing import Final, NamedTuple

MOST_AT_A_POOR_ONE: Final = 2
SLOW_S: Final = 3.0
MOST_REMEMBERED: Final = 1000


class Receiver(NamedTuple):
    """An origin as one tenant meets it: the paths of others there may be quick or slow."""

    tenant: str | None
    """None for the operator's, which is one receiver for everybody."""
    origin: str


class Receivers:
    """One that answered well and quickly the last time may have any number, up to its tenant's share."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: Counter[Receiver] = Counter()
        self._poor: dict[Receiver, None] = {}
        """In the order in which they got poor: strangers name them, so their number is bounded."""

    def has_place(self, tenant: str | None) -> bool:
        """A tenant gets half of what the others leave: there is a place for the next one, whatever it does."""
        own = sum(count for receiver, count in self._under_way.items() if receiver.tenant == tenant)
        left_by_others = self._most - (self._under_way.total() - own)
        return own < (left_by_others + 1) // 2

    def has_room(self, receiver: Receiver) -> bool:
        return receiver not in self._poor or self._under_way[receiver] < MOST_AT_A_POOR_ONE

    def enter(self, receiver: Receiver) -> None:
        self._under_way[receiver] += 1

    def leave(self, receiver: Receiver, *, answered_well: bool, took_s: float) -> None:
        self._under_way[receiver] -= 1
        if not self._under_way[receiver]:
            del self._under_way[receiver]
        if answered_well and took_s < SLOW_S:
            self._poor.pop(receiver, None)
            return
        self._poor[receiver] = None
        if len(self._poor) > MOST_REMEMBERED:
            del self._poor[next(iter(self._poor))]
