"""Counters and histograms as plain dictionaries of numbers: a count costs a fraction of a microsecond.

prometheus-client takes a lock for each number it changes and walks through a histogram's buckets. Counted by one
thread, the event loop's; read by any.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from headgate.observe.exposition import Family, Key, Tell, label_text

TINY_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
"""For what we add to a call."""
QUICK_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""For calls: from a refusal to the default deadline."""
SLOW_S: Final = (0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0, 259200.0)
"""For jobs: from at once to the age at which they expire."""


class Cell:
    """One number that grows, and the beginning of its line."""

    __slots__ = ("head", "value")

    def __init__(self, head: str) -> None:
        self.head = head
        self.value = 0.0


class Counter:
    """A number that grows, for each combination of its labels."""

    __slots__ = ("_cells", "_help", "_labels", "_name")

    def __init__(self, name: str, words: str, *labels: str) -> None:
        self._name = f"{name}_total"
        self._help = words
        self._labels = labels
        self._cells: dict[Key, Cell] = {}
        if not labels:
            self.cell(())

    def cell(self, key: Key) -> Cell:
        """The number itself, for those who count into the same one again and again."""
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell(f"{self._name}{label_text(self._labels, key)}")
        return cell

    def __repr__(self) -> str:
        return self._name

    def add(self, key: Key, amount: float = 1.0) -> None:
        self.cell(key).value += amount

    def family(self) -> Family:
        lines = [f"{cell.head} {cell.value:.15g}\n" for cell in list(self._cells.values())]
        return Family(self._name, "counter", self._help, self._labels, lines)


class Row:
    """The buckets of one histogram for one combination of its labels."""

    __slots__ = ("_bounds", "_heads", "_tail", "counts", "total")

    def __init__(self, bounds: tuple[float, ...], name: str, labels: tuple[str, ...], key: Key) -> None:
        self._bounds = bounds
        tops = [*(f"{bound:.12g}" for bound in bounds), "+Inf"]
        self._heads = [f"{name}_bucket{label_text((*labels, 'le'), (*key, top))}" for top in tops]
        text = label_text(labels, key)
        self._tail = f"{name}_count{text}", f"{name}_sum{text}"
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket alone; the last is for what is above all bounds."""
        self.total = 0.0

    def put(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def lines(self) -> Iterator[str]:
        sums = list(accumulate(self.counts))
        yield from (f"{head} {count}\n" for head, count in zip(self._heads, sums, strict=True))
        count, total = self._tail
        yield f"{count} {sums[-1]}\n"
        yield f"{total} {self.total:.15g}\n"


class Histogram:
    """How values spread, for each combination of its labels."""

    __slots__ = ("_bounds", "_help", "_labels", "_name", "_rows")

    def __init__(self, name: str, words: str, *labels: str, bounds: tuple[float, ...] = QUICK_S) -> None:
        self._name = name
        self._help = words
        self._labels = labels
        self._bounds = bounds
        self._rows: dict[Key, Row] = {}

    def __repr__(self) -> str:
        return self._name

    def row(self, key: Key) -> Row:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Row(self._bounds, self._name, self._labels, key)
        return row

    def put(self, key: Key, value: float) -> None:
        self.row(key).put(value)

    def family(self) -> Family:
        lines = [line for row in list(self._rows.values()) for line in row.lines()]
        return Family(self._name, "histogram", self._help, self._labels, lines)


class Tallies:
    """All counters and histograms of one page, in the order they were made."""

    def __init__(self) -> None:
        self._made: list[Counter | Histogram] = []

    def counter(self, name: str, words: str, *labels: str) -> Counter:
        made = Counter(name, words, *labels)
        self._made.append(made)
        return made

    def histogram(
        self, name: str, words: str, *labels: str, bounds: tuple[float, ...] = QUICK_S
    ) -> Histogram:
        made = Histogram(name, words, *labels, bounds=bounds)
        self._made.append(made)
        return made

    def collect(self) -> Iterator[Tell]:
        return (tally.family for tally in self._made)
