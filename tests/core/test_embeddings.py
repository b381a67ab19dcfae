"""Texts no provider could embed are refused with their place; everything else is left alone."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.embeddings import (
    MOST_TEXTS,
    EmbeddingRequest,
    check_embedding,
    embedding_tokens,
    estimate_embedding_usage,
    read_input,
)
from headgate.core.errors import InvalidRequest
from headgate.core.messages import LONGEST_TEXT_CHARS, Lane, Usage


def asked(texts: Any = ("hello",), **fields: Any) -> EmbeddingRequest:
    return EmbeddingRequest(**{"id": "r1", "model": "search", "input": texts, **fields})


# ---- Refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_input", "param"),
    [
        (None, "input"),
        (7, "input"),
        (b"hello", "input"),
        (bytearray(b"hello"), "input"),
        ({"text": "hello"}, "input"),
        ({"hello"}, "input"),
        ((text for text in ["hello"]), "input"),
        ([], "input"),
        ((), "input"),
        ("", "input[0]"),
        ([""], "input[0]"),
        (["hello", ""], "input[1]"),
        (["hello", None], "input[1]"),
        ([7, "hello"], "input[0]"),
        ([["hello"]], "input[0]"),
        ([b"hello"], "input[0]"),
        (["hello"] * (MOST_TEXTS + 1), "input"),
        (["x" * LONGEST_TEXT_CHARS, "x"], "input"),
        ("x" * (LONGEST_TEXT_CHARS + 1), "input"),
    ],
    ids=lambda value: "" if isinstance(value, Iterator) else str(value)[:30],
)
def test_input_that_makes_no_sense_is_refused_where_it_is_wrong(given_input: Any, param: str) -> None:
    with pytest.raises(InvalidRequest, match="input") as refused:
        check_embedding(asked(read_input(given_input)))

    assert refused.value.param == param


def test_a_list_without_end_is_refused_before_it_is_copied() -> None:
    """A range of a billion is a list too; reading it first would take the memory it claims."""
    with pytest.raises(InvalidRequest, match="1,000,000,000 texts"):
        read_input(range(10**9))


@pytest.mark.parametrize("texts", ["hello", ["hello"], None])
def test_a_record_made_by_hand_is_checked_too(texts: Any) -> None:
    """A text in place of a tuple of texts would be embedded letter by letter."""
    with pytest.raises(InvalidRequest) as refused:
        check_embedding(asked(texts))

    assert refused.value.param == "input"


@pytest.mark.parametrize("bad", ["", "x" * 256, "line\nbreak", 7])
@pytest.mark.parametrize(
    ("field", "param"),
    [("id", "request_id"), ("tenant", "tenant"), ("model", "model"), ("agent_id", "agent_id")],
)
def test_a_name_that_cannot_stand_in_a_log_line_is_refused(field: str, param: str, bad: Any) -> None:
    with pytest.raises(InvalidRequest, match=param) as refused:
        check_embedding(asked(**{field: bad}))

    assert refused.value.param == param


def test_a_lane_is_read_and_a_wrong_one_refused() -> None:
    assert asked(lane="batch").lane is Lane.BATCH
    with pytest.raises(InvalidRequest, match="'interactive' or 'batch'"):
        asked(lane="express")


# ---- Let through ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given_input",
    [" ", "\n", "x" * LONGEST_TEXT_CHARS, ["a"] * MOST_TEXTS, ("a", "a"), ["東京", "\ud800"]],
    ids=repr,
)
def test_what_a_provider_might_embed_is_let_through(given_input: Any) -> None:
    """A space is a text, twice the same is two texts: whether that is wise is the provider's business."""
    check_embedding(asked(read_input(given_input)))


@given(st.text(max_size=50) | st.lists(st.text(max_size=20) | st.none(), max_size=5))
@settings(deadline=None, max_examples=200)
def test_whatever_is_let_through_is_kept_in_order_and_can_be_estimated(given_input: Any) -> None:
    try:
        request = asked(read_input(given_input))
        check_embedding(request)
    except InvalidRequest:
        return

    assert list(request.input) == ([given_input] if isinstance(given_input, str) else given_input)
    assert embedding_tokens(request) >= len(request.input)


# ---- Tokens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "tokens"), [(("x",), 1), (("x" * 4,), 1), (("x" * 5,), 2), (("x", "x"), 2), (("x" * 8, "x"), 3)]
)
def test_each_text_is_estimated_by_itself_and_nothing_comes_out(texts: tuple[str, ...], tokens: int) -> None:
    """A thousand one-letter texts are a thousand tokens, not two hundred and fifty."""
    assert embedding_tokens(asked(texts)) == tokens
    assert estimate_embedding_usage(asked(texts)) == Usage(tokens, 0, estimated=True)
