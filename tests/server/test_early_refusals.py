"""Long bodies at a full gate: refused by their first bytes, with the same words as any other."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
from server.stage import House, opened

from headgate.core import events

FULL = {"upstreams": [{"provider": "simulated", "latency_s": 60, "slots": 1, "depth": 1}]}


def head(length: int, *more: str) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: x", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


class Callers:
    """Connections that stay open until all is over: one that is dropped is a caller that left."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._writers: list[asyncio.StreamWriter] = []

    async def send(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._house.port)
        self._writers.append(writer)
        writer.write(data)
        return reader, writer

    async def fill(self) -> None:
        """Until the gate can take nobody more."""
        for _ in range(2):
            await self.send(head(len(body(10))) + body(10))
        async with asyncio.timeout(5):
            while self._house.gateway.status().rt_queue != 1:  # noqa: ASYNC110 - another task's doing
                await asyncio.sleep(0.01)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def served(model: dict[str, Any]) -> AsyncIterator[tuple[House, Callers]]:
    async with opened({"models": {"m": model}}) as house, Callers(house) as callers:
        yield house, callers


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes, dict[str, Any]]:
    top = await reader.readuntil(b"\r\n\r\n")
    length = int(top.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(top[9:12]), top.lower(), json.loads(await reader.readexactly(length))


def body(size_bytes: int, **fields: Any) -> bytes:
    filled = {"model": "m", "messages": [{"role": "user", "content": "x" * size_bytes}], **fields}
    return json.dumps(filled).encode()


def test_a_long_body_is_refused_before_it_has_come() -> None:
    async def main() -> None:
        async with served(FULL) as (house, callers):
            await callers.fill()
            data = body(900_000)
            reader, _ = await callers.send(head(len(data)) + data[:50_000])
            async with asyncio.timeout(5):
                status, top, told = await answer(reader)
            reader, _ = await callers.send(head(len(body(10))) + body(10))
            usual_status, usual_top, usual = await answer(reader)
            assert (status, told["error"]["code"]) == (429, "queue_full")
            assert (usual_status, usual["error"]["code"]) == (429, "queue_full")
            assert names(top) - {b"connection"} == names(usual_top)
            refused = [event for event in house.events if isinstance(event, events.RequestRefused)]
            ended = [event for event in house.events if isinstance(event, events.Responded)]
            assert len(refused) == len(ended) == 2

    asyncio.run(main())


def names(top: bytes) -> set[bytes]:
    return {line.split(b":")[0] for line in top.split(b"\r\n")[1:]}


@pytest.mark.parametrize(
    ("more", "status"), [("Idempotency-Key: k", 429), ("Prefer: respond-async", 202)], ids=["key", "job"]
)
def test_what_may_need_no_room_is_read_to_its_end(more: str, status: int) -> None:
    """A key may have its answer already, and a job waits elsewhere."""

    async def main() -> None:
        async with served(FULL) as (_, callers):
            await callers.fill()
            data = body(100_000)
            reader, writer = await callers.send(head(len(data), more) + data[:50_000])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await reader.read(1)
            writer.write(data[50_000:])
            async with asyncio.timeout(5):
                assert (await answer(reader))[0] == status

    asyncio.run(main())


def test_a_long_body_finds_its_place_where_there_is_one() -> None:
    async def main() -> None:
        async with served({"upstreams": [{"provider": "simulated", "latency_s": 0}]}) as (_, callers):
            data = body(900_000)
            reader, _ = await callers.send(head(len(data)) + data)
            assert (await answer(reader))[0] == 200

    asyncio.run(main())
