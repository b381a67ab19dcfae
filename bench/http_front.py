"""What the HTTP front costs: requests per second on one core beside uvicorn's httptools server, and bytes per idle connection.

The same small ASGI application under both, on uvloop, each in a process of its own; the client in a third, on the other
core. Rounds alternate, the median counts; by the clock both fall with busy neighbours, so processor time decides.
Linux only. Run: python bench/http_front.py. Exit code 1 when a bound is broken.
"""

import asyncio
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from headgate.server.http import Asgi, HttpLimits, Server

CONCURRENT = 16
SECONDS = 2.0
ROUNDS = 5
IDLE = 5_000
MOST_IDLE_BYTES = 20 * 1024
BODY = b'{"model":"bench","messages":[{"role":"user","content":"' + b"x" * 400 + b'"}]}'
REQUESTS = {
    "small GET": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "POST as an SDK sends it": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8400\r\nAccept-Encoding: gzip, deflate\r\n"
        b"Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
        b"User-Agent: OpenAI/Python 3.49.0\r\nX-Stainless-Lang: python\r\nX-Stainless-OS: Linux\r\n"
        b"X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\nX-Stainless-Async: false\r\n"
        b"Authorization: Bearer 0123456789abcdefghijklmnopqrstuvwxyz\r\nx-stainless-read-timeout: 600\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    ),
}
ANSWER = b'{"id":"1","choices":[{"message":{"role":"assistant","content":"hello"}}]}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


async def application(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


async def serve_headgate(pipe: Pipe) -> None:
    server = Server(Asgi(application), limits=HttpLimits(header_timeout_s=60))
    pipe.send(await server.start("127.0.0.1", 0))
    await asyncio.Event().wait()


async def serve_uvicorn(pipe: Pipe) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    pipe.send(listening.getsockname()[1])
    config = uvicorn.Config(
        application, http="httptools", ws="none", lifespan="off", access_log=False, log_level="error"
    )
    await uvicorn.Server(config).serve(sockets=[listening])


def run_pinned(core: int, work: Callable[[Pipe], Awaitable[None]], pipe: Pipe) -> None:
    os.sched_setaffinity(0, {core})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(pipe))  # type: ignore[arg-type]


class Caller(asyncio.Protocol):
    """Writes the same bytes again for every answer, which it counts by the end of its body."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if data.endswith(ANSWER):
            self.answers += 1
            self.transport.write(self.request)


def processor_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(port: int, process_id: int, request: bytes) -> tuple[float, float]:
    """Requests per second by the clock, and the server's processor time for each, in microseconds."""
    loop = asyncio.get_running_loop()
    callers: list[Caller] = [
        (await loop.create_connection(lambda: Caller(request), "127.0.0.1", port))[1]
        for _ in range(CONCURRENT)
    ]
    await asyncio.sleep(0.2)
    before, started = sum(caller.answers for caller in callers), time.perf_counter()
    spent_s = -processor_s(process_id)
    await asyncio.sleep(SECONDS)
    answers, taken_s = sum(caller.answers for caller in callers) - before, time.perf_counter() - started
    spent_s += processor_s(process_id)
    for caller in callers:
        caller.transport.abort()
    return answers / taken_s, spent_s / answers * 1e6


def resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def idle_bytes(port: int, process_id: int) -> float:
    """Connections that have had one answer and wait."""
    loop = asyncio.get_running_loop()
    before = resident_bytes(process_id)
    kept = []
    for _ in range(IDLE):
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)
        await loop.sock_sendall(client, REQUESTS["small GET"])
        await loop.sock_recv(client, 4096)
        kept.append(client)
    await asyncio.sleep(0.5)
    grown = resident_bytes(process_id) - before
    for client in kept:
        client.close()
    return grown / IDLE


def main() -> int:
    context = multiprocessing.get_context("spawn")
    servers = {}
    for name, work in (("headgate", serve_headgate), ("uvicorn", serve_uvicorn)):
        ours, theirs = context.Pipe()
        process = context.Process(target=run_pinned, args=(0, work, theirs), daemon=True)
        process.start()
        servers[name] = (ours.recv(), process)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    slower = False
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for what, request in REQUESTS.items():
            rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
            for _ in range(ROUNDS):
                for name, (port, process) in servers.items():
                    rounds[name].append(runner.run(measure(port, process.pid or 0, request)))
            costs = {}
            for name, measured in rounds.items():
                rate, costs[name] = (statistics.median(column) for column in zip(*measured, strict=True))
                print(f"{what:24}  {name:9} {rate:7.0f} requests/s  {costs[name]:6.1f} µs of its core each")
            print(f"{'':24}  uvicorn costs {costs['uvicorn'] / costs['headgate']:.2f} times as much")
            slower = slower or costs["headgate"] > costs["uvicorn"]
        idle = {
            name: runner.run(idle_bytes(port, process.pid or 0)) for name, (port, process) in servers.items()
        }
    print(
        f"{'an idle connection':24}  headgate {idle['headgate']:7.0f} B    uvicorn {idle['uvicorn']:7.0f} B"
    )
    for _, process in servers.values():
        process.terminate()
        process.join()
    return int(slower or idle["headgate"] > MOST_IDLE_BYTES)


if __name__ == "__main__":
    sys.exit(main())
