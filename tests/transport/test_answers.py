"""Answers as they stand on the wire: framing, splits, and everything that is refused."""

import asyncio
import itertools
import socket
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport.wire_stage import OK, Peer, Play, answering, closing, eventually, serving

from headgate.transport import Endpoint, Limits, Transport
from headgate.transport.connection import Connection
from headgate.transport.errors import BadResponse, ConnectionCut, TooLarge, TransportError
from headgate.transport.limits import MAX_HEAD_BYTES, MAX_HEADERS

START = b"HTTP/1.1 200 OK\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"

WHOLE = {
    "length": (OK, 200, b"hi"),
    "empty": (START + b"Content-Length: 0\r\n\r\n", 200, b""),
    "chunked": (CHUNKED + b"2\r\nhi\r\n3;x=y\r\n yo\r\n0\r\n\r\n", 200, b"hi yo"),
    "trailers": (CHUNKED + b"2\r\nhi\r\n0\r\nX-Late: 1\r\n\r\n", 200, b"hi"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK, 200, b"hi"),
    "redirect": (b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 2\r\n\r\nhi", 302, b"hi"),
    "no reason": (b"HTTP/1.1 503\r\nContent-Length: 2\r\n\r\nhi", 503, b"hi"),
    "identity": (START + b"Content-Encoding: identity\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi"),
    "encoded error": (b"HTTP/1.1 429 X\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi", 429, b"hi"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi"),
}
REFUSED = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "bad status line": b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\nhi",
    "status below 100": b"HTTP/1.1 099 X\r\nContent-Length: 2\r\n\r\nhi",
    "bare line feeds": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
    "length and chunked": START + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": START + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "two lengths": START + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
    "the same length twice": START + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    "a list of lengths": START + b"Content-Length: 2, 2\r\n\r\nhi",
    "negative length": START + b"Content-Length: -2\r\n\r\nhi",
    "signed length": START + b"Content-Length: +2\r\n\r\nhi",
    "huge length": START + b"Content-Length: 99999999999999999999999\r\n\r\nhi",
    "no length in the length": START + b"Content-Length: \r\n\r\nhi",
    "foreign transfer encoding": START + b"Transfer-Encoding: gzip\r\n\r\nhi",
    "gzip, chunked": START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "encoded body": START + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi",
    "folded header": START + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\nhi",
    "space in a name": START + b"X : a\r\nContent-Length: 2\r\n\r\nhi",
    "null byte": START + b"X: a\0b\r\nContent-Length: 2\r\n\r\nhi",
    "chunk of endless size": CHUNKED + b"fffffffffffffffffffff\r\nhi\r\n0\r\n\r\n",
    "chunk without its end": CHUNKED + b"2\r\nhixx0\r\n\r\n",
    "chunk size of letters": CHUNKED + b"zz\r\nhi\r\n0\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw",
    "interim for ever": b"HTTP/1.1 100 Continue\r\n\r\n" * 17 + OK,
    "too many headers": START + b"X: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    "too long a header": START + b"X: " + b"y" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
    "too long a trailer": CHUNKED + b"0\r\nX: " + b"y" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
    "too many trailers": CHUNKED + b"0\r\n" + b"X: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
}
# Refused while they are still coming, so where exactly depends on the pieces.
ENDLESS = {
    "endless header": START + b"X: " + b"y" * 1_000_000,
    "endless trailer": CHUNKED + b"0\r\nX: " + b"y" * 1_000_000,
    "endless extension": CHUNKED + b"2;" + b"y" * 1_000_000,
}
CUT = {
    "before a byte": b"",
    "in the status line": b"HTTP/1.1 2",
    "in the headers": START + b"Content-Le",
    "in the body": START + b"Content-Length: 5\r\n\r\nhi",
    "in a chunk": CHUNKED + b"5\r\nhi",
    "in a chunk's size": CHUNKED + b"2\r\nhi\r\n1",
    "before the last chunk": CHUNKED + b"2\r\nhi\r\n",
    "in the trailers": CHUNKED + b"2\r\nhi\r\n0\r\nX-La",
    "after an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n",
}


class Wire(asyncio.Transport):
    """The socket's place, for feeding pieces of exactly this size."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class Keeper:
    keep_alive_s = 60.0

    def __init__(self) -> None:
        self.freed_count = 0

    def freed(self, connection: Connection) -> None:
        self.freed_count += 1

    def lost(self, connection: Connection) -> None:
        pass


async def outcome(pieces: Sequence[bytes]) -> tuple[object, ...]:
    """What a reader gets when exactly these pieces arrive and then the end, and whether the connection is kept."""
    wire, keeper = Wire(), Keeper()
    connection = Connection("peer", keeper, asyncio.get_running_loop())
    connection.connection_made(wire)
    response = connection.begin(b"", Limits(idle_s=None), float("inf"))
    for piece in pieces:
        if not wire.aborted:
            connection.data_received(piece)
    kept = keeper.freed_count, wire.aborted
    connection.eof_received()
    connection.connection_lost(None)
    try:
        await response.head_arrived()
        return response.status, response.raw_headers, await response.read(), kept
    except TransportError as error:
        return type(error), kept


def in_pieces(data: bytes, cuts: set[int]) -> list[bytes]:
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


ANY_BYTES = {
    **{name: wire for name, (wire, _, _) in WHOLE.items()},
    **REFUSED,
    **CUT,
    "until the end": START + b"\r\nhi",
}


@pytest.mark.parametrize("name", ANY_BYTES)
@settings(deadline=None)
@given(st.data())
def test_the_same_bytes_mean_the_same_however_they_are_split(name: str, data: st.DataObject) -> None:
    wire = ANY_BYTES[name]
    cuts = data.draw(st.sets(st.integers(1, max(1, len(wire) - 1)), max_size=40))
    assert asyncio.run(outcome(in_pieces(wire, cuts))) == asyncio.run(outcome([wire]))


@pytest.mark.parametrize("name", [name for name, wire in ANY_BYTES.items() if len(wire) < 2000])
def test_byte_by_byte_is_no_different(name: str) -> None:
    wire = ANY_BYTES[name]
    assert asyncio.run(outcome([wire[at : at + 1] for at in range(len(wire))])) == asyncio.run(
        outcome([wire])
    )


@pytest.mark.parametrize("name", WHOLE)
def test_whole_answers_are_read(name: str, play: Play) -> None:
    wire, status, body = WHOLE[name]

    async def scene() -> None:
        async with serving(answering(wire)) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                assert (response.status, await response.read()) == (status, body)
            await transport.aclose()

    play(scene)


def test_every_byte_in_a_packet_of_its_own(play: Play) -> None:
    wire, status, body = WHOLE["trailers"]

    async def scene() -> None:
        async with serving(closing(*(wire[at : at + 1] for at in range(len(wire))))) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                assert (response.status, await response.read()) == (status, body)
                assert "x-late" not in response.headers
            await transport.aclose()

    play(scene)


def test_an_answer_without_a_length_ends_with_its_connection(play: Play) -> None:
    async def scene() -> None:
        async with serving(closing(START + b"\r\n", b"as long ", b"as it lasts")) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                assert await response.read() == b"as long as it lasts"
            await transport.aclose()

    play(scene)


@pytest.mark.parametrize("name", [*REFUSED, *ENDLESS])
def test_what_cannot_be_trusted_is_refused_and_its_connection_dropped(name: str, play: Play) -> None:
    """A reader that guesses where an answer ends can be made to take one caller's answer for another's."""

    async def scene() -> None:
        async with serving(answering({**REFUSED, **ENDLESS}[name])) as server:
            transport = Transport()
            with pytest.raises(BadResponse, match=r"127\.0\.0\.1"):
                await read_all(transport, server.url())
            with pytest.raises(BadResponse):
                await read_all(transport, server.url())
            assert len(server.peers) == 2
            await transport.aclose()

    play(scene)


@pytest.mark.parametrize("name", CUT)
def test_a_cut_answer_is_a_cut_and_never_a_short_answer(name: str, play: Play) -> None:
    async def scene() -> None:
        async with serving(closing(CUT[name])) as server:
            transport = Transport()
            with pytest.raises(ConnectionCut, match="closed the connection"):
                await read_all(transport, server.url())
            assert len(server.peers) == 1, "a request that was written is never repeated here"
            await transport.aclose()

    play(scene)


def test_a_reset_is_a_cut_with_its_cause(play: Play) -> None:
    async def reset(peer: Peer) -> None:
        await peer.request()
        await peer.send(START + b"Content-Length: 5\r\n\r\nhi")
        sock = peer.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.writer.transport.abort()

    async def scene() -> None:
        async with serving(reset) as server:
            transport = Transport()
            with pytest.raises(ConnectionCut) as caught:
                await read_all(transport, server.url())
            assert isinstance(caught.value.__cause__, ConnectionError)
            await transport.aclose()

    play(scene)


def test_an_end_is_told_although_the_request_is_still_being_written(play: Play) -> None:
    async def stops_listening(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.write_eof()
        await asyncio.sleep(15)

    async def scene() -> None:
        async with serving(stops_listening) as server:
            transport = Transport()
            sending = transport.send(Endpoint(server.url()), b"x" * 50_000_000)
            with pytest.raises(ConnectionCut, match="before it answered"):
                await asyncio.wait_for(sending, 5)
            await transport.aclose()

    play(scene)


@pytest.mark.parametrize("framing", ["length", "chunked", "until the end"])
def test_a_body_past_the_callers_bound_is_too_large(framing: str, play: Play) -> None:
    head = {
        "length": START + b"Content-Length: 5000000\r\n\r\n",
        "chunked": CHUNKED + b"4c4b40\r\n",
        "until the end": START + b"\r\n",
    }[framing]

    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(head)
        for _ in range(500):
            await peer.send(b"x" * 10_000)

    async def scene() -> None:
        async with serving(endless) as server:
            transport = Transport()
            response = await transport.send(Endpoint(server.url()))
            with pytest.raises(TooLarge, match="more than 100000 bytes"):
                await response.read(max_bytes=100_000)
            await eventually(lambda: server.peers[0].ended, 1)
            await transport.aclose()

    play(scene)


def test_a_body_of_just_the_bound_is_fine(play: Play) -> None:
    async def scene() -> None:
        async with serving(answering(START + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                assert len(await response.read(max_bytes=100_000)) == 100_000
            await transport.aclose()

    play(scene)


def test_headers_are_found_in_any_case_and_joined(play: Play) -> None:
    wire = START + b"X-Thing: a\r\nx-thing: b\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"

    async def scene() -> None:
        async with serving(answering(wire)) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url())) as response:
                headers = response.headers
                assert headers["X-THING"] == "a, b"
                assert headers.get("retry-after") == "3"
                assert "absent" not in headers
                assert list(headers) == ["x-thing", "retry-after", "content-length"]
                assert "a, b" not in repr(headers)
            await transport.aclose()

    play(scene)


async def read_all(transport: Transport, url: str) -> bytes:
    with await transport.send(Endpoint(url)) as response:
        return await response.read()
