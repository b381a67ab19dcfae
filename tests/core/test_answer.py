"""What is read of an answer's body, when it is asked for and not before; and what commits a stream."""

import base64
import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.answer import Answer, Chunk, Reply, Usage, text_of, tool_calls_of
from headgate.core.call import MAX_TOKENS

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
OLD_CALL = {"name": "f", "arguments": "{}"}


def an_answer(message: Any, *others: Any, **changes: Any) -> Answer:
    choices = [
        {"index": index, "message": one, "finish_reason": "stop"}
        for index, one in enumerate((message, *others))
    ]
    return Answer(body=json.dumps({"object": "chat.completion", "choices": choices}).encode(), **changes)


def embedded(*items: Any) -> Answer:
    return Answer(body=json.dumps({"object": "list", "data": items}).encode())


def in_base64(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


# ---- Messages -------------------------------------------------------------------------------------------------


def test_an_answer_reads_the_message_of_its_first_choice() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "Yes.", "annotations": [], "x-new": 7}
    answer = an_answer(message, {"role": "assistant", "content": "No."})

    assert answer.message == message
    assert (answer.content, answer.refusal, answer.reasoning) == ("Yes.", None, None)
    assert list(answer.tool_calls) == []
    assert answer.json()["choices"][1]["message"]["content"] == "No."


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, None),
        ("", ""),
        ("Yes.", "Yes."),
        ([], ""),
        ([{"type": "text", "text": "Y"}, {"type": "text", "text": "es."}], "Yes."),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"text": "Yes."}], "Yes."),
        ([{"type": "text", "text": None}, {"type": "image_url"}], ""),
    ],
    ids=str,
)
def test_content_in_parts_is_their_text(content: Any, text: str | None) -> None:
    """Mistral answers in parts when it thinks."""
    assert an_answer({"content": content}).content == text_of(content) == text


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        ({}, []),
        ({"tool_calls": None}, []),
        ({"tool_calls": []}, []),
        ({"tool_calls": [CALL]}, [CALL]),
        ({"tool_calls": [CALL, CALL]}, [CALL, CALL]),
        ({"function_call": OLD_CALL}, [{"index": 0, "id": "", "type": "function", "function": OLD_CALL}]),
        ({"tool_calls": [CALL], "function_call": OLD_CALL}, [CALL]),
        ({"tool_calls": [], "function_call": {}}, []),
    ],
    ids=str,
)
def test_the_one_function_call_of_the_older_format_is_a_tool_call(message: Any, calls: list[Any]) -> None:
    assert list(an_answer(message).tool_calls) == calls
    assert list(tool_calls_of(message.get("tool_calls"), message.get("function_call"))) == calls


@pytest.mark.parametrize(
    ("message", "reasoning"),
    [
        ({}, None),
        ({"reasoning_content": "Hm."}, "Hm."),
        ({"reasoning": "Hm."}, "Hm."),
        ({"reasoning_content": "", "reasoning": "Hm."}, "Hm."),
        ({"reasoning_content": "Hm.", "reasoning": "Hm, too."}, "Hm."),
    ],
    ids=str,
)
def test_reasoning_has_two_names(message: Any, reasoning: str | None) -> None:
    assert an_answer(message).reasoning == reasoning


def test_a_refusal_is_read() -> None:
    assert an_answer({"content": None, "refusal": "I cannot."}).refusal == "I cannot."


def test_a_completion_of_the_older_kind_has_content_too() -> None:
    body = {"choices": [{"index": 0, "text": "upon a time", "finish_reason": "stop"}]}
    answer = Answer(body=json.dumps(body).encode())

    assert answer.content == "upon a time"
    assert (list(answer.tool_calls), answer.refusal, answer.reasoning) == ([], None, None)


def test_a_body_is_read_once_and_only_when_it_is_asked_for() -> None:
    """Most answers pass through and are never looked into."""
    unread = Answer(body=b"no JSON", usage=Usage(1, 2), finish_reason="stop")
    assert (unread.blank, unread.usage, unread.finish_reason) == (False, Usage(1, 2), "stop")
    with pytest.raises(msgspec.DecodeError):
        unread.message  # noqa: B018 - reading it is the point

    answer = an_answer({"content": "Yes."})
    assert answer.message is answer.message


