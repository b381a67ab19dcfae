"""What no provider could answer is rejected before it takes a place; what any could is left alone. And its tokens."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.call import (
    MAX_TEXT_CHARS,
    MAX_TEXTS,
    MAX_TOKENS,
    OPERATIONS,
    Call,
    Format,
    Lane,
    Request,
    check_messages,
    check_names,
    count_entries,
    input_tokens,
    read_count,
    read_lane,
    read_texts,
    reserved_tokens,
)
from headgate.core.errors import InvalidRequest

HELLO = {"role": "user", "content": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000_000}}
NAMES: Mapping[str, Any] = {"request_id": "r1", "model": "summary", "tenant": "local", "agent_id": None}


def a_call(messages: Any = (HELLO,), **fields: Any) -> Call:
    return Call(id="r1", model="summary", fields={"messages": messages, **fields})


def said(content: Any) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": content}]


def an_embedding(*texts: str, **fields: Any) -> Call:
    return Call(id="r1", model="search", format=Format.EMBEDDINGS, fields={"input": texts, **fields})


def shown(value: object) -> str:
    return str(bytes(value) if isinstance(value, msgspec.Raw) else value)[:20]


def raw(**fields: bytes) -> dict[str, Any]:
    return {name: msgspec.Raw(value) for name, value in fields.items()}


# ---- Names and lanes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["", "x" * 256, "line\nbreak", "tab\t", "\x00", "\x7f", 7, b"bytes"])
@pytest.mark.parametrize("field", ["request_id", "model", "tenant", "agent_id"])
def test_a_name_that_cannot_stand_in_a_log_line_is_rejected(field: str, bad: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as rejected:
        check_names(**{**NAMES, field: bad})

    assert rejected.value.param == field


@pytest.mark.parametrize("field", ["request_id", "model", "tenant"])
def test_only_the_agent_may_be_missing(field: str) -> None:
    check_names(**NAMES)
    with pytest.raises(InvalidRequest, match=field):
        check_names(**{**NAMES, field: None})


@pytest.mark.parametrize("name", ["x", "x" * 255, "tenant 7", "überall", "summary/v2:latest", "東京"])
def test_a_printable_name_is_let_through(name: str) -> None:
    check_names(name, name, name, name)


def test_a_lane_is_read_and_a_wrong_one_rejected() -> None:
    assert read_lane("batch") is read_lane(Lane.BATCH) is Lane.BATCH
    for wrong in ("express", "BATCH", None, 7, b"batch", ["batch"]):
        with pytest.raises(InvalidRequest, match="'interactive' or 'batch'"):
            read_lane(wrong)


def test_a_wrong_lane_is_quoted_no_longer_than_a_line() -> None:
    """A text of 20 MB must not come back in the error."""
    with pytest.raises(InvalidRequest) as rejected:
        read_lane("x" * 20_000_000)

    assert len(str(rejected.value)) < 200


def test_a_request_of_many_has_a_lane_whatever_it_was_made_of() -> None:
    assert Request(id="r1", model="m", messages=[HELLO], lane="batch").lane is Lane.BATCH  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="'interactive' or 'batch'"):
        Request(id="r1", model="m", messages=[HELLO], lane="express")  # type: ignore[arg-type]


def test_each_format_is_an_operation() -> None:
    """Their names in traces are those of OpenTelemetry."""
    assert OPERATIONS == {
        Format.CHAT: "chat",
        Format.COMPLETIONS: "text_completion",
        Format.EMBEDDINGS: "embeddings",
    }
    assert set(OPERATIONS) == set(Format)


# ---- Messages -------------------------------------------------------------------------------------------------


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
def test_messages_that_make_no_sense_are_rejected_where_they_are_wrong(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        check_messages(messages)

    assert rejected.value.param == param


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x" * 5_000_000}],
        [{"role": "user", "content": "x" * (MAX_TEXT_CHARS + 1)}],
        [{"role": "user", "content": [{"type": "text", "text": "x" * 5_000_000}]}],
        [{"role": "user", "content": "x" * 2_500_000}, {"role": "user", "content": "x" * 2_500_000}],
        [{"role": "user", "content": [{"type": "text", "text": "x" * 2_500_000}] * 2}],
    ],
    ids=["one text", "one character too many", "a part", "two messages", "two parts"],
)
def test_text_beyond_every_context_window_is_rejected(messages: list[Mapping[str, Any]]) -> None:
    with pytest.raises(InvalidRequest, match="Send less") as rejected:
        check_messages(messages)

    assert rejected.value.param == "messages"


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
        {"role": "assistant", "content": "42", "thinking_blocks": [{"type": "redacted_thinking"}]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
        {"role": "a role that does not exist yet", "content": "hello"},
        {"role": "user", "content": "x" * MAX_TEXT_CHARS},
    ],
    ids=lambda message: str(message)[:40],
)
def test_what_a_provider_might_answer_is_let_through(message: Mapping[str, Any]) -> None:
    check_messages([message])
    check_messages((message,))


def test_images_are_not_text() -> None:
    """A photo of a few megabytes is an ordinary request."""
    check_messages(said([IMAGE, {"type": "text", "text": "What is this?"}]))


# ---- Texts to be embedded -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "param"),
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
        (["hello"] * (MAX_TEXTS + 1), "input"),
        (["x" * MAX_TEXT_CHARS, "x"], "input"),
        ("x" * (MAX_TEXT_CHARS + 1), "input"),
    ],
    ids=lambda value: "" if isinstance(value, Iterator) else str(value)[:30],
)
def test_input_that_makes_no_sense_is_rejected_where_it_is_wrong(texts: Any, param: str) -> None:
    with pytest.raises(InvalidRequest, match="input") as rejected:
        read_texts(texts)

    assert rejected.value.param == param


def test_a_list_without_end_is_rejected_before_it_is_copied() -> None:
    """A range of a billion is a list too; reading it first would take the memory it claims."""
    with pytest.raises(InvalidRequest, match="1,000,000,000 texts"):
        read_texts(range(10**9))


@pytest.mark.parametrize(
    "texts",
    [" ", "\n", "x" * MAX_TEXT_CHARS, ["a"] * MAX_TEXTS, ("a", "a"), ["東京", "\ud800"]],
    ids=lambda value: repr(value)[:30],
)
def test_what_a_provider_might_embed_is_let_through(texts: Any) -> None:
    """A space is a text, twice the same is two texts: whether that is wise is the provider's business."""
    assert read_texts(texts) == ((texts,) if isinstance(texts, str) else tuple(texts))


