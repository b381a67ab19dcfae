"""What the transport costs as a client: requests per second on one core, beside a bare protocol as the floor.

The server is a process of its own that answers every request with the same bytes. Client and server are pinned to a
core each where the system allows it. The second figure of each line counts the client's own processor time, which
a busy neighbour disturbs less. Run: python bench/transport.py. Exit code 1 when the bound is broken.
"""

import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection as Pipe
from typing import NamedTuple

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


class Pace(NamedTuple):
    """Requests per second by the clock, and per second of the client's own processor time."""

    per_s: float
    per_cpu_s: float

    @classmethod
    def of(cls, count: int, start: tuple[float, float]) -> "Pace":
        return cls(count / (time.perf_counter() - start[0]), count / (time.process_time() - start[1]))

    def __str__(self) -> str:
        return f"{self.per_s:,.0f} requests/s ({self.per_cpu_s:,.0f} per second of processor time)"


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


async def transport_pace(port: int) -> Pace:
    transport = Transport()
    endpoint = Endpoint(
        f"http://127.0.0.1:{port}/v1/chat/completions", headers=[(b"Authorization", b"Bearer key")]
    )
    limits = Limits(first_byte_s=60, idle_s=30, total_s=300)
    count, start = 0, now()

    async def ask() -> None:
        nonlocal count
        while time.perf_counter() < start[0] + SECONDS:
            with await transport.send(endpoint, BODY, limits=limits) as response:
                assert len(await response.read()) == len(ANSWER_BODY)
            count += 1

    await asyncio.gather(*(ask() for _ in range(CONCURRENT)))
    pace = Pace.of(count, start)
    await transport.aclose()
    return pace


async def bare_pace(port: int) -> Pace:
    endpoint = Endpoint(
        f"http://127.0.0.1:{port}/v1/chat/completions", headers=[(b"Authorization", b"Bearer key")]
    )
    request = b"%b%d\r\n\r\n%b" % (endpoint.start, len(BODY), BODY)
    loop = asyncio.get_running_loop()
    start = now()
    made = [
        await loop.create_connection(lambda: BareClient(request), "127.0.0.1", port)
        for _ in range(CONCURRENT)
    ]
    await asyncio.sleep(SECONDS)
    pace = Pace.of(sum(client.answers for _, client in made), start)
    for transport, _ in made:
        transport.abort()
    await asyncio.sleep(0)
    return pace


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


def median(paces: list[Pace]) -> Pace:
    return Pace(
        statistics.median(pace.per_s for pace in paces), statistics.median(pace.per_cpu_s for pace in paces)
    )


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
        bare.append(uvloop.run(bare_pace(port)))
        ours.append(uvloop.run(transport_pace(port)))
        lines.append(uvloop.run(lines_per_s(port)))
    server.terminate()
    server.join()
    found, floor = median(ours), median(bare)
    print(f"transport, {CONCURRENT} at a time: {found}, at least {LEAST_PER_S:,} by the clock")
    print(f"bare protocol: {floor}; the transport reaches {found.per_s / floor.per_s:.0%} of it")
    print(f"streams: {statistics.median(lines):,.0f} lines/s, one stream at a time")
    return 0 if found.per_s >= LEAST_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
