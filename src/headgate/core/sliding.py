"""Counts over the last minutes or the last hour, in bounded memory: what is old drops out piece by piece."""

from collections import Counter, deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

PIECES: Final = 60
Key = TypeVar("Key", bound=Hashable)


class SlidingTally(Generic[Key]):
    """How often each of a few things came within `width_s`, or how much of it; exact to a sixtieth of it."""

    __slots__ = ("_piece_s", "_pieces")

    def __init__(self, width_s: float) -> None:
        self._piece_s = width_s / PIECES
        self._pieces: deque[tuple[float, dict[Key, int]]] = deque(maxlen=PIECES)
        """(number of the piece, counts), oldest first."""

    def add(self, now: float, key: Key, amount: int = 1) -> None:
        number = now // self._piece_s
        if not self._pieces or self._pieces[-1][0] != number:
            self._pieces.append((number, {}))
        counts = self._pieces[-1][1]
        counts[key] = counts.get(key, 0) + amount

    def counts(self, now: float) -> Counter[Key]:
        oldest = now // self._piece_s - PIECES
        together: Counter[Key] = Counter()
        for number, counts in self._pieces:
            if number > oldest:
                together.update(counts)
        return together
