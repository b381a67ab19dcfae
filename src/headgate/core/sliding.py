"""Sums over the last minutes or the last hour, in bounded memory: what is old drops out piece by piece."""

from collections import Counter, deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

PIECES: Final = 60
Key = TypeVar("Key", bound=Hashable)


class SlidingTally(Generic[Key]):
    """How often each of a few things came within `width_s`; exact to a sixtieth of it."""

    __slots__ = ("_piece_s", "_pieces")

    def __init__(self, width_s: float) -> None:
        self._piece_s = width_s / PIECES
        self._pieces: deque[tuple[float, dict[Key, int]]] = deque(maxlen=PIECES)
        """(number of the piece, counts), oldest first."""

    def add(self, now: float, key: Key) -> None:
        number = now // self._piece_s
        if not self._pieces or self._pieces[-1][0] != number:
            self._pieces.append((number, {}))
        counts = self._pieces[-1][1]
        counts[key] = counts.get(key, 0) + 1

    def counts(self, now: float) -> Counter[Key]:
        oldest = now // self._piece_s - PIECES
        together: Counter[Key] = Counter()
        for number, counts in self._pieces:
            if number > oldest:
                together.update(counts)
        return together


class SlidingSum:
    """How many values came within `width_s`, and their sum; exact to a sixtieth of it."""

    __slots__ = ("_count", "_piece_s", "_pieces", "_total")

    def __init__(self, width_s: float) -> None:
        self._piece_s = width_s / PIECES
        self._pieces: deque[list[float]] = deque()
        """[number of the piece, count, total], oldest first."""
        self._count = 0
        self._total = 0.0

    def add(self, now: float, value: float = 1.0) -> None:
        number = now // self._piece_s
        if not self._pieces or self._pieces[-1][0] != number:
            self._forget(number)
            self._pieces.append([number, 0, 0.0])
        piece = self._pieces[-1]
        piece[1] += 1
        piece[2] += value
        self._count += 1
        self._total += value

    def count(self, now: float) -> int:
        self._forget(now // self._piece_s)
        return self._count

    def mean(self, now: float, *, fewest: int) -> float | None:
        """None when there are fewer values than it takes to say anything."""
        return self._total / self._count if self.count(now) >= fewest else None

    def _forget(self, number: float) -> None:
        while self._pieces and self._pieces[0][0] <= number - PIECES:
            _, count, total = self._pieces.popleft()
            self._count -= int(count)
            self._total -= total
        if not self._pieces:
            self._total = 0.0  # What rounding left over does not pile up.
