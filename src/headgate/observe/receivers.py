"""How many deliveries may be on their way, in all and to one receiver that fails or dawdles: workers have other jobs, too."""

from collections import Counter
from typing import Final

MOST_AT_A_POOR_ONE: Final = 2
SLOW_S: Final = 3.0
MOST_REMEMBERED: Final = 1000


class Receivers:
    """Known by their origin. One that answered well and quickly the last time may have any number, up to all there are."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: Counter[str] = Counter()
        self._poor: dict[str, None] = {}
        """In the order in which they got poor: strangers name them, so their number is bounded."""

    @property
    def all_taken(self) -> bool:
        return self._under_way.total() >= self._most

    def has_room(self, origin: str) -> bool:
        return origin not in self._poor or self._under_way[origin] < MOST_AT_A_POOR_ONE

    def enter(self, origin: str) -> None:
        self._under_way[origin] += 1

    def leave(self, origin: str, *, answered_well: bool, took_s: float) -> None:
        self._under_way[origin] -= 1
        if not self._under_way[origin]:
            del self._under_way[origin]
        if answered_well and took_s < SLOW_S:
            self._poor.pop(origin, None)
            return
        self._poor[origin] = None
        if len(self._poor) > MOST_REMEMBERED:
            del self._poor[next(iter(self._poor))]
