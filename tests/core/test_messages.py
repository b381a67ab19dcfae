"""What no provider could answer is refused before it takes a place; what any could is left alone."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.errors import InvalidRequest
from headgate.core.messages import (
    LONGEST_TEXT_CHARS,
    Answer,
    Chunk,
    Request,
    Usage,
    check_request,
    estimate_usage,
    reserve_tokens,
)
from headgate.core.wire import Endpoint, WireRequest, wire_tokens

HELLO = {"role": "user", "content": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000_000}}


def request(messages: Any = (HELLO,), **fields: Any) -> Request:
    return Request(**{"id": "r1", "model": "summary", "messages": messages, **fields})


def said(content: Any) -> Request:
    return request([{"role": "user", "content": content}])


# ---- Refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ((), "messages"),
        ("hello", "messages"),
        (b"hello", "messages"),
        ("", "messages"),
        (None, "messages"),
        (7, "messages"),
        (HELLO, "messages"),
        ({HELLO["content"]}, "messages"),
        ((message for message in [HELLO]), "messages"),
        (["hello"], "messages[0]"),
        ([None], "messages[0]"),
        ([[HELLO]], "messages[0]"),
        ([{}], "messages[0]"),
        ([{"content": "hello"}], "messages[0]"),
        ([{"role": None, "content": "hello"}], "messages[0]"),
        ([{"role": 1, "content": "hello"}], "messages[0]"),
        ([HELLO, {"content": "hello"}], "messages[1]"),
        ([HELLO, HELLO, "hello"], "messages[2]"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": b"hello"}], "messages[0].content"),
        ([{"role": "user", "content": b""}], "messages[0].content"),
        ([{"role": "user", "content": {"text": "hello"}}], "messages[0].content"),
        ([{"role": "user", "content": ["hello"]}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": "hello"}, None]}], "messages[0].content"),
        ([HELLO, {"role": "user", "content": True}], "messages[1].content"),
    ],
    ids=lambda value: "" if isinstance(value, Iterator) else str(value),
)
def test_messages_that_make_no_sense_are_refused_where_they_are_wrong(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_request(request(messages))

    assert refused.value.param == param


@pytest.mark.parametrize("bad", ["", "x" * 256, "line\nbreak", "tab\t", "\x00", "\x7f", None, 7, b"bytes"])
@pytest.mark.parametrize(("field", "param"), [("id", "request_id"), ("tenant", "tenant"), ("model", "model")])
def test_a_name_that_cannot_stand_in_a_log_line_is_refused(field: str, param: str, bad: Any) -> None:
    with pytest.raises(InvalidRequest, match=param) as refused:
        check_request(request(**{field: bad}))

    assert refused.value.param == param


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x" * 5_000_000}],
        [{"role": "user", "content": "x" * (LONGEST_TEXT_CHARS + 1)}],
        [{"role": "user", "content": [{"type": "text", "text": "x" * 5_000_000}]}],
        [{"role": "user", "content": "x" * 2_500_000}, {"role": "user", "content": "x" * 2_500_000}],
        [{"role": "user", "content": [{"type": "text", "text": "x" * 2_500_000}] * 2}],
    ],
    ids=["one text", "one character too many", "a part", "two messages", "two parts"],
)
def test_text_beyond_every_context_window_is_refused(messages: list[Mapping[str, Any]]) -> None:
    with pytest.raises(InvalidRequest, match="Send less") as refused:
        check_request(request(messages))

    assert refused.value.param == "messages"


# ---- Let through ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        {"role": "user", "content": ""},
        {"role": "user", "content": None},
        {"role": "user"},
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image_url"}]},
        {"role": "user", "content": ({"type": "text", "text": "hello"},)},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
        {"role": "a role nobody has thought of yet", "content": "hello"},
        {"role": "user", "content": "x" * LONGEST_TEXT_CHARS},
    ],
    ids=lambda message: str(message)[:40],
)
def test_what_a_provider_might_answer_is_let_through(message: Mapping[str, Any]) -> None:
    check_request(request([message]))
    check_request(request((message,)))


def test_images_are_not_text() -> None:
    """A photo of a few megabytes is an ordinary request."""
    check_request(said([IMAGE, {"type": "text", "text": "What is this?"}]))


@pytest.mark.parametrize("name", ["x", "x" * 255, "tenant 7", "überall", "summary/v2:latest", "東京"])
def test_a_printable_name_is_let_through(name: str) -> None:
    check_request(request(id=name, tenant=name, model=name))


@given(
    content=st.none()
    | st.text(max_size=50)
    | st.lists(
        st.dictionaries(st.sampled_from(["type", "text", "image_url"]), st.text(max_size=20) | st.none())
    )
)
@settings(deadline=None, max_examples=200)
def test_whatever_is_let_through_can_be_estimated(content: Any) -> None:
    """The estimate runs after the check and must not raise on anything the check allows."""
    asked = said(content)
    check_request(asked)

    assert reserve_tokens(asked) >= 256
    assert estimate_usage(asked).estimated


# ---- Tokens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "tokens"),
    [
        ({}, 3 + 256),
        ({"max_tokens": 100}, 3 + 100),
        ({"max_completion_tokens": 50}, 3 + 50),
        ({"max_completion_tokens": 50, "max_tokens": 100}, 3 + 100),
        ({"max_completion_tokens": 100, "max_tokens": 50}, 3 + 100),
        ({"max_completion_tokens": None, "max_tokens": 100}, 3 + 100),
        ({"max_completion_tokens": 0, "max_tokens": 100}, 3 + 100),
        ({"max_tokens": 0}, 3 + 256),
        ({"max_tokens": -5}, 3 + 256),
        ({"max_tokens": "100"}, 3 + 100),
        ({"max_tokens": 100.0}, 3 + 100),
        ({"max_tokens": True}, 3 + 256),
        ({"max_tokens": [100]}, 3 + 256),
        ({"max_tokens": math.inf}, 3 + 10_000_000),
        ({"max_tokens": 10**400}, 3 + 10_000_000),
        ({"max_tokens": math.nan}, 3 + 256),
        ({"max_tokens": None}, 3 + 256),
        ({"n": 4}, 3 + 4 * 256),
        ({"n": 128, "max_tokens": 100}, 3 + 128 * 100),
        ({"n": 10**9, "max_tokens": 10}, 3 + 1000 * 10),
        ({"n": 0}, 3 + 256),
        ({"n": "4"}, 3 + 4 * 256),
        ({"n": "four"}, 3 + 256),
        ({"n": 4.0}, 3 + 4 * 256),
        ({"n": 2, "best_of": 4}, 3 + 4 * 256),
    ],
)
def test_the_prompt_and_the_bound_of_each_answer_are_reserved(params: dict[str, Any], tokens: int) -> None:
    assert reserve_tokens(request([{"role": "user", "content": "x" * 12}], params=params)) == tokens


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 3 + 256),
        ({"n": b"128"}, 3 + 128 * 256),
        ({"n": b"3", "max_tokens": b"50"}, 3 + 150),
        ({"n": b"0", "max_tokens": b"50"}, 3 + 50),
        ({"n": b"-1"}, 3 + 256),
        ({"n": b'"4"'}, 3 + 4 * 256),
        ({"n": b"128.0"}, 3 + 128 * 256),
        ({"n": b"1.28e2"}, 3 + 128 * 256),
        ({"n": b"1e999"}, 3 + 1000 * 256),
        ({"n": b"null"}, 3 + 256),
        ({"n": b'{"a":1}'}, 3 + 256),
        ({"best_of": b"20"}, 3 + 20 * 256),
        ({"best_of": b"20", "n": b"4", "max_tokens": b"10"}, 3 + 200),
        ({"max_completion_tokens": b"1", "max_tokens": b"500"}, 3 + 500),
        ({"max_tokens": b"500.0"}, 3 + 500),
        ({"prompt": b'["a", "b", "c"]'}, 3 + 3 * 256),
        ({"prompt": b" [ [1, 2], [3]]", "n": b"2", "max_tokens": b"10"}, 3 + 40),
        ({"prompt": b"[1, 2, 3]"}, 3 + 256),
        ({"prompt": b"[]"}, 3 + 256),
        ({"prompt": b'"["a""'}, 3 + 256),
        ({"n": b"9" * 400, "max_tokens": b"5"}, 3 + 5000),
    ],
)
def test_so_are_those_of_a_body_that_passes_through(fields: dict[str, bytes], tokens: int) -> None:
    raw = {name: msgspec.Raw(value) for name, value in fields.items()}
    asked = WireRequest(id="r", endpoint=Endpoint.CHAT, model="m", fields=raw, size_bytes=12)

    assert wire_tokens(asked) == tokens


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (None, 0),
        ("", 0),
        ("x", 1),
        ("x" * 4, 1),
        ("x" * 5, 2),
        ([], 0),
        ([{"type": "text", "text": "x" * 8}, IMAGE, {"type": "text", "text": "x" * 4}], 3),
    ],
    ids=lambda value: str(value)[:20],
)
def test_four_characters_are_about_a_token(content: Any, tokens: int) -> None:
    assert estimate_usage(said(content)) == Usage(tokens, 0, estimated=True)


def test_all_messages_are_estimated_together() -> None:
    asked = request([{"role": "user", "content": "xx"}, {"role": "user"}, {"role": "user", "content": "xx"}])

    assert estimate_usage(asked, "x" * 9) == Usage(1, 3, estimated=True)


def test_usage_adds_up() -> None:
    assert Usage(3, 4).total_tokens == 7
    assert not Usage(3, 4).estimated


# ---- Answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "blank"),
    [
        (Answer(), True),
        (Answer(content=""), True),
        (Answer(content=" \n\t"), True),
        (Answer(content=" \n\t", finish_reason="stop"), True),
        (Answer(refusal=""), True),
        (Answer(content="."), False),
        (Answer(refusal="I cannot help with that."), False),
        (Answer(tool_calls=[{"id": "1"}]), False),
        (Answer(content="", tool_calls=[{"id": "1"}]), False),
    ],
)
def test_an_answer_without_content_call_or_refusal_is_blank(answer: Answer, blank: bool) -> None:
    assert answer.blank == blank


@pytest.mark.parametrize(
    ("chunk", "content"),
    [
        (Chunk(), False),
        (Chunk(finish_reason="stop"), False),
        (Chunk(usage=Usage(1, 1)), False),
        (Chunk(text=" "), True),
        (Chunk(refusal="no"), True),
        (Chunk(tool_calls=[{"id": "1"}]), True),
    ],
)
def test_only_content_commits_a_stream(chunk: Chunk, content: bool) -> None:
    """Until the first content a retry or a fallback is still possible; a space is content."""
    assert chunk.has_content == content
