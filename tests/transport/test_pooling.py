"""Connections: when one is used again, when never, how many there are, and that none is left."""

import asyncio
import contextlib
import socket

import pytest
from transport.certificates import Certificates
from transport.wire_stage import OK, Peer, Play, always, answering, eventually, serving

from headgate.transport import Endpoint, Limits, Transport
from headgate.transport.errors import ConnectionCut, ConnectTimedOut, TransportClosed

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def ask(transport: Transport, url: str, limits: Limits | None = None) -> bytes:
    with await transport.send(Endpoint(url), limits=limits or Limits()) as response:
        return await response.read()


def test_one_connection_serves_one_request_after_the_other(play: Play) -> None:
    async def scene() -> None:
        async with serving(always()) as server:
            transport = Transport()
            for _ in range(50):
                assert await ask(transport, server.url()) == b"hi"
            assert len(server.peers) == 1
            await transport.aclose()

    play(scene)


def test_as_many_connections_as_requests_at_a_time_and_no_more(play: Play) -> None:
    async def scene() -> None:
        async with serving(always()) as server:
            transport = Transport()
            for _ in range(5):
                assert await asyncio.gather(*(ask(transport, server.url()) for _ in range(8))) == [b"hi"] * 8
            assert len(server.peers) == 8
            await transport.aclose()

    play(scene)


def test_an_answer_that_arrived_whole_frees_its_connection_before_it_is_read(play: Play) -> None:
    async def scene() -> None:
        async with serving(always()) as server:
            transport = Transport()
            responses = []
            for _ in range(3):
                responses.append(await transport.send(Endpoint(server.url())))
                await eventually(lambda: responses[-1]._complete)
            assert [await response.read() for response in responses] == [b"hi"] * 3
            assert len(server.peers) == 1
            await transport.aclose()

    play(scene)


DIRTY = {
    "a second answer": OK + OK,
    "junk": OK + b"junk",
    "junk after chunks": CHUNKED + b"0\r\n\r\njunk",
    "connection: close": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
}


@pytest.mark.parametrize("name", DIRTY)
def test_a_connection_that_is_not_clean_is_not_used_again(name: str, play: Play) -> None:
    """Bytes nobody asked for would be taken for the next caller's answer."""

    async def scene() -> None:
        async with serving(answering(DIRTY[name], OK)) as server:
            transport = Transport()
            for _ in range(3):
                with await transport.send(Endpoint(server.url())) as response:
                    assert response.status == 200
                    await response.read()
            assert len(server.peers) == 3
            await transport.aclose()

    play(scene)


