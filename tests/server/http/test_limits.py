"""Time and numbers: who is too slow, too big or too many is told so, or cut off, and nobody else notices."""

import asyncio
import contextlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
import pytest
from server.http.front_stage import GET, House, Play, echo, eventually, post, respond, serving

from headgate.server.http import HttpLimits
from headgate.server.http.asgi import Receive, Scope, Send

QUICK = HttpLimits(header_timeout_s=0.3, body_timeout_s=0.3, idle_s=0.3, write_timeout_s=0.3, linger_s=0.1)


HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
TRICKLES = {
    "head": (b"", HEAD + b"X: y\r\n" * 40),
    "body": (HEAD + b"Content-Length: 500\r\n\r\n", b"x" * 499),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 99),
}


@pytest.mark.parametrize(("at_once", "slowly"), TRICKLES.values(), ids=TRICKLES)
def test_a_request_that_trickles_in_is_ended_in_time(play: Play, at_once: bytes, slowly: bytes) -> None:
    """A byte every 20 ms: always busy, never done."""

    async def scene() -> None:
        async with serving(echo, QUICK) as house, house.wire() as wire:
            await wire.send(at_once)
            started = time.monotonic()
            answering = asyncio.create_task(wire.answer())
            for byte in slowly:
                if answering.done():
                    break
                await wire.send(bytes([byte]))
                await asyncio.sleep(0.02)
            answer = await answering
            assert (answer.status, answer.code) == (408, "invalid_request")
            assert 0.25 < time.monotonic() - started < 1.5

    play(scene)


def test_an_application_waiting_for_a_body_that_is_late_is_told_that_the_client_is_gone(play: Play) -> None:
    messages: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            messages.append(message["type"])
            if message["type"] == "http.disconnect":
                return

    async def scene() -> None:
        async with serving(app, QUICK) as house:
            assert (await house.ask(post(b"hello")[:-1])).status == 408
            assert messages == ["http.request", "http.disconnect"]

    play(scene)


def test_a_silent_connection_is_closed_without_a_word(play: Play) -> None:
    async def scene() -> None:
        async with serving(echo, QUICK) as house:
            for first in (b"", GET):
                async with house.wire() as wire:
                    if first:
                        await wire.ask(first)
                    started = time.monotonic()
                    assert await wire.closed()
                    assert time.monotonic() - started > 0.2

    play(scene)


def test_a_connection_in_use_outlives_all_timers(play: Play) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.5)  # Longer than any limit: an application may take its time.
        await respond(send, b"ok")

    async def scene() -> None:
        # Between requests the limit on silence counts, and a busy machine may take its time.
        limits = msgspec.structs.replace(QUICK, idle_s=10.0)
        async with serving(app, limits) as house, house.wire() as wire:
            for _ in range(3):
                assert (await wire.ask(GET)).body == b"ok"

    play(scene)


def test_a_client_that_does_not_read_is_cut_off_and_the_application_told(play: Play) -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"]["headgate"].on_disconnect(lambda: told.append("gone"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not told:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        told.append("returned")

    async def scene() -> None:
        async with serving(app, QUICK) as house, house.wire() as wire:
            await wire.send(GET)
            # The test's own reader stops reading at its limit, as a slow client does.
            await eventually(lambda: told == ["gone", "returned"], 10)
            await eventually(lambda: house.server.connections == 0)

    play(scene)


def test_a_client_that_reads_slowly_but_steadily_is_not(play: Play) -> None:
    size = 12_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"x" * size)

    async def scene() -> None:
        async with serving(app, QUICK) as house, house.wire() as wire:
            await wire.send(GET)
            await wire.head()
            received = 0
            while received < size:
                received += len(await wire.reader.read(200_000))
                await asyncio.sleep(0.02)
            assert await wire.closed()  # It was idle for long when the last byte was read.

    play(scene)


def test_a_closing_connection_whose_client_does_not_read_does_not_stay(play: Play) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"x" * 20_000_000)

    async def scene() -> None:
        async with serving(app, QUICK) as house, house.wire() as wire:
            await wire.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            await eventually(lambda: house.server.connections == 0)

    play(scene)


@pytest.mark.parametrize("size", [100, 101])
def test_the_size_of_a_body_is_bounded_with_and_without_a_length(play: Play, size: int) -> None:
    async def scene() -> None:
        async with serving(echo, HttpLimits(body_bytes=100)) as house:
            expected = 200 if size == 100 else 413
            assert (await house.ask(post(b"x" * size))).status == expected
            chunks = b"".join(b"1\r\nx\r\n" for _ in range(size))
            head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            assert (await house.ask(head + chunks + b"0\r\n\r\n")).status == expected
            assert (await house.ask(head, chunks[:200], chunks[200:], b"0\r\n\r\n")).status == expected

    play(scene)


