"""Bodies whose last byte is held back, and bodies that wait for another call: each tenant's are bounded together.

`limits.waiting_bytes` is 1 MB here, so that one tenant may have 500 KB.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from attacks.tenants import bearer
from server.http.front_stage import Play, Wire, eventually
from server.keyed_stage import KeyedDoor, keyed_door
from server.locked_stage import BODY, CHAT
from server.stage import House, opened

from headgate.core.waiting import WaitingBytes

JOBS: Final = "/v1/jobs"
ROOM: Final = 1_000_000
SIZE: Final = 90_000


@dataclass
class Gate:
    """A gateway with keys and one model."""

    house: House
    door: KeyedDoor

    @property
    def bodies(self) -> WaitingBytes:
        return self.house.gateway.bodies


@asynccontextmanager
async def gateway_of(**upstream: Any) -> AsyncIterator[Gate]:
    model = {"upstreams": [{"provider": "simulated", "latency_s": 0, **upstream}]}
    settings = {"data_dir": "data", "models": {"m": model}, "limits": {"waiting_bytes": ROOM}}
    async with keyed_door() as door, opened(settings, access=door.access) as house:
        yield Gate(house, door)


def call(size: int = SIZE, **fields: Any) -> bytes:
    return json.dumps({**BODY, "model": "m", **fields, "user": "x" * size}).encode()


def job(size: int = SIZE) -> bytes:
    return json.dumps({"task": "chat", "input": json.loads(call(size))}).encode()


class Callers:
    """Requests on connections that stay open."""

    def __init__(self, gateway: Gate, stack: AsyncExitStack) -> None:
        self._gateway = gateway
        self._stack = stack
        self.held: list[tuple[Wire, bytes]] = []

    async def send(self, key: str, path: str, body: bytes, *headers: str, hold: int = 1) -> Wire:
        """All but the last `hold` bytes."""
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self._gateway.house.port))
        self._stack.callback(wire.writer.close)
        lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", bearer(key), *headers]
        await wire.send("\r\n".join([*lines, "", ""]).encode() + body[: len(body) - hold])
        self.held.append((wire, body[len(body) - hold :]))
        return wire

    async def send_chunks(self, key: str, path: str, body: bytes) -> Wire:
        """All but the last chunk."""
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self._gateway.house.port))
        self._stack.callback(wire.writer.close)
        lines = [f"POST {path} HTTP/1.1", "Host: a", "Transfer-Encoding: chunked", bearer(key), "", ""]
        await wire.send("\r\n".join(lines).encode())
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(body), 10_000):
                piece = body[at : at + 10_000]
                await wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.held.append((wire, b"0\r\n\r\n"))
        return wire


def busy(gateway: Gate) -> int:
    status = gateway.house.gateway.status()
    return status.total_slots - status.available_slots


async def refused(wire: Wire) -> bool:
    """Whether it is refused now. One that is not is still being read."""
    try:
        async with asyncio.timeout(0.3):
            answer = await wire.answer()
    except TimeoutError:
        return False
    assert (answer.status, answer.code) == (429, "queue_full"), answer
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    return True


async def outcomes(wires: list[Wire]) -> list[bool]:
    return list(await asyncio.gather(*map(refused, wires)))


@pytest.mark.parametrize(("path", "body"), [(CHAT, call()), (JOBS, job())])
def test_bodies_that_never_end_are_bounded_per_tenant(play: Play, path: str, body: bytes) -> None:
    async def scene() -> None:
        async with gateway_of() as gateway, AsyncExitStack() as stack:
            hostile, good = await gateway.door.key(tenant="hostile"), await gateway.door.key(tenant="good")
            callers = Callers(gateway, stack)
            wires = [await callers.send(hostile, path, body) for _ in range(12)]
            assert (await outcomes(wires)).count(False) == ROOM // 2 // len(body)
            # The other half is for others, and what ends makes room.
            mine = [await callers.send(good, path, body) for _ in range(3)]
            assert await outcomes(mine) == [False] * 3
            for wire, rest in callers.held:
                with contextlib.suppress(ConnectionError):
                    await wire.send(rest)
            assert {(await wire.answer()).status for wire in mine} <= {200, 202}
            await eventually(lambda: not gateway.bodies.counted)
            assert await outcomes([await callers.send(hostile, path, body)]) == [False]

    play(scene)


@pytest.mark.parametrize("path", [CHAT, JOBS])
def test_bodies_in_chunks_count_as_they_come(play: Play, path: str) -> None:
    async def scene() -> None:
        async with gateway_of() as gateway, AsyncExitStack() as stack:
            key, body = await gateway.door.key(), call() if path == CHAT else job()
            callers = Callers(gateway, stack)
            wires = [await callers.send_chunks(key, path, body) for _ in range(8)]
            assert (await outcomes(wires)).count(False) == ROOM // 2 // len(body)
            for wire in wires:
                wire.reset()
            await eventually(lambda: not gateway.bodies.counted)

    play(scene)


def test_a_body_that_waits_at_a_gate_is_counted_once(play: Play) -> None:
    """Under a key or not: five of 90 KB have room, and would not if one of them were counted twice."""

    async def scene() -> None:
        async with gateway_of(latency_s=60, slots=1) as gateway, AsyncExitStack() as stack:
            key = await gateway.door.key()
            callers, bodies = Callers(gateway, stack), gateway.bodies
            await callers.send(key, CHAT, call(10), hold=0)
            await eventually(lambda: busy(gateway) == 1)
            for number in range(5):
                more = [f"Idempotency-Key: {number}"] if number % 2 else []
                await callers.send(key, CHAT, call(), *more, hold=0)
            await eventually(lambda: gateway.house.gateway.status().rt_queue == 5)
            assert bodies.counted == 5 * len(call())
            assert await outcomes([await callers.send(key, CHAT, call())]) == [True]

    play(scene)


def test_bodies_that_wait_for_a_call_with_the_same_key_are_bounded(play: Play) -> None:
    async def scene() -> None:
        async with gateway_of(latency_s=60, slots=4) as gateway, AsyncExitStack() as stack:
            key = await gateway.door.key()
            callers = Callers(gateway, stack)
            wires = [await callers.send(key, CHAT, call(), "Idempotency-Key: one", hold=0) for _ in range(12)]
            assert (await outcomes(wires)).count(False) == 5

    play(scene)


def test_calls_that_are_served_take_no_room(play: Play) -> None:
    """Eight of 90 KB in flight are more than one tenant may have waiting."""

    async def scene() -> None:
        async with gateway_of(latency_s=60, slots=32) as gateway, AsyncExitStack() as stack:
            callers = Callers(gateway, stack)
            key = await gateway.door.key()
            wires = []
            for number in range(8):
                wires.append(await callers.send(key, CHAT, call(), hold=0))
                await eventually(lambda many=number: busy(gateway) > many)  # type: ignore[misc]
            assert await outcomes(wires) == [False] * 8

    play(scene)
