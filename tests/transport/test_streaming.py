"""Bodies in pieces and in lines; the sender stopped when the reader lags, and dropped when it leaves."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from conftest import Figure
from hypothesis import given, settings
from hypothesis import strategies as st
from transport.test_answers import Keeper, Wire, in_pieces
from transport.wire_stage import OK, Peer, Play, Script, answering, closing, eventually, serving

from headgate.transport import Endpoint, Limits, Response, Transport
from headgate.transport.connection import Connection
from headgate.transport.errors import ConnectionCut, TooLarge

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_pieces_come_as_they_are_sent_and_at_once(play: Play) -> None:
    async def scene() -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def in_step(peer: Peer) -> None:
            await peer.request()
            await peer.send(CHUNKED)
            for piece in (b"one", b"two", b"three"):
                asked.clear()
                await peer.send(chunk(piece))
                await asked.wait()
            await peer.send(b"0\r\n\r\n")
            answered.set()
            await peer.gone()

        async with serving(in_step) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                got = []
                async for piece in response.chunks():
                    got.append(piece)
                    asked.set()
            assert got == [b"one", b"two", b"three"]
            await transport.aclose()

    play(scene)


def test_lines_are_lines_whatever_ends_them(play: Play) -> None:
    pieces = [
        chunk(piece) for piece in (b"data: 1\n\ndata", b": 2\r", b"\n\r\nda", b"ta: 3\n", b"\n", b"rest")
    ]

    async def scene() -> None:
        async with serving(closing(CHUNKED, *pieces, b"0\r\n\r\n")) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                lines = [line async for line in response.lines()]
            assert lines == [b"data: 1", b"", b"data: 2", b"", b"data: 3", b"", b"rest"]
            await transport.aclose()

    play(scene)


@settings(deadline=None)
@given(
    st.lists(
        st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b"")), max_size=12
    ),
    st.data(),
)
def test_lines_do_not_depend_on_the_pieces(lines: list[bytes], data: st.DataObject) -> None:
    ends = [data.draw(st.sampled_from([b"\n", b"\r\n"])) for _ in lines]
    body = b"".join(line + end for line, end in zip(lines, ends, strict=True))
    cuts = data.draw(st.sets(st.integers(1, max(1, len(body)))))

    async def read() -> list[bytes]:
        connection = Connection("peer", Keeper(), asyncio.get_running_loop())
        connection.connection_made(Wire())
        response = connection.begin(b"", Limits(idle_s=None), float("inf"))
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        for piece in in_pieces(body, cuts):
            if piece:
                connection.data_received(piece)
        got = [line async for line in response.lines()]
        connection.connection_lost(None)
        return got

    assert asyncio.run(read()) == lines


@pytest.mark.parametrize("body", [b"x" * 3000 + b"\n", b"x" * 3000, b"ok\n" + b"x" * 1001 + b"\nok\n"])
def test_a_line_without_end_is_too_large(body: bytes, play: Play) -> None:
    async def scene() -> None:
        async with serving(answering(CHUNKED + chunk(body[:700]) + chunk(body[700:]))) as server:
            transport = Transport()
            response = await transport.send(Endpoint(server.url()))
            with pytest.raises(TooLarge, match="a line of more than 1000 bytes"):
                _ = [line async for line in response.lines(max_line_bytes=1000)]
            await eventually(lambda: server.peers[0].ended, 1)
            await transport.aclose()

    play(scene)


def test_a_cut_stream_gives_what_came_and_then_says_so(play: Play) -> None:
    async def scene() -> None:
        async with serving(closing(CHUNKED + chunk(b"one\ntwo\nthr"))) as server:
            transport = Transport()
            lines = (await transport.send(Endpoint(server.url()))).lines()
            assert [await anext(lines), await anext(lines)] == [b"one", b"two"]
            with pytest.raises(ConnectionCut):
                await anext(lines)
            await transport.aclose()

    play(scene)


def test_some_pieces_may_be_read_and_then_the_rest_whole(play: Play) -> None:
    async def scene() -> None:
        async with serving(
            answering(CHUNKED + chunk(b"a") + chunk(b"b") + chunk(b"c") + b"0\r\n\r\n")
        ) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                assert await anext(response.chunks()) == b"a"
                assert await response.read() == b"bc"
            await transport.aclose()

    play(scene)


def test_a_reader_that_lags_stops_the_sender(play: Play, figure: Figure) -> None:
    """Memory is bounded by the reader's pace, not by the server's zeal."""
    total = 50_000_000

    async def torrent(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        sent = 0
        while sent < total:
            await peer.send(b"x" * 50_000)
            sent += 50_000
        await peer.gone()

    async def scene() -> None:
        async with serving(torrent) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                chunks = response.chunks()
                got = len(await anext(chunks))
                await asyncio.sleep(0.3)
                # What is sent and not read lies in the kernel's two socket buffers; ours holds one recv at most.
                stuck_bytes = server.peers[0].sent_bytes
                assert stuck_bytes < 20_000_000
                assert response._buffered_bytes < 64 * 1024 + 256 * 1024
                figure(
                    "unread bytes held by a lagging reader", f"{response._buffered_bytes:,} (below 327,680)"
                )
                await asyncio.sleep(0.1)
                assert server.peers[0].sent_bytes == stuck_bytes
                async for piece in chunks:
                    got += len(piece)
                assert got == total
            await transport.aclose()

    play(scene)


async def hanging_head(peer: Peer) -> None:
    await peer.request()
    await peer.gone()


async def hanging_body(peer: Peer) -> None:
    await peer.request()
    await peer.send(CHUNKED + chunk(b"first\n"))
    await peer.gone()


async def read_whole(response: Response) -> None:
    await response.read()


async def read_chunks(response: Response) -> None:
    async for _ in response.chunks():
        pass


async def read_lines(response: Response) -> None:
    async for _ in response.lines():
        pass


@pytest.mark.parametrize("read", [read_whole, read_chunks, read_lines])
@pytest.mark.parametrize("script", [hanging_head, hanging_body])
def test_the_server_sees_a_cancelled_caller_at_once(
    script: Script, read: Callable[[Response], Awaitable[None]], play: Play, figure: Figure
) -> None:
    """Before the first byte, within a stream, and while a whole answer is awaited."""

    async def call(transport: Transport, url: str) -> None:
        with await transport.send(Endpoint(url)) as response:
            await read(response)

    async def scene() -> None:
        seen: list[float] = []

        async def watched(peer: Peer) -> None:
            await script(peer)
            seen.append(asyncio.get_running_loop().time())

        async with serving(watched) as server:
            transport = Transport()
            task = asyncio.create_task(call(transport, server.url()))
            await eventually(lambda: len(server.peers) == 1)
            await asyncio.sleep(0.05)
            left_at = asyncio.get_running_loop().time()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually(lambda: bool(seen))
            took_ms = (seen[0] - left_at) * 1000
            assert took_ms < 1000
            figure("a cancelled caller seen by the server", f"{took_ms:.1f} ms (at most 1,000)")
            assert not transport._pools[Endpoint(server.url()).origin]._idle
            await transport.aclose()

    play(scene)


def test_leaving_a_stream_early_drops_its_connection(play: Play) -> None:
    async def scene() -> None:
        async with serving(hanging_body) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                async for line in response.lines():
                    assert line == b"first"
                    break
            await eventually(lambda: server.peers[0].ended, 1)
            await transport.aclose()

    play(scene)


def test_a_cancelled_connect_leaves_nothing_behind(play: Play) -> None:
    async def scene() -> None:
        async with serving(Peer.gone) as server:
            transport = Transport()
            for steps in range(8):
                task = asyncio.create_task(transport.send(Endpoint(server.url())))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            pool = transport._pools[Endpoint(server.url()).origin]
            await eventually(lambda: not pool._all)
            assert pool._dialing == 0
            await transport.aclose()

    play(scene)


def test_reading_after_closing_says_so(play: Play) -> None:
    async def scene() -> None:
        async with serving(hanging_body) as server:
            transport = Transport()
            response = await transport.send(Endpoint(server.url()))
            response.close()
            response.close()
            with pytest.raises(asyncio.InvalidStateError, match="closed before it was read"):
                await response.read()
            await transport.aclose()

    play(scene)


def test_an_empty_body_has_no_pieces_and_no_lines(play: Play) -> None:
    async def scene() -> None:
        async with serving(answering(b"HTTP/1.1 204 No Content\r\n\r\n", OK)) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                assert [piece async for piece in response.chunks()] == []
                assert [line async for line in response.lines()] == []
            await transport.aclose()

    play(scene)
