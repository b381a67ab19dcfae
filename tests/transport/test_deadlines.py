"""Four deadlines, each with its own error, and none that counts the reader's own slowness against the server."""

import asyncio
import time
from typing import Any

import pytest
from transport.wire_stage import OK, Peer, Play, always, eventually, serving

from headgate.transport import Endpoint, Limits, Transport
from headgate.transport.errors import (
    ConnectTimedOut,
    FirstByteTimedOut,
    IdleTimedOut,
    TimedOut,
    TotalTimedOut,
)


async def ask(transport: Transport, url: str, limits: Limits) -> bytes:
    with await transport.send(Endpoint(url), limits=limits) as response:
        return await response.read()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def silent(peer: Peer) -> None:
    await peer.gone()


async def headers_only(peer: Peer) -> None:
    await peer.request()
    await peer.send(CHUNKED)
    await peer.gone()


async def half(peer: Peer) -> None:
    await peer.request()
    await peer.send(CHUNKED + b"2\r\nhi\r\n")
    await peer.gone()


async def dripping(peer: Peer) -> None:
    await peer.request()
    await peer.send(CHUNKED)
    for _ in range(200):
        await peer.send(b"1\r\nx\r\n")
        await asyncio.sleep(0.03)
    await peer.send(b"0\r\n\r\n")


CASES = {
    "no answer": (silent, Limits(first_byte_s=0.1), FirstByteTimedOut, "sent nothing for 0.1 s"),
    "headers, no body": (headers_only, Limits(first_byte_s=0.1, idle_s=5), FirstByteTimedOut, "0.1 s"),
    "silence within": (half, Limits(first_byte_s=5, idle_s=0.1), IdleTimedOut, "silent for 0.1 s"),
    "an endless drip": (
        dripping,
        Limits(first_byte_s=0.4, idle_s=0.4, total_s=0.8),
        TotalTimedOut,
        "time was up",
    ),
    "no answer in all": (silent, Limits(total_s=0.1), TotalTimedOut, "time was up"),
    "total before first byte": (silent, Limits(first_byte_s=5, total_s=0.1), TotalTimedOut, "time was up"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_deadline_ends_the_call_on_time_with_its_own_error(name: str, play: Play) -> None:
    script, limits, expected, text = CASES[name]
    bound_s = min(
        value for value in (limits.first_byte_s, limits.idle_s, limits.total_s) if value is not None
    )
    bound_s = limits.total_s if expected is TotalTimedOut and limits.total_s is not None else bound_s

    async def scene() -> None:
        async with serving(script) as server:
            transport = Transport()
            start = time.monotonic()
            with pytest.raises(expected, match=text):
                await ask(transport, server.url(), limits)
            took_s = time.monotonic() - start
            assert bound_s - 0.01 <= took_s < bound_s + 5
            await eventually(lambda: server.peers[0].ended, 10)
            await transport.aclose()

    play(scene)


def test_a_drip_that_is_never_silent_outlives_the_idle_deadline(play: Play) -> None:
    async def slow(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(16):
            await asyncio.sleep(0.05)
            await peer.send(b"1\r\nx\r\n")
        await peer.send(b"0\r\n\r\n")

    async def scene() -> None:
        async with serving(slow) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url()), limits=Limits(idle_s=0.5)) as response:
                assert await response.read() == b"x" * 16
            await transport.aclose()

    play(scene)


def test_without_a_first_byte_deadline_a_slow_model_may_think(play: Play) -> None:
    """A local model sends nothing for minutes; the idle deadline must not cut its thinking short."""

    async def thinking(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.3)
        await peer.send(OK)

    async def scene() -> None:
        async with serving(thinking) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url()), limits=Limits(idle_s=0.05)) as response:
                assert await response.read() == b"hi"
            await transport.aclose()

    play(scene)


def test_a_slow_reader_is_not_taken_for_a_silent_server(play: Play) -> None:
    """While we have stopped the sender, its silence is our doing."""

    async def torrent(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 20_000_000)
        await peer.gone()

    async def scene() -> None:
        async with serving(torrent) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url()), limits=Limits(idle_s=0.3)) as response:
                first = await anext(response.chunks())
                await asyncio.sleep(0.7)
                assert len(first) + len(await response.read()) == 20_000_000
            await transport.aclose()

    play(scene)


def test_silence_is_counted_from_when_the_reader_came_back(play: Play) -> None:
    async def scene() -> None:
        came_back = asyncio.Event()

        async def waits_for_the_reader(peer: Peer) -> None:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100002\r\n\r\n" + b"x" * 100_000)
            await came_back.wait()
            await asyncio.sleep(0.1)
            await peer.send(b"hi")
            await peer.gone()

        async with serving(waits_for_the_reader) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url()), limits=Limits(idle_s=0.5)) as response:
                await eventually(lambda: response._buffered_bytes == 100_000)
                await asyncio.sleep(0.8)
                came_back.set()
                assert len(await response.read()) == 100_002
            await transport.aclose()

    play(scene)


