"""Streams of the simulated provider: pieces, gaps, cuts and stalls."""

import asyncio
import math
from typing import Any

import pytest
from providers.asking import chunks_of
from providers.simulated_stage import (
    FakeClock,
    ask,
    ask_stream,
    cancel,
    let_others_run,
    provider_with,
    read,
    send,
)

from headgate.core.answer import Chunk, Usage
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.ports.provider import Provider


async def read_into(chunks: list[Chunk], provider: Provider) -> None:
    async for chunk in chunks_of(provider, ask_stream()):
        chunks.append(chunk)  # noqa: PERF401 - what came before the end is the point


async def read_until_failure(provider: Provider) -> tuple[list[Chunk], Failure]:
    chunks: list[Chunk] = []
    with pytest.raises(ProviderFailure) as caught:
        await read_into(chunks, provider)
    return chunks, caught.value.failure


def test_a_stream_says_what_the_whole_answer_says() -> None:
    chunks = asyncio.run(read(provider_with()))
    whole = send(provider_with())

    assert "".join(chunk.text for chunk in chunks) == whole.content
    assert chunks[-2:] == [Chunk(finish_reason="stop"), Chunk(usage=whole.usage)]


def test_a_stream_is_events_in_openai_s_format() -> None:
    async def pieces() -> list[bytes]:
        provider = provider_with(answers={"hi": "ab"}, output_tokens=7)
        return [piece async for piece in provider.stream(ask_stream("hi"))]

    head = '"id":"chatcmpl-r1","object":"chat.completion.chunk","created":0,"model":"public"'
    assert b"".join(asyncio.run(pieces())).decode().split("\n\n") == [
        f'data: {{{head},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},"finish_reason":null}}]}}',
        f'data: {{{head},"choices":[{{"index":0,"delta":{{"content":"b"}},"finish_reason":null}}]}}',
        f'data: {{{head},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}',
        f'data: {{{head},"choices":[],"usage":{{"prompt_tokens":1,"completion_tokens":7,"total_tokens":8}}}}',
        "data: [DONE]",
        "",
    ]


@pytest.mark.parametrize("count", [1, 2, 8, 13])
def test_a_stream_comes_in_as_many_pieces_as_asked_for(count: int) -> None:
    *pieces, last = asyncio.run(read(provider_with(chunks=count), ask()))

    assert len(pieces) == count
    assert all(piece.has_content for piece in pieces)
    assert not last.has_content


def test_a_short_answer_comes_in_fewer_pieces() -> None:
    chunks = asyncio.run(read(provider_with(script=[{"content": "yes"}])))

    assert [chunk.text for chunk in chunks] == ["y", "e", "s", "", ""]


def test_a_blank_stream_has_no_piece_with_content() -> None:
    chunks = asyncio.run(read(provider_with(outcome="blank")))

    assert not any(chunk.has_content for chunk in chunks)
    assert [chunk.finish_reason for chunk in chunks] == ["stop", None]


def test_a_stream_has_usage_where_the_call_asks_for_it() -> None:
    assert asyncio.run(read(provider_with(), ask()))[-1] == Chunk(finish_reason="stop")


def test_a_stream_of_a_provider_that_does_not_count_has_an_estimate() -> None:
    *pieces, last = asyncio.run(read(provider_with(report_usage=False, output_tokens=99)))

    said = "".join(piece.text for piece in pieces)
    assert last.usage == Usage(2, math.ceil(len(said) / 4), estimated=True)


@pytest.mark.parametrize(
    ("options", "slept"),
    [
        ({"latency_s": 2, "chunks": 3}, [2]),
        ({"latency_s": 2, "first_token_s": 0.5, "chunks": 3}, [0.5]),
        ({"latency_s": 2, "first_token_s": 0, "chunk_gap_s": 0.25, "chunks": 3}, [0.25, 0.25]),
        ({"first_token_s": 0.5, "script": [{"latency_s": 4}], "chunks": 1}, [4]),
    ],
)
def test_first_the_time_to_the_first_token_then_the_gaps(options: dict[str, Any], slept: list[float]) -> None:
    clock = FakeClock()

    asyncio.run(read(provider_with(clock=clock, **options)))

    assert clock.sleeps == slept


@pytest.mark.parametrize(("failure_latency_s", "slept"), [(None, 2), (0.1, 0.1)])
def test_an_error_comes_instead_of_the_first_piece(failure_latency_s: float | None, slept: float) -> None:
    """Before the first piece everything can still be retried."""
    clock = FakeClock()
    provider = provider_with(
        clock=clock, outcome=429, latency_s=2, first_token_s=1, failure_latency_s=failure_latency_s
    )

    chunks, failure = asyncio.run(read_until_failure(provider))

    assert chunks == []
    assert failure.kind is FailureKind.THROTTLED
    assert clock.sleeps == [slept]


def test_a_broken_stream_raises_a_plain_error() -> None:
    with pytest.raises(RuntimeError, match="nobody foresaw"):
        asyncio.run(read(provider_with(outcome="broken")))


@pytest.mark.parametrize("after", [0, 3, 5])
def test_a_cut_stream_fails_after_its_pieces(after: int) -> None:
    provider = provider_with(outcome="cut", cut_after_chunks=after)

    chunks, failure = asyncio.run(read_until_failure(provider))

    assert len(chunks) == after
    assert all(chunk.has_content for chunk in chunks)
    assert failure.kind is FailureKind.TRANSIENT
    assert (provider.in_flight, provider.cancelled) == (0, 0)


def test_a_cut_beyond_the_last_piece_still_takes_the_end() -> None:
    chunks, _ = asyncio.run(read_until_failure(provider_with(outcome="cut", cut_after_chunks=99)))

    assert len(chunks) == 8
    assert all(chunk.finish_reason is None for chunk in chunks)


def test_a_cut_stream_uses_up_no_canned_answer() -> None:
    provider = provider_with(script=["cut"], answers=["the answer"])

    asyncio.run(read_until_failure(provider))

    assert send(provider).content == "the answer"


def test_a_stalled_stream_hangs_after_its_pieces_until_cancelled() -> None:
    provider = provider_with(outcome={"outcome": "stall", "content": "0123456789"}, chunks=10)
    chunks: list[Chunk] = []

    async def main() -> None:
        reader = asyncio.create_task(read_into(chunks, provider))
        await let_others_run()
        assert provider.in_flight == 1
        await cancel(reader)

    asyncio.run(main())

    assert [chunk.text for chunk in chunks] == ["0", "1", "2"]
    assert (provider.cancelled, provider.in_flight) == (1, 0)


def test_streams_are_scripted_with_the_other_calls() -> None:
    provider = provider_with(script=["ok", 503])

    send(provider)

    assert asyncio.run(read_until_failure(provider))[1].status == 503


def test_an_outage_stops_streams_before_they_start() -> None:
    chunks, failure = asyncio.run(read_until_failure(provider_with(outage=[(0, 5)])))

    assert chunks == []
    assert failure.status == 503