def test_bytes_that_come_later_unasked_end_an_idle_connection(play: Play) -> None:
    async def talkative(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(0.02)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
        await peer.gone()

    async def scene() -> None:
        async with serving(talkative) as server:
            transport = Transport()
            assert await ask(transport, server.url()) == b"hi"
            await asyncio.sleep(0.1)
            assert await ask(transport, server.url()) == b"hi"
            assert len(server.peers) == 2
            await transport.aclose()

    play(scene)


def test_unasked_bytes_the_loop_has_not_seen_yet_end_an_idle_connection_too(play: Play) -> None:
    """The check asks the kernel: the event loop may look only after the next request was written."""

    async def scene() -> None:
        async with serving(answering(OK)) as server:
            transport = Transport()
            assert await ask(transport, server.url()) == b"hi"
            sock = server.peers[0].writer.get_extra_info("socket")
            with contextlib.closing(sock.dup()) as raw:
                raw.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
            assert await ask(transport, server.url()) == b"hi"
            assert len(server.peers) == 2
            await transport.aclose()

    play(scene)


@pytest.mark.parametrize("noticed_s", [0.0, 0.02])
def test_a_connection_the_server_closed_while_idle_is_replaced_unnoticed(
    noticed_s: float, play: Play
) -> None:
    """Whether the event loop has noticed already, or only the kernel knows."""

    async def scene() -> None:
        async with serving(answering(OK)) as server:
            transport = Transport()
            for _ in range(10):
                assert await ask(transport, server.url()) == b"hi"
                with contextlib.closing(server.peers[-1].writer.get_extra_info("socket").dup()) as raw:
                    raw.shutdown(socket.SHUT_WR)
                if noticed_s:
                    await asyncio.sleep(noticed_s)
            assert len(server.peers) == 10
            await transport.aclose()

    play(scene)


def test_a_request_written_to_a_connection_that_then_ends_is_not_sent_again(play: Play) -> None:
    """It may have been carried out: a doubled POST costs twice. The owner of retries decides."""
    received: list[bytes] = []

    async def drops_the_second(peer: Peer) -> None:
        received.append(await peer.request())
        await peer.send(OK)
        received.append(await peer.request())

    async def scene() -> None:
        received.clear()
        async with serving(drops_the_second) as server:
            transport = Transport()
            assert await ask(transport, server.url()) == b"hi"
            with pytest.raises(ConnectionCut, match="before it answered"):
                await ask(transport, server.url())
            assert len(received) == 2
            assert len(server.peers) == 1
            await transport.aclose()

    play(scene)


def test_an_answer_that_comes_before_the_request_is_written_out_ends_the_connection(play: Play) -> None:
    async def refuses_early(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await peer.gone()

    async def scene() -> None:
        async with serving(refuses_early) as server:
            transport = Transport()
            with await transport.send(Endpoint(server.url()), b"x" * 30_000_000) as response:
                assert (response.status, await response.read()) == (413, b"no")
            assert not transport._pools[Endpoint(server.url()).origin]._idle
            await transport.aclose()

    play(scene)


def test_a_tls_connection_closed_while_idle_is_replaced_unnoticed(certs: Certificates, play: Play) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)

    async def scene() -> None:
        async with serving(once, tls=certs.server) as server:
            transport = Transport(ca_file=certs.ca_file)
            for _ in range(5):
                assert await ask(transport, server.url()) == b"hi"
                await asyncio.sleep(0.02)
            assert len(server.peers) == 5
            await transport.aclose()

    play(scene)


def test_idle_connections_close_after_a_while(play: Play) -> None:
    async def scene() -> None:
        async with serving(answering(OK)) as server:
            transport = Transport(keep_alive_s=0.1)
            await ask(transport, server.url(), Limits(first_byte_s=50, total_s=100))
            pool = transport._pools[Endpoint(server.url()).origin]
            took_s = await eventually(lambda: not pool._all)
            assert not pool._idle
            assert 0.05 < took_s < 1
            await eventually(lambda: server.peers[0].ended, 1)
            await transport.aclose()

    play(scene)


def test_no_more_connections_than_allowed_and_everybody_gets_a_turn(play: Play) -> None:
    async def slowly(peer: Peer) -> None:
        while True:
            await peer.request()
            await asyncio.sleep(0.005)
            await peer.send(OK)

    async def scene() -> None:
        async with serving(slowly) as server:
            transport = Transport(connections_per_origin=3)
            assert await asyncio.gather(*(ask(transport, server.url()) for _ in range(30))) == [b"hi"] * 30
            assert len(server.peers) == 3
            await transport.aclose()

    play(scene)


def test_waiting_for_a_connection_is_bounded_by_the_connect_deadline(play: Play) -> None:
    async def scene() -> None:
        async with serving(Peer.gone) as server:
            transport = Transport(connections_per_origin=1)
            holder = asyncio.create_task(ask(transport, server.url()))
            await eventually(lambda: len(server.peers) == 1)
            with pytest.raises(ConnectTimedOut, match=r"all 1 connections to .* were busy"):
                await ask(transport, server.url(), Limits(connect_s=0.1))
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)
            await transport.aclose()

    play(scene)


def test_a_waiter_that_leaves_takes_nobodys_turn_along(play: Play) -> None:
    """Cancel waiters at every moment around a hand-over: those who stay must all be served."""

    async def scene() -> None:
        async with serving(always()) as server:
            transport = Transport(connections_per_origin=1)
            for steps in range(12):
                tasks = [asyncio.create_task(ask(transport, server.url())) for _ in range(6)]
                for _ in range(steps):
                    await asyncio.sleep(0)
                for task in tasks[1::2]:
                    task.cancel()
                done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
                assert done[::2] == [b"hi"] * 3
            await transport.aclose()

    play(scene)


def test_a_failed_connection_lets_the_next_in_line_try(play: Play) -> None:
    async def scene() -> None:
        answers = iter([["127.0.0.9"], ["127.0.0.1"], ["127.0.0.1"]])

        async def resolve(host: str, port: int) -> list[str]:
            await asyncio.sleep(0.01)
            return next(answers)

        async with serving(always()) as server:
            transport = Transport(connections_per_origin=1, resolve=resolve)
            url = server.url(host="name.example")
            first, second = await asyncio.gather(
                ask(transport, url), ask(transport, url), return_exceptions=True
            )
            assert isinstance(first, Exception)
            assert second == b"hi"
            await transport.aclose()

    play(scene)


def test_closing_ends_everything_and_takes_nothing_new(play: Play) -> None:
    async def scene() -> None:
        async with serving(answering(OK)) as server:
            transport = Transport(connections_per_origin=2)
            await ask(transport, server.url())
            busy = [asyncio.create_task(ask(transport, server.url())) for _ in range(4)]
            await eventually(lambda: len(server.peers) == 2)
            await transport.aclose()
            done = await asyncio.wait_for(asyncio.gather(*busy, return_exceptions=True), 1)
            assert [type(error) for error in done if error != b"hi"].count(TransportClosed) >= 3
            with pytest.raises(TransportClosed, match="going away"):
                await ask(transport, server.url())
            with pytest.raises(TransportClosed, match="going away"):
                await ask(transport, "http://127.0.0.1:1/")
            await eventually(lambda: all(peer.ended for peer in server.peers), 1)

    play(scene)
