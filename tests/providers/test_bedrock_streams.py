"""Streams of Bedrock: binary frames in, chunks out, whatever the network does to them."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from providers.bedrock_stage import ask, stage, streamed
from providers.stubs.bedrock import event, events, exception, frame, refusal, text_events, whole

from headgate.core.errors import ProviderFailure
from headgate.core.failures import FailureKind
from headgate.core.messages import Chunk, Usage
from headgate.core.timeouts import Timeouts
from headgate.providers.bedrock.aws import Frames
from headgate.providers.bedrock.streams import EventReader


def block_start(index: int, **tool: Any) -> bytes:
    return event("contentBlockStart", {"start": {"toolUse": tool}, "contentBlockIndex": index})


def delta(index: int, **piece: Any) -> bytes:
    return event("contentBlockDelta", {"delta": piece, "contentBlockIndex": index})


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
        event("contentBlockStop", {"contentBlockIndex": 0}),
        block_start(1, toolUseId="t1", name="weather"),
        delta(1, toolUse={"input": '{"ci'}),
        delta(1, toolUse={"input": 'ty":"Oslo"}'}),
        event("contentBlockStop", {"contentBlockIndex": 1}),
        block_start(2, toolUseId="t2", name="now"),
        delta(2, toolUse={"input": ""}),
        event("contentBlockStop", {"contentBlockIndex": 2}),
        event("messageStop", {"stopReason": "tool_use"}),
    ]

    chunks, failure = streamed(events(*frames))

    assert failure is None
    assert [dict(call) for chunk in chunks for call in chunk.tool_calls] == [
        {"index": 0, "id": "t1", "type": "function", "function": {"name": "weather", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"ci'}},
        {"index": 0, "function": {"arguments": 'ty":"Oslo"}'}},
        {"index": 1, "id": "t2", "type": "function", "function": {"name": "now", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert chunks[-1].finish_reason == "tool_calls"


def test_reasoning_own_tools_and_news_make_no_chunks() -> None:
    frames = [
        delta(0, reasoningContent={"text": "Hmm."}),
        delta(0, reasoningContent={"signature": "abc"}),
        block_start(1, toolUseId="t", name="nova_grounding", type="server_tool_use"),
        delta(1, toolUse={"input": "{}"}),
        event("contentBlockStop", {"contentBlockIndex": 1}),
        delta(2, citation={"title": "A page"}),
        event("somethingNew", {"x": 1}),
        *text_events("42"),
    ]

    chunks, failure = streamed(events(*frames))

    assert failure is None
    assert [chunk for chunk in chunks if chunk.has_content] == [Chunk(text="42")]


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
        async with aclosing(provider.stream(ask())) as chunks:
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
                assert [chunk async for chunk in provider.stream(ask())]
            return stub.connections

    assert asyncio.run(scene()) == 1


def test_an_answer_is_whole_although_its_connection_never_ends() -> None:
    chunks, failure = streamed(events(*text_events("Hi"), ending="hold"), timeouts=Timeouts(idle_s=20))

    assert failure is None
    assert chunks[-1].usage == Usage(11, 7)


def damaged() -> st.SearchStrategy[bytes]:
    stream = b"".join(text_events("Hel", "lo"))

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
            reader.read(found)
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
                reader.read(found)
        except ProviderFailure as error:
            assert error.failure.code == "bad_envelope"  # noqa: PT017 - as above
