"""Counters and histograms as plain dictionaries of numbers: a count costs a fraction of a microsecond.

prometheus-client takes a lock for each number it changes and walks through a histogram's buckets; here it only writes
the page. Counted by one thread, the event loop's; read by any.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

Key = tuple[str, ...]
"""The values of a metric's labels."""

TINY_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
"""For what we add to a call."""
QUICK_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""For calls: from a refusal to the default deadline."""
SLOW_S: Final = (0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0, 259200.0)
"""For jobs: from at once to the age at which they expire."""


class Cell:
    """One number that grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Counter:
    """A number that grows, for each combination of its labels."""

    __slots__ = ("_cells", "_help", "_labels", "_name")

    def __init__(self, name: str, words: str, *labels: str) -> None:
        self._name = name
        self._help = words
        self._labels = labels
        self._cells: dict[Key, Cell] = {} if labels else {(): Cell()}

    def cell(self, key: Key) -> Cell:
        """The number itself, for those who count into the same one again and again."""
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell()
        return cell

    def add(self, key: Key, amount: float = 1.0) -> None:
        self.cell(key).value += amount

    def family(self) -> CounterMetricFamily:
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for key, cell in list(self._cells.items()):
            family.add_metric(key, cell.value)
        return family


class Row:
    """The buckets of one histogram for one combination of its labels."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket alone; the last is for what is above all bounds."""
        self.total = 0.0

    def put(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Histogram:
    """How values spread, for each combination of its labels."""

    __slots__ = ("_bounds", "_help", "_labels", "_name", "_rows", "_tops")

    def __init__(self, name: str, words: str, *labels: str, bounds: tuple[float, ...] = QUICK_S) -> None:
        self._name = name
        self._help = words
        self._labels = labels
        self._bounds = bounds
        self._tops = [*(f"{bound:.12g}" for bound in bounds), "+Inf"]
        self._rows: dict[Key, Row] = {}

    def row(self, key: Key) -> Row:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Row(self._bounds)
        return row

    def put(self, key: Key, value: float) -> None:
        self.row(key).put(value)

    def family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for key, row in list(self._rows.items()):
            buckets = [
                (top, float(count)) for top, count in zip(self._tops, accumulate(row.counts), strict=True)
            ]
            family.add_metric(key, buckets=buckets, sum_value=row.total)
        return family


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

    def collect(self) -> Iterator[Metric]:
        return (tally.family() for tally in self._made)
