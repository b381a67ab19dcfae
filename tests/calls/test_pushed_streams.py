"""Streams that are pushed: from their first content on, pieces go to their reader at the moment they arrive."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from calls.bodies import a_stream
from providers.stubs.openai import DONE, EVENTS, OpenAIStub, error, event, events, stream, words
from providers.stubs.scripted import CUT, HANG, Reply

from headgate import wiring
from headgate.core.errors import DeadlineExceeded, StreamCut
from headgate.gateway import Gateway

PIECES: Final = events(*words())
PATIENCE_S: Final = 20.0
Act = Callable[[Gateway, OpenAIStub], Awaitable[None]]


class Reader:
    """Takes what is pushed; behind after each piece while `slow`, until it is told to go on."""

    def __init__(self, *, slow: bool = False) -> None:
        self.pieces: list[bytes] = []
        self.slow = slow
        self.go_on = asyncio.Event()

    def take(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        return self.slow

    async def caught_up(self) -> None:
        await self.go_on.wait()

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def play(act: Act, reply: Reply, **timeouts: float) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), OpenAIStub(reply) as stub:
            upstream = {
                "provider": "openai",
                "model": "m",
                "base_url": stub.url,
                "api_key": "sk-none-0123456789",
            }
            models: dict[str, Any] = {"m": {"upstreams": [upstream], "timeouts": timeouts}}
            gateway = wiring.build(wiring.read_settings({"models": models}, env={}))
            try:
                await act(gateway, stub)
                [gate] = [gate for gate in gateway.status().upstreams if gate.model == "m"]
                assert gate.available_slots == gate.total_slots, "its slot is free again"
            finally:
                await gateway.aclose()

    asyncio.run(run())


def test_every_byte_arrives_and_the_usage_is_known() -> None:
    async def act(gateway: Gateway, stub: OpenAIStub) -> None:
        reader = Reader()
        async with a_stream(gateway) as pushed:
            await pushed.pump(reader.take, reader.caught_up)
        assert reader.data == stream(PIECES).body
        assert pushed.usage is not None
        assert not pushed.usage.estimated

    play(act, stream(PIECES))


def test_a_reader_that_is_behind_stops_the_upstream() -> None:
    """Else a slow client would fill the memory."""
    long = event(content="x" * 100_000)
    many = [*PIECES[:2], *[long] * 400, *PIECES[2:]]

    async def act(gateway: Gateway, stub: OpenAIStub) -> None:
        reader = Reader(slow=True)
        async with a_stream(gateway) as pushed:
            pumping = asyncio.create_task(pushed.pump(reader.take, reader.caught_up))
            await asyncio.sleep(0.5)
            assert len(reader.data) < 8_000_000, "of 40 MB"
            reader.slow = False
            reader.go_on.set()
            await pumping
        assert reader.data == stream(many).body

    play(act, stream(many))


@pytest.mark.parametrize("pieces", [PIECES, [*PIECES[:-1], b"data: [DO", b"NE]\n\n"]])
def test_an_upstream_that_stays_on_after_the_end_is_not_waited_for(pieces: list[bytes]) -> None:
    async def act(gateway: Gateway, stub: OpenAIStub) -> None:
        reader = Reader()
        async with asyncio.timeout(10), a_stream(gateway) as pushed:
            await pushed.pump(reader.take, reader.caught_up)
        assert reader.data == b"".join(pieces)

    play(act, Reply(b"".join(pieces), headers=EVENTS, ending=HANG, piece_bytes=40), idle_s=60)


def test_an_error_before_the_end_marker_cuts_the_stream() -> None:
    """vLLM tells of an error and then ends as if all were well; some such servers keep the connection."""
    body = b"".join([*PIECES[:2], b"data: " + error(500).body + b"\n\n", DONE])

    async def act(gateway: Gateway, stub: OpenAIStub) -> None:
        reader = Reader()
        with pytest.raises(StreamCut):
            async with asyncio.timeout(10), a_stream(gateway) as pushed:
                await pushed.pump(reader.take, reader.caught_up)
        assert b"[DONE]" not in reader.data

    play(act, Reply(body, headers=EVENTS, ending=HANG), idle_s=60)


@pytest.mark.parametrize("reply", [stream(PIECES[:2], CUT), Reply(b"".join(PIECES[:2]), headers=EVENTS)])
def test_a_stream_that_ends_short_is_cut(reply: Reply) -> None:
    async def act(gateway: Gateway, stub: OpenAIStub) -> None:
        reader = Reader()
        with pytest.raises(StreamCut):
            async with a_stream(gateway) as pushed:
                await pushed.pump(reader.take, reader.caught_up)
        assert PIECES[1] in reader.data

    play(act, reply)


def test_a_silent_upstream_is_cut_after_idle_s() -> None:
    async def act(gateway: Gateway, stub: OpenAIStub) -> None:
        reader = Reader()
        with pytest.raises(StreamCut):
            async with a_stream(gateway) as pushed:
                await pushed.pump(reader.take, reader.caught_up)

    play(act, Reply(b"".join(PIECES[:2]), headers=EVENTS, ending=HANG), idle_s=0.2)


def test_the_deadline_holds_while_the_upstream_is_silent() -> None:
    async def act(gateway: Gateway, stub: OpenAIStub) -> None:
        reader = Reader()
        with pytest.raises(DeadlineExceeded):
            async with a_stream(gateway, deadline_s=0.5) as pushed:
                await pushed.pump(reader.take, reader.caught_up)
        await asyncio.wait_for(stub.left.wait(), 5)

    play(act, Reply(b"".join(PIECES[:2]), headers=EVENTS, ending=HANG))


def test_the_deadline_holds_while_the_reader_is_behind() -> None:
    """The slot is free at the deadline; the reader learns of it when it comes back."""

    async def act(gateway: Gateway, stub: OpenAIStub) -> None:
        reader = Reader(slow=True)
        async with a_stream(gateway, deadline_s=0.5) as pushed:
            pumping = asyncio.create_task(pushed.pump(reader.take, reader.caught_up))
            await asyncio.wait_for(stub.left.wait(), 5)
            reader.go_on.set()
            with pytest.raises(DeadlineExceeded):
                await pumping

    play(act, Reply(b"".join(PIECES[:2]), headers=EVENTS, ending=HANG))


def test_a_cancelled_reader_hangs_up_at_once() -> None:
    async def act(gateway: Gateway, stub: OpenAIStub) -> None:
        reader = Reader()
        pushed = a_stream(gateway)

        async def read() -> None:
            async with pushed:
                await pushed.pump(reader.take, reader.caught_up)

        reading = asyncio.create_task(read())
        while not reader.pieces:  # noqa: ASYNC110 - nothing says when
            await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.wait_for(stub.left.wait(), 5)

    play(act, Reply(b"".join(PIECES[:2]), headers=EVENTS, ending=HANG))