def test_the_total_deadline_holds_for_a_reader_that_never_comes(play: Play) -> None:
    async def torrent(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 90000000\r\n\r\n" + b"x" * 90_000_000)

    async def scene() -> None:
        async with serving(torrent) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url()), limits=Limits(total_s=0.2)) as response:
                await eventually(lambda: response._error is not None)
                with pytest.raises(TotalTimedOut):
                    await response.read()
            await transport.aclose()

    play(scene)


def test_what_arrived_before_the_silence_is_given_before_the_error(play: Play) -> None:
    async def scene() -> None:
        async with serving(half) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url()), limits=Limits(idle_s=0.05)) as response:
                await eventually(lambda: response._error is not None)
                chunks = response.chunks()
                assert await anext(chunks) == b"hi"
                with pytest.raises(IdleTimedOut):
                    await anext(chunks)
            await transport.aclose()

    play(scene)


def test_a_short_deadline_after_a_long_one_is_kept_on_the_same_connection(play: Play) -> None:
    """The timer is armed lazily; a nearer deadline must move it."""

    async def once_then_silent(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.gone()

    async def scene() -> None:
        async with serving(once_then_silent) as server:
            transport = Transport()
            endpoint = Endpoint(server.url())
            with await transport.send(endpoint, limits=Limits(first_byte_s=100, total_s=300)) as response:
                await response.read()
            start = time.monotonic()
            with pytest.raises(FirstByteTimedOut):
                await transport.send(endpoint, limits=Limits(first_byte_s=0.1))
            assert time.monotonic() - start < 1
            assert len(server.peers) == 1
            await transport.aclose()

    play(scene)


def test_a_long_deadline_after_a_short_one_is_not_cut_short(play: Play) -> None:
    async def quick_then_slow(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await asyncio.sleep(0.3)
        await peer.send(OK)

    async def scene() -> None:
        async with serving(quick_then_slow) as server:
            transport = Transport()
            endpoint = Endpoint(server.url())
            for first_byte_s in (0.1, 5.0):
                limits = Limits(first_byte_s=first_byte_s)
                with await transport.send(endpoint, limits=limits) as response:
                    assert await response.read() == b"hi"
            assert len(server.peers) == 1
            await transport.aclose()

    play(scene)


def test_requests_on_one_connection_share_a_timer() -> None:
    """Arming and cancelling timers for every request and every chunk is what makes clients slow."""

    class Counting(asyncio.SelectorEventLoop):
        armed = 0

        def call_at(self, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:  # type: ignore[override]
            self.armed += 1
            return super().call_at(*args, **kwargs)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Counting)
        async with serving(always(CHUNKED + b"1\r\nx\r\n" * 20 + b"0\r\n\r\n")) as server:
            transport = Transport()
            await ask(transport, server.url(), Limits())
            before = loop.armed
            for _ in range(100):
                await ask(transport, server.url(), Limits(first_byte_s=60, idle_s=30, total_s=300))
            armed = loop.armed - before
            await transport.aclose()
        return armed

    with asyncio.Runner(loop_factory=Counting) as runner:
        assert runner.run(main()) <= 2


def test_a_tls_handshake_that_never_comes_ends_at_the_connect_deadline(play: Play) -> None:
    async def scene() -> None:
        async with serving(silent) as server:
            transport = Transport()
            start = time.monotonic()
            with pytest.raises(ConnectTimedOut, match="did not take a connection in time"):
                await transport.send(
                    Endpoint(f"https://127.0.0.1:{server.port}/"), limits=Limits(connect_s=0.2)
                )
            assert 0.15 < time.monotonic() - start < 1.2
            await transport.aclose()

    play(scene)


def test_a_name_server_that_never_answers_ends_at_the_connect_deadline(play: Play) -> None:
    async def lost(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    async def scene() -> None:
        transport = Transport(resolve=lost)
        with pytest.raises(ConnectTimedOut, match=r"the name slow\.example could not be looked up in time"):
            await transport.send(Endpoint("http://slow.example/"), limits=Limits(connect_s=0.1))
        await transport.aclose()

    play(scene)


def test_every_timeout_is_marked_as_one() -> None:
    kinds = [ConnectTimedOut, FirstByteTimedOut, IdleTimedOut, TotalTimedOut]
    assert all(issubclass(kind, TimedOut) and kind("x").failure.timed_out for kind in kinds)
