"""Streams of Bedrock: binary frames in, chunks out, whatever the network does to them."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from providers.bedrock_stage import ask, stage, streamed
from providers.stubs.bedrock import Reply, event, events, exception, frame, refusal, text_events, whole

from headgate.core.answer import Chunk, Usage
from headgate.core.call import Call
from headgate.core.errors import ProviderFailure
from headgate.core.failures import FailureKind
from headgate.core.timeouts import Timeouts
from headgate.formats.converse import answers
from headgate.formats.converse.answers import EventReader
from headgate.formats.sse import Events
from headgate.providers.bedrock.aws import Frame, Frames
from headgate.providers.bedrock.errors import check_event


def block_start(index: int, **tool: Any) -> bytes:
    return event("contentBlockStart", {"start": {"toolUse": tool}, "contentBlockIndex": index})


def delta(index: int, **piece: Any) -> bytes:
    return event("contentBlockDelta", {"delta": piece, "contentBlockIndex": index})


def block_stop(index: int) -> bytes:
    return event("contentBlockStop", {"contentBlockIndex": index})


def data_of(reply: Reply, call: Call) -> list[bytes]:
    """The data of all events of a stream."""

    async def scene() -> bytes:
        async with stage(reply) as (_, provider):
            return b"".join([piece async for piece in provider.stream(call)])

    reader = Events()
    return [found.data for found in (*reader.feed(asyncio.run(scene())), *reader.end())]


@pytest.mark.parametrize("piece_bytes", [1, 3, 100, 1 << 20])
def test_a_stream_in_pieces_of_any_size(piece_bytes: int) -> None:
    chunks, failure = streamed(events(*text_events("Hé", "llo"), piece_bytes=piece_bytes))

    assert failure is None
    assert chunks == [
        Chunk(text="Hé"),
        Chunk(text="llo"),
        Chunk(finish_reason="stop"),
        Chunk(usage=Usage(11, 7)),
    ]


def test_tool_calls_are_counted_by_themselves() -> None:
    """Bedrock counts all blocks, OpenAI only the calls; a call without arguments is an empty object."""
    frames = [
        event("messageStart", {"role": "assistant"}),
        delta(0, text="Let me see."),
        block_stop(0),
        block_start(1, toolUseId="t1", name="weather"),
        delta(1, toolUse={"input": '{"ci'}),
        delta(1, toolUse={"input": 'ty":"Oslo"}'}),
        block_stop(1),
        block_start(2, toolUseId="t2", name="now"),
        delta(2, toolUse={"input": ""}),
        block_stop(2),
        event("messageStop", {"stopReason": "tool_use"}),
    ]

    chunks, failure = streamed(events(*frames), ask())

    assert failure is None
    assert [dict(call) for chunk in chunks for call in chunk.tool_calls] == [
        {"index": 0, "id": "t1", "type": "function", "function": {"name": "weather", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"ci'}},
        {"index": 0, "function": {"arguments": 'ty":"Oslo"}'}},
        {"index": 1, "id": "t2", "type": "function", "function": {"name": "now", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert chunks[-1].finish_reason == "tool_calls"


def test_own_tools_and_news_make_no_chunks() -> None:
    frames = [
        block_start(1, toolUseId="t", name="nova_grounding", type="server_tool_use"),
        delta(1, toolUse={"input": "{}"}),
        block_stop(1),
        delta(2, citation={"title": "A page"}),
        event("somethingNew", {"x": 1}),
        *text_events("42"),
    ]

    chunks, failure = streamed(events(*frames))

    assert failure is None
    assert [chunk for chunk in chunks if chunk.has_content] == [Chunk(text="42")]


def test_reasoning_is_streamed_and_each_block_comes_whole_at_its_end() -> None:
    frames = [
        delta(0, reasoningContent={"text": "Hmm"}),
        delta(0, reasoningContent={"text": "… "}),
        delta(0, reasoningContent={"signature": "s1"}),
        delta(0, reasoningContent={"signature": "s2"}),
        block_stop(0),
        delta(1, reasoningContent={"redactedContent": "AAE="}),
        delta(1, reasoningContent={"redactedContent": "Av8="}),
        block_stop(1),
        delta(2, reasoningContent={"signature": "s3"}),
        block_stop(2),
        delta(3, text="42"),
        block_stop(3),
        event("messageStop", {"stopReason": "end_turn"}),
    ]

    chunks, failure = streamed(events(*frames), ask())

    assert failure is None
    assert chunks == [
        Chunk(reasoning="Hmm"),
        Chunk(reasoning="… "),
        Chunk(thinking_blocks=[{"type": "thinking", "thinking": "Hmm… ", "signature": "s1s2"}]),
        Chunk(thinking_blocks=[{"type": "redacted_thinking", "data": "AAEC/w=="}]),
        Chunk(thinking_blocks=[{"type": "thinking", "thinking": "", "signature": "s3"}]),
        Chunk(text="42"),
        Chunk(finish_reason="stop"),
    ]


def test_streamed_reasoning_without_a_signature_is_only_text() -> None:
    frames = [delta(0, reasoningContent={"text": "Hmm."}), block_stop(0), *text_events("42")]

    chunks, _ = streamed(events(*frames))

    assert [chunk.reasoning for chunk in chunks if chunk.reasoning] == ["Hmm."]
    assert not any(chunk.thinking_blocks for chunk in chunks)


def test_reasoning_without_end_is_a_broken_envelope(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is kept until it ends."""
    monkeypatch.setattr(answers, "MAX_THOUGHT_BYTES", 10)
    pieces = [{"text": "12345"}, {"redactedContent": "AAEC"}, {"signature": "67"}]
    enough = [delta(index, reasoningContent=piece) for index, piece in enumerate(pieces)]

    assert streamed(events(*enough, *text_events("42")))[1] is None
    _, failure = streamed(events(*enough, delta(9, reasoningContent={"signature": "8"})))
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


