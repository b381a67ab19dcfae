"""Clients that only take up room: idle ones between two requests, and those who never finish their headers."""

import asyncio
import contextlib
import socket
import time
from multiprocessing.synchronize import Event

import uvloop
from processes import resident_bytes

LORIS_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
LORIS_LINE = b"X-a: b\r\n"
LORIS_EVERY_S = 1.0


def idle_bytes(port: int, pid: int, connections: int) -> float:
    """What a connection costs the process that has answered it once and waits for more."""
    before = resident_bytes(pid)
    clients = []
    for _ in range(connections):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        client.recv(4096)
        clients.append(client)
    time.sleep(0.5)
    grown = resident_bytes(pid) - before
    for client in clients:
        client.close()
    return grown / connections


def lorises(port: int, connections: int, here: Event, go: Event) -> None:
    """A header line now and then, for ever; who is thrown out comes back. Says when all are `here`, until told to `go`."""
    uvloop.run(_lorises(port, connections, here, go))


async def _lorises(port: int, connections: int, here: Event, go: Event) -> None:
    arrived = 0

    async def loris(number: int) -> None:
        nonlocal arrived
        await asyncio.sleep(number / connections)
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                arrived += 1
                writer.write(LORIS_HEAD)
                while not writer.is_closing():
                    await asyncio.sleep(LORIS_EVERY_S)
                    writer.write(LORIS_LINE)

    tasks = [asyncio.create_task(loris(number)) for number in range(connections)]
    while not go.is_set():
        await asyncio.sleep(0.1)
        if arrived >= connections:
            here.set()
    for task in tasks:
        task.cancel()
