"""Long texts in pieces: nothing is lost, neighbours overlap, cuts fall where a reader would pause."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.apps.articles.chunking import CHUNK_CHARS, LONG_CHARS, OVERLAP_CHARS, chunks, is_long


@pytest.mark.parametrize(("length", "long"), [(0, False), (LONG_CHARS, False), (LONG_CHARS + 1, True)])
def test_long_is_more_than_20_000_characters(length: int, long: bool) -> None:
    assert is_long("x" * length) is long


def test_the_sizes_are_6_000_characters_with_15_percent_overlap() -> None:
    assert (CHUNK_CHARS, OVERLAP_CHARS) == (6_000, 900)


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 250, 1000])
def test_pieces_without_any_pause_are_as_large_as_they_may_be(length: int) -> None:
    pieces = chunks("x" * length, size=100, overlap=15)
    assert [len(piece) for piece in pieces[:-1]] == [100] * (len(pieces) - 1)
    assert len(pieces[-1]) <= 100


@given(st.text(alphabet="ab .\n。", max_size=600), st.integers(min_value=10, max_value=80), st.integers(0, 7))
def test_put_together_without_the_overlap_they_are_the_text(text: str, size: int, overlap: int) -> None:
    pieces = chunks(text, size=size, overlap=overlap)
    assert pieces[0] + "".join(piece[overlap:] for piece in pieces[1:]) == text
    assert all(len(piece) <= size for piece in pieces)
    for before, after in itertools.pairwise(pieces):
        assert before.endswith(after[:overlap])


@pytest.mark.parametrize(
    ("pause", "ends"),
    [("one\n\ntwo three. four ", "\n\n"), ("one two. three four ", ". "), ("onetwo three ", " ")],
)
def test_a_cut_falls_after_a_paragraph_else_a_sentence_else_a_word(pause: str, ends: str) -> None:
    pieces = chunks(pause * 20, size=100, overlap=15)
    assert all(piece.endswith(ends) for piece in pieces[:-1])
