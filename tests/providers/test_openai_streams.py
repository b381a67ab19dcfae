"""Streams in OpenAI's format as chunks."""

import json

import pytest
from contracts.provider_stage import SAID, a_request
from hypothesis import given
from hypothesis import strategies as st
from providers.openai_stage import chunks_of, failure_from, on_stub, streamed
from providers.stubs.openai import DONE, OpenAIStub, event, events, stream, words
from providers.stubs.scripted import HANG

from headgate.core.errors import ProviderFailure
from headgate.core.failures import FailureKind
from headgate.core.messages import Chunk, Usage
from headgate.providers.openai import OpenAIProvider
from headgate.providers.openai import provider as provider_module
from headgate.providers.openai.errors import ErrorReader
from headgate.providers.openai.streams import StreamReader

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
    reader = StreamReader(ErrorReader("http://host"))
    return [*reader.feed(data), *reader.end()]


def test_a_stream_asks_for_its_usage_and_may_be_told_otherwise() -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> list[object]:
        await chunks_of(provider)
        await chunks_of(provider, a_request(stream_options={"include_usage": False}, stream=False))
        return [(asked.body["stream"], asked.body["stream_options"]) for asked in stub.requests]

    told = on_stub(act, stream(events(*words())))

    assert told == [(True, {"include_usage": True}), (True, {"include_usage": False})]


def test_only_what_says_something_becomes_a_chunk() -> None:
    chunks = on_stub(streamed, stream([b": ping\n\n", *events(*words())]))

    assert "".join(chunk.text for chunk in chunks) == SAID
    assert [chunk.finish_reason for chunk in chunks if not chunk.text] == ["stop", None]
    assert chunks[-1] == Chunk(tool_calls=[], usage=Usage(12, 4))


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


def test_reasoning_is_no_text() -> None:
    chunks = on_stub(streamed, stream(events({"reasoning_content": "hm"}, {"content": "Yes"})))

    assert [chunk.text for chunk in chunks if chunk.has_content] == ["Yes"]


@given(st.lists(st.integers(0, 5_000), max_size=10))
def test_any_split_of_the_bytes_gives_the_same_chunks(cuts: list[int]) -> None:
    data = b"".join(events(*words(), *CALL_DELTAS)).replace(b"\n", b"\r\n")
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    reader = StreamReader(ErrorReader("http://host"))
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
        pytest.param(b'data: {"choices": [{"del', FailureKind.TRANSIENT, "bad_envelope", id="half an event"),
        pytest.param(b'data: {"choices": 7}\n\n', FailureKind.TRANSIENT, "bad_envelope", id="another shape"),
        pytest.param(b'data: {"error": {"code": 400}}\n\n', FailureKind.REJECTED, None, id="an error"),
        pytest.param(b"event: error\ndata: no\n\n", FailureKind.TRANSIENT, None, id="an error event"),
    ],
)
def test_a_broken_stream_has_its_class(broken: bytes, kind: FailureKind, code: str | None) -> None:
    with pytest.raises(ProviderFailure) as caught:
        read(event({"content": "Hi"}) + broken)

    assert (caught.value.failure.kind, caught.value.failure.code) == (kind, code)


def test_an_error_in_mid_stream_is_told_with_its_words() -> None:
    body = json.dumps(
        {"error": {"message": "CUDA out of memory", "type": "InternalServerError", "code": 500}}
    )
    reply = stream([event({"content": "Hi"}), f"data: {body}\n\n".encode(), DONE])

    failure = failure_from(streamed, reply)

    assert (failure.kind, failure.status) == (FailureKind.TRANSIENT, 500)
    assert failure.message.startswith("an error from http://127.0.0.1:")
    assert failure.message.endswith(": CUDA out of memory")


def test_a_stream_that_has_ended_frees_its_connection() -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> int:
        for _ in range(3):
            await chunks_of(provider)
        return stub.connections

    assert on_stub(act, stream(events(*words()))) == 1


def test_a_server_that_does_not_hang_up_after_done_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is whole: nobody should wait for the idle timeout to be told so."""
    monkeypatch.setattr(provider_module, "FAREWELL_S", 0.05)

    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> str:
        return "".join(chunk.text for chunk in await chunks_of(provider))

    assert on_stub(act, stream(events(*words()), ending=HANG)) == SAID