@given(st.text(max_size=50) | st.lists(st.text(max_size=20) | st.none(), max_size=5))
@settings(deadline=None, max_examples=200)
def test_the_texts_that_are_let_through_are_kept_in_order_and_can_be_estimated(texts: Any) -> None:
    try:
        kept = read_texts(texts)
    except InvalidRequest:
        return

    assert list(kept) == ([texts] if isinstance(texts, str) else texts)
    assert input_tokens(an_embedding(*kept)) >= len(kept)


# ---- Tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "tokens"),
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
def test_the_prompt_and_the_bound_of_each_answer_are_reserved(fields: dict[str, Any], tokens: int) -> None:
    assert reserved_tokens(a_call(said("x" * 12), **fields)) == tokens


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
def test_so_are_those_of_a_body_that_is_still_json(fields: dict[str, bytes], tokens: int) -> None:
    assert reserved_tokens(Call(id="r1", model="m", fields=raw(**fields), size_bytes=12)) == tokens


def test_of_embeddings_only_what_is_sent_is_reserved() -> None:
    """Nothing is generated, whatever else the body says."""
    fields = raw(input=b'"x"', n=b"4", max_tokens=b"9")

    assert reserved_tokens(an_embedding("x" * 8, "x", dimensions=8)) == 3
    assert (
        reserved_tokens(Call(id="r1", model="m", format=Format.EMBEDDINGS, fields=fields, size_bytes=12)) == 3
    )


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (4, 4),
        (4.9, 4),
        ("4", 4),
        (" 4 ", 4),
        (0.5, 0),
        (-1, 0),
        (None, 0),
        (True, 0),
        ({}, 0),
        ([4], 0),
        ("", 0),
        ("four", 0),
        (b"4", 0),
        ("nan", 0),
        ("inf", MAX_TOKENS),
        (10**400, MAX_TOKENS),
        (msgspec.Raw(b"4"), 4),
        (msgspec.Raw(b'"4"'), 4),
        (msgspec.Raw(b"true"), 0),
        (msgspec.Raw(b"1e9"), MAX_TOKENS),
        (msgspec.Raw(b"-1e999"), MAX_TOKENS),
        (msgspec.Raw(b"9" * 101), MAX_TOKENS),
        (msgspec.Raw(b'"' + b"x" * 200 + b'"'), MAX_TOKENS),
        (msgspec.Raw(b"four"), MAX_TOKENS),
    ],
    ids=shown,
)
def test_a_count_is_read_as_servers_read_it(value: object, count: int) -> None:
    """What is too long or too large to be read counts as the most: a limit must not be talked down."""
    assert read_count(value) == count


