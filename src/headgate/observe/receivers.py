"""How many deliveries each receiver may have on their way: one that fails or dawdles must not keep all workers busy."""

from collections import Counter
from typing import Final

MOST_AT_A_POOR_ONE: Final = 2
SLOW_S: Final = 3.0
MOST_REMEMBERED: Final = 1000


class Receivers:
    """Known by their origin. One that answered well and quickly the last time may have any number."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()
        self._poor: dict[str, None] = {}
        """In the order in which they got poor: strangers name them, so their number is bounded."""

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