def test_a_stream_is_the_clients_events() -> None:
    pieces = [json.loads(piece) for piece in data_of(events(*text_events("Hi")), ask(stream=True))[:-1]]

    assert all(
        (piece["id"], piece["object"], piece["model"]) == ("chatcmpl-r1", "chat.completion.chunk", "public")
        for piece in pieces
    )
    assert [piece["choices"] for piece in pieces] == [
        [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        [],
    ]
    assert pieces[-1]["usage"] == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@pytest.mark.parametrize("ending", [[], text_events("")[-1:]])
def test_every_whole_stream_ends_with_its_marker_once(ending: list[bytes]) -> None:
    """Also one whose connection ends before the usage."""
    frames = [*text_events("Hi")[:-1], *ending]

    pieces = data_of(events(*frames), ask())

    assert pieces.count(b"[DONE]") == 1
    assert pieces[-1] == b"[DONE]"
    assert not any(b"usage" in piece for piece in pieces)


def test_a_stream_without_usage_has_an_estimate() -> None:
    chunks, _ = streamed(events(*text_events("Hello, world")[:-1]))

    assert chunks[-1].usage == Usage(2, 3, estimated=True)


def test_the_usage_of_a_stream_has_its_details() -> None:
    usage = {"inputTokens": 3, "outputTokens": 5, "totalTokens": 128}
    cached = {"cacheReadInputTokens": 100, "cacheWriteInputTokens": 20}
    frames = [*text_events("Hi")[:-1], event("metadata", {"usage": {**usage, **cached}})]

    pieces = data_of(events(*frames), ask(stream=True))

    assert json.loads(pieces[-2])["usage"] == {
        "prompt_tokens": 123,
        "completion_tokens": 5,
        "total_tokens": 128,
        "prompt_tokens_details": {"cached_tokens": 100},
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
    }


@pytest.mark.parametrize(
    ("kind", "expected", "ambiguous"),
    [
        ("throttlingException", FailureKind.THROTTLED, False),
        ("modelStreamErrorException", FailureKind.TRANSIENT, False),
        ("internalServerException", FailureKind.TRANSIENT, False),
        ("serviceUnavailableException", FailureKind.TRANSIENT, False),
        ("validationException", FailureKind.REJECTED, True),
        ("somethingNewException", FailureKind.TRANSIENT, False),
    ],
)
def test_an_exception_inside_a_stream_has_its_class(
    kind: str, expected: FailureKind, ambiguous: bool
) -> None:
    chunks, failure = streamed(events(*text_events("Hel")[:2], exception(kind, "it went wrong")))

    assert chunks == [Chunk(text="Hel")]
    assert failure is not None
    assert (failure.kind, failure.ambiguous) == (expected, ambiguous)
    assert failure.code == kind[0].upper() + kind[1:]
    assert "it went wrong" in failure.message


def test_an_error_frame_has_its_class() -> None:
    headers = {":message-type": "error", ":error-code": "InternalFailure", ":error-message": "it broke"}

    _, failure = streamed(events(frame(headers, b"")))

    assert failure is not None
    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "InternalFailure")
    assert "it broke" in failure.message


def test_output_that_bedrock_could_not_read_is_invalid_in_a_stream_too() -> None:
    _, failure = streamed(events(*text_events("{", stop="malformed_tool_use")))

    assert failure is not None
    assert failure.kind is FailureKind.INVALID_OUTPUT


@pytest.mark.parametrize("count", range(4))
def test_a_stream_without_its_end_is_cut(count: int) -> None:
    """The HTTP answer is whole, the model's is not."""
    _, failure = streamed(events(*text_events("Hel")[:count]))

    assert failure is not None
    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "stream_cut")


def test_half_a_frame_is_a_cut_stream() -> None:
    _, failure = streamed(events(*text_events("Hel")[:2], text_events("lo")[1][:20]))

    assert failure is not None
    assert failure.code == "stream_cut"