@given(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=200).map(msgspec.Raw)
)
def test_a_count_is_never_negative_nor_above_the_most(value: object) -> None:
    assert 0 <= read_count(value) <= MAX_TOKENS


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        ("text", 1),
        (["a"], 1),
        (["a", "b", "c"], 3),
        (("a", "b"), 2),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        ([], 0),
        (None, 1),
        (7, 1),
        (msgspec.Raw(b'"[text"'), 1),
        (msgspec.Raw(b'["a"]'), 1),
        (msgspec.Raw(b'[ "a" , "b"]'), 2),
        (msgspec.Raw(b"\n[\t[1, 2], [3]]"), 2),
        (msgspec.Raw(b"[1, 2, 3]"), 1),
        (msgspec.Raw(b"[]"), 1),
        (msgspec.Raw(b"null"), 1),
    ],
    ids=shown,
)
def test_each_text_or_list_of_tokens_in_a_list_is_an_entry(value: object, entries: int) -> None:
    """A list of numbers is one text that its caller has split into tokens."""
    assert count_entries(value) == entries


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
    assert input_tokens(a_call(said(content))) == tokens


def test_all_messages_are_estimated_together() -> None:
    messages = [{"role": "user", "content": "xx"}, {"role": "user"}, {"role": "user", "content": "xx"}]

    assert input_tokens(a_call(messages)) == 1


@pytest.mark.parametrize(
    ("texts", "tokens"), [(("x",), 1), (("x" * 4,), 1), (("x" * 5,), 2), (("x", "x"), 2), (("x" * 8, "x"), 3)]
)
def test_each_text_to_be_embedded_is_estimated_by_itself(texts: tuple[str, ...], tokens: int) -> None:
    """A thousand one-letter texts are a thousand tokens, not two hundred and fifty."""
    assert input_tokens(an_embedding(*texts)) == tokens
    assert input_tokens(an_embedding(*texts)) == reserved_tokens(an_embedding(*texts))


def test_one_text_is_not_estimated_letter_by_letter() -> None:
    assert input_tokens(Call(id="r1", model="m", format=Format.EMBEDDINGS, fields={"input": "x" * 8})) == 2


@pytest.mark.parametrize("wanted", list(Format))
def test_a_body_that_came_as_bytes_is_estimated_by_its_size(wanted: Format) -> None:
    """Nothing in it is read for that."""
    call = Call(id="r1", model="m", format=wanted, fields=raw(messages=b"[", input=b"["), size_bytes=13)

    assert input_tokens(call) == 4


@given(
    content=st.none()
    | st.text(max_size=50)
    | st.lists(
        st.dictionaries(st.sampled_from(["type", "text", "image_url"]), st.text(max_size=20) | st.none())
    )
)
@settings(deadline=None, max_examples=200)
def test_messages_that_are_let_through_can_be_estimated(content: Any) -> None:
    """The estimate runs after the check and must not raise on anything the check allows."""
    check_messages(said(content))

    assert input_tokens(a_call(said(content))) >= 0
    assert reserved_tokens(a_call(said(content))) >= 256
