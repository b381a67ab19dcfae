"""What the transport costs as a client: requests per second on one core, beside a bare protocol as the floor.

The server is a process of its own that answers every request with the same bytes. Client and server are pinned to a
core each where the system allows it. Run: python bench/transport.py. Exit code 1 when the bound is broken.
"""

import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe

import uvloop

from headgate.transport import Endpoint, Limits, Transport

CONCURRENT = 16
SECONDS = 2.0
ROUNDS = 5
LEAST_PER_S = 15_000
CHUNKS = 200
STREAMS = 600
BODY = b'{"model":"bench","messages":[{"role":"user","content":"' + b"x" * 400 + b'"}]}'
ANSWER_BODY = b'{"id":"1","choices":[{"message":{"role":"assistant","content":"' + b"y" * 400 + b'"}}]}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Mon, 16 Nov 2026 12:00:00 GMT\r\n"
    b"Server: bench\r\nX-Request-Id: 0123456789\r\nContent-Length: %d\r\n\r\n%b"
    % (len(ANSWER_BODY), ANSWER_BODY)
)
LINE = b'data: {"choices":[{"delta":{"content":"word "}}]}\n\n'
STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    + (b"%x\r\n%b\r\n" % (len(LINE), LINE)) * CHUNKS
    + b"0\r\n\r\n"
)


class InstantServer(asyncio.Protocol):
    """Every request of the bench comes in one piece, so whatever arrives is one request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.transport.write(STREAM if data.startswith(b"POST /stream") else ANSWER)


class BareClient(asyncio.Protocol):
    """The floor: writes the same bytes and counts the answers by their length; parses nothing."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.answers = 0
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received >= len(ANSWER):
            self.received -= len(ANSWER)
            self.answers += 1
            self.transport.write(self.request)


def serve(pipe: Pipe, cores: set[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(InstantServer, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


async def transport_per_s(port: int) -> float:
    transport = Transport()
    endpoint = Endpoint(
        f"http://127.0.0.1:{port}/v1/chat/completions", headers=[(b"Authorization", b"Bearer key")]
    )
    limits = Limits(first_byte_s=60, idle_s=30, total_s=300)
    count, ends_at = 0, time.perf_counter() + SECONDS

    async def ask() -> None:
        nonlocal count
        while time.perf_counter() < ends_at:
            with await transport.send(endpoint, BODY, limits=limits) as response:
                assert len(await response.read()) == len(ANSWER_BODY)
            count += 1

    start = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(CONCURRENT)))
    took_s = time.perf_counter() - start
    await transport.aclose()
    return count / took_s


async def bare_per_s(port: int) -> float:
    endpoint = Endpoint(
        f"http://127.0.0.1:{port}/v1/chat/completions", headers=[(b"Authorization", b"Bearer key")]
    )
    request = b"%b%d\r\n\r\n%b" % (endpoint.start, len(BODY), BODY)
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    made = [
        await loop.create_connection(lambda: BareClient(request), "127.0.0.1", port)
        for _ in range(CONCURRENT)
    ]
    await asyncio.sleep(SECONDS)
    count, took_s = sum(client.answers for _, client in made), time.perf_counter() - start
    for transport, _ in made:
        transport.abort()
    await asyncio.sleep(0)
    return count / took_s


async def lines_per_s(port: int) -> float:
    """Lines of streamed answers, read one by one."""
    transport = Transport()
    endpoint = Endpoint(f"http://127.0.0.1:{port}/stream")
    count, start = 0, time.perf_counter()
    for _ in range(STREAMS):
        with await transport.send(endpoint, BODY) as response:
            async for _ in response.lines():
                count += 1
    took_s = time.perf_counter() - start
    await transport.aclose()
    return count / took_s


def measured(what: Callable[[int], Awaitable[float]], port: int) -> float:
    return uvloop.run(what(port))  # type: ignore[arg-type]


def main() -> int:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    mine, theirs = ({cores[0]}, {cores[1]}) if len(cores) > 1 else (set(), set())
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, theirs), daemon=True)
    server.start()
    port = here.recv()
    if mine:
        os.sched_setaffinity(0, mine)
    ours, bare, lines = [], [], []
    for _ in range(ROUNDS):
        bare.append(measured(bare_per_s, port))
        ours.append(measured(transport_per_s, port))
        lines.append(measured(lines_per_s, port))
    server.terminate()
    server.join()
    median, floor = statistics.median(ours), statistics.median(bare)
    print(
        f"transport: {median:,.0f} requests/s, {CONCURRENT} at a time (best {max(ours):,.0f}; at least {LEAST_PER_S:,})"
    )
    print(f"bare protocol: {floor:,.0f} requests/s; the transport reaches {median / floor:.0%} of it")
    print(f"streams: {statistics.median(lines):,.0f} lines/s, one stream at a time")
    return 0 if median >= LEAST_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