def test_a_connection_that_ends_in_the_middle_is_transient() -> None:
    chunks, failure = streamed(events(*text_events("Hel")[:2], ending="cut"))

    assert chunks == [Chunk(text="Hel")]
    assert failure is not None
    assert failure.kind is FailureKind.TRANSIENT


def test_a_damaged_frame_is_a_broken_envelope() -> None:
    good, bad = text_events("Hel")[1], bytearray(text_events("lo")[1])
    bad[-6] ^= 1

    chunks, failure = streamed(events(good, bytes(bad)))

    assert chunks == [Chunk(text="Hel")]
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


def test_a_stream_of_another_type_is_a_broken_envelope() -> None:
    _, failure = streamed(whole({"hello": "there"}))

    assert failure is not None
    assert failure.code == "bad_envelope"


def test_a_stream_that_is_refused_has_the_refusals_class() -> None:
    _, failure = streamed(refusal(429, "ThrottlingException", "slow down", Retry_After="3"))

    assert failure is not None
    assert (failure.kind, failure.retry_after_s) == (FailureKind.THROTTLED, 3)


def test_a_stream_that_falls_silent_times_out() -> None:
    reply = events(*text_events("Hel")[:2], ending="hold")

    _, failure = streamed(reply, timeouts=Timeouts(idle_s=0.2))

    assert failure is not None
    assert (failure.kind, failure.timed_out) == (FailureKind.TRANSIENT, True)


def test_a_stream_that_never_begins_times_out() -> None:
    _, failure = streamed(events(ending="hold"), timeouts=Timeouts(first_token_s=0.2))

    assert failure is not None
    assert failure.timed_out


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_leaving_a_stream_closes_its_connection_at_once(how: str) -> None:
    async def read_some(provider: Any, begun: asyncio.Event) -> None:
        async with aclosing(provider.stream(ask(stream=True))) as chunks:
            async for _ in chunks:
                begun.set()
                if how == "closed":
                    return

    async def scene() -> None:
        async with stage(events(*text_events("Hel")[:2], ending="hold")) as (stub, provider):
            begun = asyncio.Event()
            reading = asyncio.create_task(read_some(provider, begun))
            await begun.wait()
            if how == "cancelled":
                reading.cancel()
            async with asyncio.timeout(1):
                await stub.left.wait()

    asyncio.run(scene())


def test_a_stream_read_to_its_end_leaves_its_connection_to_the_next() -> None:
    async def scene() -> int:
        async with stage(events(*text_events("a")), events(*text_events("b"))) as (stub, provider):
            for _ in range(2):
                assert [chunk async for chunk in provider.stream(ask(stream=True))]
            return stub.connections

    assert asyncio.run(scene()) == 1


def test_an_answer_is_whole_although_its_connection_never_ends() -> None:
    chunks, failure = streamed(events(*text_events("Hi"), ending="hold"), timeouts=Timeouts(idle_s=20))

    assert failure is None
    assert chunks[-1].usage == Usage(11, 7)


def read(reader: EventReader, found: Frame) -> None:
    check_event(found.headers, found.payload, "here")
    reader.read(found.headers.get(":event-type"), found.payload)


def damaged() -> st.SearchStrategy[bytes]:
    thought = [
        delta(0, reasoningContent={"text": "Hm"}),
        delta(0, reasoningContent={"redactedContent": "AAEC"}),
    ]
    stream = b"".join([*thought, *text_events("Hel", "lo")])

    def damage(place: int, value: int, length: int) -> bytes:
        return (stream[:place] + bytes([value]) + stream[place + 1 :])[:length]

    size = st.integers(0, len(stream))
    return st.binary(max_size=200) | st.builds(damage, size, st.integers(0, 255), size)


@settings(max_examples=300, deadline=None)
@given(damaged())
def test_no_bytes_break_the_reader(data: bytes) -> None:
    """Whatever comes, it is an answer or a failure with a class."""
    frames, reader = Frames("here"), EventReader("here")
    try:
        for found in frames.feed(data):
            read(reader, found)
        reader.end()
    except ProviderFailure as error:
        assert error.failure.kind is FailureKind.TRANSIENT  # noqa: PT017 - no failure at all is fine, too


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from([":message-type", ":event-type", "x"]), st.text(max_size=9)),
    st.binary(max_size=40),
)
def test_no_frame_breaks_the_reader(headers: dict[str, str], payload: bytes) -> None:
    reader = EventReader("here")
    kinds = ("contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata")
    for kind in (*kinds, headers.get(":event-type", "")):
        sealed = frame({**headers, ":message-type": "event", ":event-type": kind}, payload)
        try:
            for found in Frames("here").feed(sealed):
                read(reader, found)
        except ProviderFailure as error:
            assert error.failure.code == "bad_envelope"  # noqa: PT017 - as above
