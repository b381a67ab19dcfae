"""Tables fit any screen: nothing wraps, what must be whole is whole."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from headgate.cli.tables import Column, Row, lay_out

COLUMNS = (
    Column("id"),
    Column("task", flexible=True),
    Column("try", right=True),
    Column("model", flexible=True),
)
ID = "job_0123456789"


def _rows(*notes: str | None, task: str = "summarise", model: str = "simulated/instant") -> list[Row]:
    cells = (Text(ID), Text(task), Text("1/5"), Text(model))
    return [Row(cells, None if note is None else Text(note)) for note in notes]


def _lines(rows: list[Row], width: int) -> list[str]:
    return [line.plain for line in lay_out(COLUMNS, rows, width=width, note="reason")]


@given(
    st.text(st.characters(exclude_categories=("C", "Z")), max_size=40),
    st.text(st.characters(exclude_categories=("C", "Z")), max_size=200),
    st.integers(40, 200),
)
def test_no_line_is_wider_than_the_screen_and_the_first_column_is_never_cut(
    task: str, note: str, width: int
) -> None:
    lines = _lines(_rows(note, None, task=task), width)
    assert max(cell_len(line) for line in lines) <= width
    assert sum(line.startswith(ID) for line in lines) == 2


def test_a_wide_screen_has_the_notes_beside_the_rows() -> None:
    assert _lines(_rows("went wrong", None), 100) == [
        "id              task       try  model              reason",
        "job_0123456789  summarise  1/5  simulated/instant  went wrong",
        "job_0123456789  summarise  1/5  simulated/instant",
    ]


def test_a_narrow_screen_has_them_under_the_rows_and_cuts_what_may_be_cut() -> None:
    assert _lines(_rows("it went wrong in a way that takes long to tell", None), 42) == [
        "id             task      try model",
        "job_0123456789 summarise 1/5 simulated/in…",
        "  it went wrong in a way that takes long …",
        "job_0123456789 summarise 1/5 simulated/in…",
    ]


def test_without_notes_there_is_no_column_for_them() -> None:
    assert _lines(_rows(None), 100)[0] == "id              task       try  model"