@pytest.mark.parametrize("extra", [0, 1])
def test_the_number_of_headers_is_bounded(play: Play, extra: int) -> None:
    async def scene() -> None:
        async with serving(echo, HttpLimits(headers=10)) as house:
            data = GET[:-2] + b"X: y\r\n" * (9 + extra) + b"\r\n"
            assert (await house.ask(data)).status == (431 if extra else 200)

    play(scene)


def test_a_content_encoding_is_refused_and_identity_is_none(play: Play) -> None:
    async def scene() -> None:
        async with serving(echo) as house:
            assert (await house.ask(post(b"x", "/", "Content-Encoding: identity"))).status == 200
            answer = await house.ask(post(b"x", "/", "Content-Encoding: gzip"))
            assert (answer.status, answer.code) == (415, "unsupported_media_type")

    play(scene)


def test_above_the_cap_a_connection_gets_a_bare_503(play: Play) -> None:
    async def scene() -> None:
        async with serving(echo, HttpLimits(connections=2)) as house:
            async with house.wire() as first, house.wire() as second:
                assert (await first.ask(GET)).status == (await second.ask(GET)).status == 200
                async with house.wire() as third:
                    answer = await third.answer()
                    assert (answer.status, answer.code) == (503, "too_many_connections")
                    assert 1 <= int(answer.headers["retry-after"]) <= 60
                    assert await third.closed()
                assert house.server.connections == 2
                assert (await first.ask(GET)).status == 200
            await eventually(lambda: house.server.connections == 0)
            assert (await house.ask(GET)).status == 200

    play(scene)


FEW_FILES = """
import asyncio, resource, socket, sys, time
from headgate.server.http import Asgi, Server
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
async def main():
    server = Server(Asgi(app))
    port = await server.start("127.0.0.1", 0, backlog=16)
    print(server.most_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    hoard = []
    try:
        while True:
            hoard.append(socket.socket())
    except OSError:
        hoard.pop().close()
    client = socket.create_connection(("127.0.0.1", port))
    spent, started = time.process_time(), time.monotonic()
    await asyncio.sleep(0.5)
    print("spun" if time.process_time() - spent > 0.2 else "calm")
    client.close()
    for one in hoard:
        one.close()
    await asyncio.sleep(1.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
    print((await reader.readline()).decode().strip())
    writer.close()
    await server.aclose()
if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_the_cap_stays_below_the_limit_of_files_and_running_out_of_them_is_survived(loop: str) -> None:
    """An accept that fails for want of files must not turn the loop into a spinning wheel."""
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES, loop], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["136 200", "calm", "HTTP/1.1 200 OK"], done.stderr


async def _p99_s(house: House) -> float:
    taken = []
    async with house.wire() as wire:
        for _ in range(500):
            started = time.perf_counter()
            assert (await wire.ask(post(b"hello"))).status == 200
            taken.append(time.perf_counter() - started)
    return statistics.quantiles(taken, n=100)[98]


def test_a_thousand_slow_clients_do_not_hurt_the_others(
    play: Play, figure: Callable[[str, str], None]
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096:
        pytest.skip("needs 4,096 open files")

    async def scene() -> None:
        limits = HttpLimits(header_timeout_s=2, body_timeout_s=2)
        async with serving(echo, limits) as house, contextlib.AsyncExitStack() as stack:
            alone_s = await _p99_s(house)
            slow = [await stack.enter_async_context(house.wire()) for _ in range(1000)]
            for number, wire in enumerate(slow):
                await wire.send(HEAD + b"X: " if number % 2 else HEAD + b"Content-Length: 99\r\n\r\n")
            answering = [asyncio.create_task(wire.answer()) for wire in slow]

            async def trickle() -> None:
                while True:
                    for wire, answer in zip(slow, answering, strict=True):
                        if not answer.done():
                            wire.writer.write(b"y")
                    await asyncio.sleep(0.5)

            trickling = asyncio.create_task(trickle())
            among_s = await _p99_s(house)
            answers = await asyncio.gather(*answering)
            trickling.cancel()
            assert {answer.status for answer in answers} == {408}
            figure(
                "p99 alone, and among 1,000 slow clients", f"{alone_s * 1000:.1f} ms, {among_s * 1000:.1f} ms"
            )
            assert among_s < alone_s + 0.05

    play(scene)
