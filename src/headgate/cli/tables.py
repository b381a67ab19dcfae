"""A table whose rows never wrap: columns that may give way share what the others leave.

What does not fit beside a row (its note) stands in the last column where there is room, and under its row where
there is not. Knows nothing of jobs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

LEAST_FLEXIBLE: Final = 7
COMFORTABLE: Final = 14
"""How far a flexible column gives way for the sake of notes beside the rows."""
LEAST_NOTE: Final = 28
GAP: Final = 2
INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """`flexible` ones are cut when the screen is narrow."""

    heading: str
    flexible: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    cells: tuple[Text, ...]
    note: Text | None = None


def lay_out(columns: Sequence[Column], rows: Sequence[Row], *, width: int, note: str) -> Iterator[Text]:
    """The table's lines, none wider than the screen."""
    widths = [
        max(len(column.heading), *(row.cells[index].cell_len for row in rows))
        for index, column in enumerate(columns)
    ]
    noted = any(row.note for row in rows)
    room = width - GAP * len(columns)
    beside = _fitted(columns, widths, room - LEAST_NOTE, least=COMFORTABLE)
    note_width = room - sum(beside)
    if noted and note_width >= LEAST_NOTE:
        lines = _lines_with_notes_beside(columns, rows, beside, note, note_width)
    else:
        lines = _lines_with_notes_under(columns, rows, widths, width)
    # On a screen too narrow for what is never cut, the last columns go.
    return (_cut(line, width) for line in lines)


def _lines_with_notes_beside(
    columns: Sequence[Column], rows: Sequence[Row], widths: Sequence[int], note: str, note_width: int
) -> Iterator[Text]:
    yield _line(_headings(columns), columns, widths, GAP, Text(note, "dim"))
    for row in rows:
        yield _line(row.cells, columns, widths, GAP, _cut(row.note or Text(), note_width))


def _lines_with_notes_under(
    columns: Sequence[Column], rows: Sequence[Row], natural: Sequence[int], width: int
) -> Iterator[Text]:
    gap = GAP if sum(natural) + GAP * (len(natural) - 1) <= width else 1
    widths = _fitted(columns, natural, width - gap * (len(natural) - 1), least=LEAST_FLEXIBLE)
    yield _line(_headings(columns), columns, widths, gap)
    for row in rows:
        yield _line(row.cells, columns, widths, gap)
        if row.note is not None:
            yield Text(INDENT).append_text(_cut(row.note, width - len(INDENT)))


def _fitted(columns: Sequence[Column], widths: Sequence[int], width: int, *, least: int) -> list[int]:
    """The widest of the flexible columns gives way, cell by cell."""
    fitted = list(widths)
    flexible = [index for index, column in enumerate(columns) if column.flexible]
    while sum(fitted) > width:
        widest = max(flexible, key=fitted.__getitem__, default=None)
        if widest is None or fitted[widest] <= least:
            break
        fitted[widest] -= 1
    return fitted


def _headings(columns: Sequence[Column]) -> list[Text]:
    return [Text(column.heading, "dim") for column in columns]


def _line(
    cells: Sequence[Text],
    columns: Sequence[Column],
    widths: Sequence[int],
    gap: int,
    aside: Text | None = None,
) -> Text:
    padded = [_cell(cell, column, width) for cell, column, width in zip(cells, columns, widths, strict=True)]
    line = Text(" " * gap).join(padded if aside is None else [*padded, aside])
    line.rstrip()
    return line


def _cell(cell: Text, column: Column, width: int) -> Text:
    fitted = _cut(cell, width)
    missing = width - fitted.cell_len
    (fitted.pad_left if column.right else fitted.pad_right)(missing)
    return fitted


def _cut(text: Text, width: int) -> Text:
    short = text.copy()
    short.truncate(max(1, width), overflow="ellipsis")
    return short
