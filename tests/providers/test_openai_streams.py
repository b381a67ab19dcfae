"""Streams in OpenAI's format as chunks."""

import json

import pytest
from contracts.provider_stage import QUESTION, SAID
from contracts.provider_stage import read as read_into
from hypothesis import given
from hypothesis import strategies as st
from providers import asking
from providers.asking import a_call
from providers.openai_stage import chunks_of, failure_from, on_stub, streamed
from providers.stubs.openai import DONE, OpenAIStub, event, events, stream, words

from headgate.core.answer import Chunk, Usage
from headgate.core.errors import ProviderFailure
from headgate.core.failures import FailureKind
from headgate.formats.chat import StreamReader
from headgate.providers.openai import OpenAIProvider

CALL_DELTAS = [
    {
        "tool_calls": [
            {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
        ]
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
]


def read(data: bytes) -> list[Chunk]:
    reader = StreamReader()
    return [*reader.feed(data), *reader.end()]


def test_a_stream_asks_for_its_usage_only_where_its_caller_does() -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> list[object]:
        await chunks_of(provider, a_call(QUESTION, stream=True))
        await chunks_of(provider, a_call(QUESTION))
        return [(asked.body["stream"], asked.body.get("stream_options")) for asked in stub.requests]

    sent = on_stub(act, stream(events(*words())))

    assert sent == [(True, {"include_usage": True}), (True, None)]


def test_only_what_says_something_becomes_a_chunk() -> None:
    chunks = on_stub(streamed, stream([b": ping\n\n", *events(*words())]))

    assert "".join(chunk.text for chunk in chunks) == SAID
    assert [chunk.finish_reason for chunk in chunks if not chunk.text] == ["stop", None]
    assert chunks[-1] == Chunk(usage=Usage(12, 4))


def test_pieces_of_tool_calls_pass_as_they_are() -> None:
    chunks = on_stub(streamed, stream(events(*CALL_DELTAS, finish_reason="tool_calls")))

    assert [chunk.tool_calls for chunk in chunks if chunk.tool_calls] == [
        delta["tool_calls"] for delta in CALL_DELTAS
    ]
    assert "tool_calls" in {chunk.finish_reason for chunk in chunks}


def test_pieces_of_a_function_call_belong_together() -> None:
    chunks = on_stub(
        streamed, stream(events({"function_call": {"name": "f"}}, {"function_call": {"arguments": "{}"}}))
    )

    pieces = [call for chunk in chunks for call in chunk.tool_calls]
    assert [(piece["index"], piece["function"]) for piece in pieces] == [
        (0, {"name": "f"}),
        (0, {"arguments": "{}"}),
    ]


def test_a_refusal_is_content() -> None:
    chunks = on_stub(streamed, stream(events({"refusal": "No"}, {"refusal": "."})))

    assert [chunk.refusal for chunk in chunks if chunk.has_content] == ["No", "."]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_a_chunk_without_content(name: str) -> None:
    chunks = on_stub(streamed, stream(events({name: "hm"}, {"content": "Yes"})))

    assert [(chunk.reasoning, chunk.text) for chunk in chunks if chunk.finish_reason is None][:2] == [
        ("hm", ""),
        ("", "Yes"),
    ]
    assert [chunk.text for chunk in chunks if chunk.has_content] == ["Yes"]


def test_thinking_blocks_pass_with_their_signatures() -> None:
    """A server in front of Anthropic's models sends them, and wants them back."""
    block = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}

    chunks = on_stub(streamed, stream(events({"thinking_blocks": [block]}, {"content": "Yes"})))

    assert [chunk.thinking_blocks for chunk in chunks if chunk.thinking_blocks] == [[block]]


@given(st.lists(st.integers(0, 5_000), max_size=10))
def test_any_split_of_the_bytes_gives_the_same_chunks(cuts: list[int]) -> None:
    data = b"".join(events(*words(), *CALL_DELTAS)).replace(b"\n", b"\r\n")
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    reader = StreamReader()
    split = [
        chunk
        for start, end in zip(edges, [*edges[1:], len(data)], strict=True)
        for chunk in reader.feed(data[start:end])
    ]

    assert [*split, *reader.end()] == read(data)


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param([event({}, finish_reason="stop")], id="without [DONE]"),
        pytest.param([event({}, finish_reason="stop"), b"data: [DONE]"], id="without the last line's end"),
        pytest.param([DONE], id="without a finish reason"),
    ],
)
def test_one_sign_of_the_end_is_enough(ending: list[bytes]) -> None:
    chunks = on_stub(streamed, stream([event({"content": "Hi"}), *ending]))

    assert [chunk.text for chunk in chunks if chunk.has_content] == ["Hi"]


def test_nothing_after_the_end_is_read() -> None:
    assert len(read(DONE + event({"content": "late"}) + b"data: {broken\n\n")) == 0


@pytest.mark.parametrize(
    ("broken", "kind", "code"),
    [
        pytest.param(b"", FailureKind.TRANSIENT, "stream_cut", id="no end"),
        pytest.param(b'data: {"choices": [{"del', FailureKind.TRANSIENT, "stream_cut", id="half an event"),
        pytest.param(b'data: {"choices": 7}\n\n', FailureKind.TRANSIENT, "bad_envelope", id="another shape"),
        pytest.param(b'data: {"error": {"code": 400}}\n\n', FailureKind.REJECTED, None, id="an error"),
        pytest.param(b"event: error\ndata: no\n\n", FailureKind.TRANSIENT, None, id="an error event"),
    ],
)
def test_a_broken_stream_has_its_class_after_what_came(
    broken: bytes, kind: FailureKind, code: str | None
) -> None:
    """Also where the last text and what is broken come in one piece."""
    came: list[Chunk] = []

    async def act(provider: OpenAIProvider, _: OpenAIStub) -> None:
        with pytest.raises(ProviderFailure) as caught:
            await read_into(asking.chunks_of(provider, a_call(stream=True)), came)
        assert (caught.value.failure.kind, caught.value.failure.code) == (kind, code)

    on_stub(act, stream([event({"content": "Hi"}), broken]))

    assert [chunk.text for chunk in came] == ["Hi"]


def test_an_error_in_mid_stream_has_its_words() -> None:
    body = json.dumps(
        {"error": {"message": "CUDA out of memory", "type": "InternalServerError", "code": 500}}
    )
    reply = stream([event({"content": "Hi"}), f"data: {body}\n\n".encode(), DONE])

    failure = failure_from(streamed, reply)

    assert (failure.kind, failure.status) == (FailureKind.TRANSIENT, 500)
    assert failure.message == "CUDA out of memory"


def test_a_stream_that_has_ended_frees_its_connection() -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> int:
        for _ in range(3):
            await chunks_of(provider)
        return stub.connections

    assert on_stub(act, stream(events(*words()))) == 1
