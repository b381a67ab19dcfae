"""OpenAI's chat completions: requests read once, answers and streams written and read, and nothing lost in between."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.answer import BLANK, Answer, Chunk, Usage
from headgate.core.call import Call, Format
from headgate.core.errors import InvalidRequest, ProviderFailure
from headgate.core.failures import FailureKind
from headgate.formats import chat
from headgate.formats.reading import NoAnswer
from headgate.formats.sse import FirstContent, Tail

HELLO: Mapping[str, Any] = {"role": "user", "content": "hello"}
TOOL_CALL = {"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
DETAILS = {"prompt_tokens_details": {"cached_tokens": 3}, "cache_read_input_tokens": 3}
COUNTS: Mapping[str, Any] = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}


def a_call(**fields: Any) -> Call:
    return Call(id="r1", model="m", fields={"messages": [HELLO], **fields}, created=1_700_000_000.9)


def as_it_came(call: Call) -> Call:
    """The same call as it comes over HTTP."""
    fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in call.fields.items()}
    return Call(id=call.id, model=call.model, fields=fields, size_bytes=100)


def completion(message: Any = None, *, finish_reason: Any = "stop", **more: Any) -> bytes:
    choice = {
        "index": 0,
        "message": {"content": "Yes."} if message is None else message,
        "finish_reason": finish_reason,
    }
    return json.dumps({"choices": [choice], "usage": COUNTS, **more}, ensure_ascii=False).encode()


def an_event(delta: Any = None, *, finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: %b\n\n" % json.dumps({"choices": [choice], **more}).encode()


def bodies_of(data: bytes) -> list[Any]:
    """The JSON of all events; the end marker as it is."""
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    return ["[DONE]" if line == b"[DONE]" else json.loads(line) for line in lines]


def chunks_of(*pieces: bytes) -> list[Chunk]:
    reader = chat.StreamReader()
    chunks = [chunk for piece in pieces for chunk in reader.feed(piece)]
    return [*chunks, *reader.end()]


# ---- Requests -------------------------------------------------------------------------------------------------


def test_a_request_is_read_alike_as_values_and_as_json() -> None:
    call = a_call(temperature=0.5, tools=[{"type": "function"}], stream_options={"include_usage": True})
    request = chat.read_request(call)

    assert list(request.messages) == [HELLO]
    assert request.params == {"temperature": 0.5, "tools": [{"type": "function"}]}
    assert chat.read_request(as_it_came(call)) == request
    assert set(call.fields) == {"messages", "temperature", "tools", "stream_options"}


def test_a_call_is_read_once() -> None:
    call = as_it_came(a_call())

    assert chat.read_request(call) is chat.read_request(call) is call.read


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [HELLO, {"content": "no role"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ],
)
@pytest.mark.parametrize("came", [False, True])
def test_what_makes_no_request_is_rejected_with_its_place(
    fields: dict[str, Any], param: str, came: bool
) -> None:
    call = Call(id="r1", model="m", fields=fields)
    with pytest.raises(InvalidRequest) as rejected:
        chat.read_request(as_it_came(call) if came else call)

    assert rejected.value.param == param


@pytest.mark.parametrize("value", [b"{", b"nul", b'"\xff"', b"[" * 100_000 + b"]" * 100_000])
def test_a_field_that_is_not_json_is_rejected(value: bytes) -> None:
    call = Call(id="r1", model="m", fields={"messages": msgspec.Raw(b"[]"), "metadata": msgspec.Raw(value)})

    with pytest.raises(InvalidRequest, match="not valid JSON"):
        chat.read_request(call)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"include_usage": True}, True),
        ({"include_usage": True, "include_obfuscation": False}, True),
        ({"include_usage": False}, False),
        ({"include_usage": "yes"}, False),
        ({"include_usage": 1}, False),
        ({}, False),
        (None, False),
        ("include_usage", False),
        ([True], False),
    ],
    ids=str,
)
def test_the_usage_of_a_stream_is_sent_only_on_request(options: Any, wanted: bool) -> None:
    call = a_call(stream_options=options)

    assert chat.wants_usage(call) == wanted
    assert chat.wants_usage(as_it_came(call)) == wanted
    assert not chat.wants_usage(a_call())


# ---- Answers, read --------------------------------------------------------------------------------------------


def test_an_answer_is_kept_byte_by_byte() -> None:
    body = b' {"x-new": 1.0e3, "choices":[ {"message":{"content":"\\u00e9 \xc3\xa9"},"finish_reason":"length"} ]}'
    answer = chat.read_answer(body)

    assert answer.body is body
    assert (answer.usage, answer.flaw, answer.finish_reason) == (None, None, "length")
    assert answer.content == "é é"


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        (COUNTS, Usage(11, 5)),
        ({"prompt_tokens": 4, "total_tokens": 4}, Usage(4, 0)),
        (None, None),
        ({}, None),
        ("many", None),
        ({"prompt_tokens": -1, "completion_tokens": 5}, None),
        ({"prompt_tokens": 1.5, "completion_tokens": 5}, None),
        ({"prompt_tokens": 10**9, "completion_tokens": 5}, None),
    ],
    ids=str,
)
def test_an_impossible_usage_is_unknown_and_the_answer_is_kept(usage: Any, read: Usage | None) -> None:
    answer = chat.read_answer(completion(usage=usage))

    assert (answer.usage, answer.blank) == (read, False)


@pytest.mark.parametrize("content", [None, "", " ", "\n\t \r", "\u00a0", [], "\f"])
@pytest.mark.parametrize("finish_reason", [None, "", "stop"])
def test_an_answer_without_content_call_or_refusal_is_blank(content: Any, finish_reason: str | None) -> None:
    answer = chat.read_answer(completion({"content": content}, finish_reason=finish_reason))

    assert (answer.blank, answer.flaw) == (True, BLANK)


@pytest.mark.parametrize("finish_reason", ["length", "content_filter", "tool_calls", "a reason of next year"])
def test_one_that_says_why_it_is_empty_is_an_answer(finish_reason: str) -> None:
    """Its tokens were used up in thinking, or a filter struck it: asking again would cost the same again."""
    assert not chat.read_answer(completion({"content": ""}, finish_reason=finish_reason)).blank


@pytest.mark.parametrize(
    "message",
    [
        {"content": "."},
        {"content": "null"},
        {"content": "\u200b"},
        {"content": [{"type": "text", "text": ""}]},
        {"content": None, "tool_calls": [TOOL_CALL]},
        {"content": None, "refusal": "I cannot."},
        {"content": "", "function_call": {"name": "f", "arguments": "{}"}},
        {"content": None, "audio": {"id": "a"}},
        {"content": "", "images": [{"type": "image_url"}]},
    ],
    ids=str,
)
def test_content_of_any_kind_is_an_answer(message: Any) -> None:
    assert not chat.read_answer(completion(message)).blank


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"content": None, "tool_calls": [], "refusal": "", "function_call": {}, "audio": None},
        {"content": "", "reasoning_content": "Hm.", "thinking_blocks": [THINKING]},
    ],
    ids=str,
)
def test_empty_fields_and_thoughts_alone_are_blank(message: Any) -> None:
    assert chat.read_answer(completion(message)).blank


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no chat completion"),
        (b"<html>Log in</html>", "no chat completion"),
        (b"[]", "no chat completion"),
        (b'{"object": "list"}', "no chat completion"),
        (b'{"choices": [{"finish_reason": "stop"}]}', "no chat completion"),
        (b'{"choices": [{"message": {"content": "\xff"}}]}', "no chat completion"),
        (b"[" * 100_000, "no chat completion"),
        (b'{"choices": []}', "holds no answer"),
        (completion(error={"message": "no"}), "is an error"),
        (completion(error="no"), "is an error"),
    ],
)
def test_a_body_that_is_none_says_why(body: bytes, says: str) -> None:
    with pytest.raises(NoAnswer, match=says):
        chat.read_answer(body)


@pytest.mark.parametrize("error", [None, "", {}, [], False])
def test_an_empty_error_is_none(error: Any) -> None:
    assert chat.read_answer(completion(error=error)).content == "Yes."


# ---- Answers, written -----------------------------------------------------------------------------------------


def test_an_answer_is_written_as_openai_does() -> None:
    answer = chat.write_answer(a_call(), content="Yes.", finish_reason="length", usage=Usage(11, 5))

    assert answer.json() == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "length"}
        ],
        "usage": COUNTS,
    }
    assert (answer.usage, answer.flaw, answer.finish_reason) == (Usage(11, 5), None, "length")


def test_all_that_a_provider_said_is_in_the_message() -> None:
    answer = chat.write_answer(
        a_call(),
        content="Yes.",
        tool_calls=(TOOL_CALL,),
        refusal="But no.",
        reasoning="Hm.",
        thinking_blocks=(THINKING, REDACTED),
        usage=Usage(11, 5),
        usage_details=DETAILS,
    )

    assert answer.message == {
        "role": "assistant",
        "content": "Yes.",
        "refusal": "But no.",
        "reasoning_content": "Hm.",
        "thinking_blocks": [THINKING, REDACTED],
        "tool_calls": [TOOL_CALL],
    }
    assert answer.json()["usage"] == {**COUNTS, **DETAILS}
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert (answer.content, answer.reasoning, answer.refusal) == ("Yes.", "Hm.", "But no.")


def test_a_missing_usage_is_estimated() -> None:
    answer = chat.write_answer(a_call(), content="x" * 9)

    assert answer.usage == Usage(2, 3, estimated=True)
    assert answer.json()["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "estimated": True,
    }
    assert chat.read_answer(answer.body).usage == answer.usage
    assert chat.estimated_usage(as_it_came(a_call()), 0) == Usage(25, 0, estimated=True)


@pytest.mark.parametrize(
    ("said", "blank"),
    [
        ({}, True),
        ({"content": ""}, True),
        ({"content": " \n\t"}, True),
        ({"content": " \n\t", "finish_reason": "stop"}, True),
        ({"refusal": ""}, True),
        ({"reasoning": "Hm.", "thinking_blocks": [THINKING]}, True),
        ({"finish_reason": "length"}, False),
        ({"content": "."}, False),
        ({"refusal": "I cannot help with that."}, False),
        ({"tool_calls": [TOOL_CALL]}, False),
        ({"content": "", "tool_calls": [TOOL_CALL]}, False),
    ],
    ids=str,
)
def test_what_is_written_is_judged_as_what_is_read(said: Any, blank: bool) -> None:
    answer = chat.write_answer(a_call(), **said)

    assert answer.blank == blank
    assert chat.read_answer(answer.body).blank == blank


@given(
    content=st.none() | st.text(max_size=20),
    reasoning=st.none() | st.text(max_size=20),
    refusal=st.none() | st.text(max_size=20),
    calls=st.lists(st.just(TOOL_CALL), max_size=2),
    blocks=st.lists(st.sampled_from([THINKING, REDACTED]), max_size=2),
    counts=st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
def test_what_is_written_reads_as_it_was(
    content: str | None,
    reasoning: str | None,
    refusal: str | None,
    calls: list[Any],
    blocks: list[Any],
    counts: tuple[int, int],
) -> None:
    answer = chat.write_answer(
        a_call(),
        content=content,
        tool_calls=calls,
        refusal=refusal,
        reasoning=reasoning,
        thinking_blocks=blocks,
        finish_reason="stop",
        usage=Usage(*counts),
    )
    read = chat.read_answer(answer.body)

    assert (read.content, read.refusal, read.reasoning) == (content, refusal, reasoning or None)
    assert (list(read.tool_calls), read.message.get("thinking_blocks", [])) == (calls, blocks)
    assert (read.usage, read.finish_reason) == (Usage(*counts), "stop")


# ---- Streams, written -----------------------------------------------------------------------------------------


def streaming(**fields: Any) -> Call:
    return a_call(stream_options={"include_usage": True}, **fields)


def test_a_stream_is_written_as_openai_does() -> None:
    writer = chat.StreamWriter(streaming())
    written = [
        writer.write(Chunk(text="Ye")),
        writer.write(Chunk(text="s.", finish_reason="stop")),
        writer.write(Chunk(usage=Usage(11, 5)), DETAILS),
        writer.end(),
    ]

    head = {
        "id": "chatcmpl-r1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
    }
    first = {"index": 0, "delta": {"role": "assistant", "content": "Ye"}, "finish_reason": None}
    second = {"index": 0, "delta": {"content": "s."}, "finish_reason": "stop"}
    assert written[2] == b""
    assert bodies_of(b"".join(written)) == [
        {**head, "choices": [first]},
        {**head, "choices": [second]},
        {**head, "choices": [], "usage": {**COUNTS, **DETAILS}},
        "[DONE]",
    ]


def test_a_chunk_that_only_counts_is_silent_and_one_without_anything_too() -> None:
    writer = chat.StreamWriter(a_call())

    assert writer.write(Chunk()) == writer.write(Chunk(usage=Usage(1, 1))) == b""
    assert writer.end() == b"data: [DONE]\n\n", "the usage is sent only on request"


def test_the_last_usage_counts_with_its_own_details() -> None:
    writer = chat.StreamWriter(streaming())
    writer.write(Chunk(usage=Usage(1, 1)), DETAILS)
    writer.write(Chunk(text="x", usage=Usage(11, 5)))
    writer.write(Chunk(text="y"))

    assert bodies_of(writer.end())[0]["usage"] == COUNTS


def test_a_missing_usage_of_a_stream_is_estimated() -> None:
    writer = chat.StreamWriter(streaming())
    for text in ("x" * 5, "x" * 4):
        writer.write(Chunk(text=text, reasoning="this is not counted"))

    usage = bodies_of(writer.end())[0]["usage"]
    assert usage == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "estimated": True}


def test_the_role_comes_with_the_first_piece_whatever_that_is() -> None:
    for chunk in (Chunk(reasoning="Hm."), Chunk(refusal=""), Chunk(finish_reason="stop"), Chunk(text="x")):
        writer = chat.StreamWriter(a_call())
        deltas = [bodies_of(writer.write(chunk))[0]["choices"][0]["delta"] for _ in range(2)]
        assert [delta.get("role") for delta in deltas] == ["assistant", None]


def test_reasoning_and_its_blocks_are_written_as_they_came() -> None:
    """A client that appends the lists has all blocks, each with its signature, in their order."""
    writer = chat.StreamWriter(a_call())
    chunks = (
        Chunk(reasoning="H"),
        Chunk(reasoning="m."),
        Chunk(thinking_blocks=[THINKING]),
        Chunk(thinking_blocks=[REDACTED]),
        Chunk(text="Yes."),
    )
    deltas = [bodies_of(writer.write(chunk))[0]["choices"][0]["delta"] for chunk in chunks]

    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert [block for delta in deltas for block in delta.get("thinking_blocks", [])] == [THINKING, REDACTED]
    assert [delta.get("content") for delta in deltas] == [None] * 4 + ["Yes."]


# ---- Streams, read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "chunk"),
    [
        (an_event({"role": "assistant", "content": "", "refusal": None}), None),
        (an_event({"content": "Yes."}), Chunk(text="Yes.")),
        (an_event({"content": " "}), Chunk(text=" ")),
        (an_event({"content": [{"type": "text", "text": "Yes."}]}), Chunk(text="Yes.")),
        (an_event({"content": [{"type": "thinking", "thinking": []}]}), None),
        (an_event({"refusal": "No."}), Chunk(refusal="No.")),
        (an_event({"tool_calls": [TOOL_CALL]}), Chunk(tool_calls=[TOOL_CALL])),
        (
            an_event({"function_call": {"name": "f"}}),
            Chunk(tool_calls=[{"index": 0, "id": "", "type": "function", "function": {"name": "f"}}]),
        ),
        (an_event({"reasoning_content": "Hm."}), Chunk(reasoning="Hm.")),
        (an_event({"reasoning": "Hm."}), Chunk(reasoning="Hm.")),
        (an_event({"reasoning": {"summary": "Hm."}}), None),
        (an_event({"thinking_blocks": [THINKING]}), Chunk(thinking_blocks=[THINKING])),
        (an_event({}, finish_reason="stop"), Chunk(finish_reason="stop")),
        (an_event({}, usage=COUNTS), Chunk(usage=Usage(11, 5))),
        (an_event({"content": "x"}, usage=None), Chunk(text="x")),
        (an_event({}, usage={"prompt_tokens": -1}), None),
        (b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":5}}\n\n', "usage"),
        (b'data: {"choices":null}\n\n', None),
        (b'data: {"choices":[{"delta":null}]}\n\n', None),
        (b'data: {"x-ping":true}\n\n', None),
        (b"data: \n\n", None),
        (b": keep-alive\n\n", None),
        (b"event: ping\n\n", None),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_event_is_a_chunk_unless_it_says_nothing(event: bytes, chunk: Chunk | str | None) -> None:
    expected = Chunk(usage=Usage(11, 5)) if chunk == "usage" else chunk

    assert chunks_of(event) == ([] if expected is None else [expected])


def test_of_several_choices_the_first_is_read() -> None:
    choices = [{"index": index, "delta": {"content": text}} for index, text in enumerate("ab")]

    assert chunks_of(b"data: %b\n\n" % json.dumps({"choices": choices}).encode()) == [Chunk(text="a")]


def test_what_follows_the_end_marker_is_of_no_interest() -> None:
    reader = chat.StreamReader()
    first = list(reader.feed(an_event({"content": "x"}) + b"data: [DONE]\n\n" + an_event({"content": "y"})))

    assert first == [Chunk(text="x")]
    assert reader.done
    assert list(reader.feed(an_event({"content": "z"}))) == []


def test_the_last_event_may_come_without_its_empty_line() -> None:
    """llama.cpp ends so."""
    reader = chat.StreamReader()
    last = an_event({}, finish_reason="stop") + b"data: [DONE]"

    assert list(reader.feed(last)) == [Chunk(finish_reason="stop")]
    assert not reader.done
    assert list(reader.end()) == []
    assert reader.done


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b'data: {"error":{"message":"no","code":429}}\n\n', FailureKind.THROTTLED),
        (b'data: {"error":{"message":"no","type":"server_error"}}\n\n', FailureKind.TRANSIENT),
        (b'event: error\ndata: {"message":"no","code":400}\n\n', FailureKind.REJECTED),
        (b"data: {\n\n", FailureKind.TRANSIENT),
        (b'data: {"choices":7}\n\n', FailureKind.TRANSIENT),
        (b"data: " + b"[" * 100_000 + b"\n\n", FailureKind.TRANSIENT),
    ],
)
def test_an_event_that_is_an_error_or_broken_is_raised_after_the_chunks_before_it(
    event: bytes, kind: FailureKind
) -> None:
    chunks = chat.StreamReader().feed(an_event({"content": "x"}) + event)

    assert next(chunks) == Chunk(text="x")
    with pytest.raises(ProviderFailure) as failed:
        next(chunks)
    assert failed.value.failure.kind is kind


CHUNKS = st.builds(
    Chunk,
    text=st.text(max_size=5),
    reasoning=st.text(max_size=5),
    thinking_blocks=st.lists(st.sampled_from([THINKING, REDACTED]), max_size=2),
    tool_calls=st.lists(st.just(TOOL_CALL), max_size=2),
    refusal=st.none() | st.text(max_size=5),
    finish_reason=st.none() | st.just("stop"),
)


def _together(chunks: Iterable[Chunk]) -> tuple[Any, ...]:
    kept = list(chunks)
    return (
        "".join(chunk.text for chunk in kept),
        "".join(chunk.reasoning for chunk in kept),
        "".join(chunk.refusal or "" for chunk in kept),
        [call for chunk in kept for call in chunk.tool_calls],
        [block for chunk in kept for block in chunk.thinking_blocks],
        [chunk.finish_reason for chunk in kept if chunk.finish_reason],
    )


@given(chunks=st.lists(CHUNKS, max_size=5), size=st.integers(1, 40), counted=st.booleans())
def test_what_is_written_reads_as_it_was_however_it_is_split(
    chunks: list[Chunk], size: int, counted: bool
) -> None:
    """And the dispatcher's own readers see its first content, its end and its usage."""
    writer = chat.StreamWriter(streaming())
    data = b"".join(map(writer.write, chunks))
    if counted:
        data += writer.write(Chunk(usage=Usage(11, 5)))
    data += writer.end()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    read = chunks_of(*pieces)

    assert _together(read) == _together(chunks)
    first, tail = FirstContent(), Tail()
    for piece in pieces:
        tail.feed(piece)
    assert any(map(first.feed, pieces)) == any(
        chunk.has_content or chunk.reasoning or chunk.thinking_blocks for chunk in chunks
    )
    tail.check_end()
    assert tail.usage == read[-1].usage
    assert not counted or tail.usage == Usage(11, 5)


# ---- Formats in calls -----------------------------------------------------------------------------------------


def test_a_chat_is_what_a_call_is_unless_it_says_otherwise() -> None:
    assert a_call().format is Format.CHAT
    assert isinstance(chat.write_answer(a_call(), content="Yes."), Answer)
