"""Load that does not wait for answers: so many requests a second, whatever becomes of them, over kept connections."""

import asyncio
import time
from collections.abc import Iterator
from typing import NamedTuple

import uvloop
from http_load import ENDING, percentiles_ms

SETTLE_S = 0.5
"""At the start connections are opened and queues fill: none of that counts."""
MOST_CONNECTIONS = 2000


class Outcome(NamedTuple):
    """What a second of it brought. Times run from when a request was due, so a client held up counts, too."""

    offered_per_s: float
    served_per_s: float
    served_p50_ms: float
    served_p99_ms: float
    refused_per_s: float
    refused_p99_ms: float
    other: int
    """Neither 200 nor 429."""


class _Client(asyncio.Protocol):
    def __init__(self, crowd: "_Crowd") -> None:
        self._crowd = crowd
        self._due = 0.0
        self._status = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(high=1 << 30)

    def ask(self, due: float) -> None:
        self._due = due
        self.transport.write(self._crowd.request)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP"):
            self._status = data[9:12]
        if data.endswith(ENDING):
            self._crowd.answered(self, self._status, self._due)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._crowd.lost(self)


class _Crowd:
    """Connections that are free, and the times of the answers that count."""

    def __init__(self, port: int, request: bytes) -> None:
        self.request = request
        self.took_s: dict[bytes, list[float]] = {}
        self.counts_from = time.monotonic() + SETTLE_S
        self.offered = 0
        self._port = port
        self._free: list[_Client] = []
        self._all: set[_Client] = set()
        self._opening: set[asyncio.Task[None]] = set()

    def ask(self, due: float) -> None:
        self.offered += due >= self.counts_from
        if self._free:
            self._free.pop().ask(due)
        elif len(self._all) + len(self._opening) < MOST_CONNECTIONS:
            task = asyncio.create_task(self._ask_on_a_new_one(due))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        else:
            self._note(b"none", due)

    def answered(self, client: _Client, status: bytes, due: float) -> None:
        self._free.append(client)
        self._note(status, due)

    def lost(self, client: _Client) -> None:
        self._all.discard(client)
        if client in self._free:
            self._free.remove(client)

    def close(self) -> None:
        for client in list(self._all):
            client.transport.abort()

    def _note(self, status: bytes, due: float) -> None:
        if due >= self.counts_from:
            self.took_s.setdefault(status, []).append(time.monotonic() - due)

    async def _ask_on_a_new_one(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: _Client(self), "127.0.0.1", self._port)
        self._all.add(client)
        client.ask(due)


def open_load(port: int, request: bytes, per_s: float, seconds: float) -> Outcome:
    """Offer so many a second for so long."""
    return uvloop.run(_offer(port, request, per_s, seconds))


async def _offer(port: int, request: bytes, per_s: float, seconds: float) -> Outcome:
    crowd = _Crowd(port, request)
    for due in _dues(per_s, SETTLE_S + seconds):
        # Also when it is late: answers have to be read.
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        crowd.ask(due)
    await asyncio.sleep(SETTLE_S)
    crowd.close()
    await asyncio.sleep(0)
    served, refused = crowd.took_s.pop(b"200", []), crowd.took_s.pop(b"429", [])
    return Outcome(
        crowd.offered / seconds,
        len(served) / seconds,
        *percentiles_ms(served),
        len(refused) / seconds,
        percentiles_ms(refused)[1],
        sum(map(len, crowd.took_s.values())),
    )


def _dues(per_s: float, seconds: float) -> Iterator[float]:
    start = time.monotonic()
    return (start + number / per_s for number in range(int(per_s * seconds)))