# ---- Blank or not ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flaw", "blank"), [(None, False), ("the answer is blank", True), ("vector 0 is empty", True)]
)
def test_an_answer_with_a_flaw_cannot_be_used(flaw: str | None, blank: bool) -> None:
    assert an_answer({"content": "Yes."}, flaw=flaw).blank == blank


@pytest.mark.parametrize(
    ("chunk", "content"),
    [
        (Chunk(), False),
        (Chunk(finish_reason="stop"), False),
        (Chunk(usage=Usage(1, 1)), False),
        (Chunk(reasoning="Hm."), False),
        (Chunk(thinking_blocks=[{"type": "redacted_thinking", "data": "x"}]), False),
        (Chunk(refusal=""), False),
        (Chunk(text=" "), True),
        (Chunk(refusal="no"), True),
        (Chunk(tool_calls=[{"id": "1"}]), True),
    ],
)
def test_only_what_the_caller_is_to_read_is_content(chunk: Chunk, content: bool) -> None:
    """A space is content; thoughts, counts and reasons are not."""
    assert chunk.has_content == content


# ---- Vectors --------------------------------------------------------------------------------------------------


def test_vectors_are_in_the_order_of_the_texts_whatever_order_they_came_in() -> None:
    second, first = {"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0, -0.5]}

    assert embedded(second, first).vectors == [[1.0, -0.5], [2.0]]


@pytest.mark.parametrize("numbering", [{}, {"index": None}, {"index": 0}])
def test_vectors_without_numbers_stay_as_they_came(numbering: dict[str, Any]) -> None:
    items = [{"embedding": [float(number)], **numbering} for number in range(3)]

    assert embedded(*items).vectors == [[0.0], [1.0], [2.0]]


def test_vectors_in_base64_are_numbers_all_the_same() -> None:
    items = [{"index": 0, "embedding": in_base64(0.5, -1.25)}, {"index": 1, "embedding": [1, 2.5]}]

    assert [list(vector) for vector in embedded(*items).vectors] == [[0.5, -1.25], [1.0, 2.5]]


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=20))
def test_any_numbers_survive_base64(numbers: list[float]) -> None:
    assert [list(vector) for vector in embedded({"embedding": in_base64(*numbers)}).vectors] == [numbers]


def test_base64_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"base64|padding|character"):
        embedded({"embedding": "no base64!"}).vectors  # noqa: B018 - reading it is the point


def test_vectors_are_read_once() -> None:
    answer = embedded({"index": 0, "embedding": [1.0]})

    assert answer.vectors is answer.vectors


# ---- Usage and replies ----------------------------------------------------------------------------------------


def test_usage_adds_up() -> None:
    assert Usage(3, 4).total_tokens == 7
    assert not Usage(3, 4).estimated
    assert Usage(MAX_TOKENS, MAX_TOKENS).total_tokens == 2 * MAX_TOKENS


def test_a_reply_is_an_answer_with_its_story() -> None:
    body = an_answer({"content": "Yes."}).body
    reply = Reply(body=body, request_id="r1", model="m", upstream="u", usage=Usage(1, 2))

    assert (reply.content, reply.json()["object"]) == ("Yes.", "chat.completion")
    assert (reply.attempts, reply.replayed, reply.cost_usd) == (1, False, None)


def test_what_was_read_of_a_reply_is_not_stored_with_it() -> None:
    """Under an idempotency key the reply is kept: its body, and its story."""
    reply = Reply(
        body=an_answer({"content": "Yes."}).body, request_id="r1", model="m", upstream="u", usage=Usage(1, 2)
    )
    unread = msgspec.msgpack.encode(reply)
    assert reply.content == "Yes."

    assert msgspec.msgpack.encode(reply) == unread
    assert msgspec.msgpack.decode(unread, type=Reply) == reply
