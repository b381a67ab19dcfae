"""Uploads that are never ended: what they have written counts against their tenant's quota."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
from attacks.tenants import bearer
from attacks.test_filling_the_disk import QUOTA, bytes_in, house_of
from server.http.front_stage import Answer, Play, Wire, eventually
from server.keyed_stage import keyed_door
from server.stage import House

from headgate.core.errors import QuotaExceeded

PART: Final = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
    b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
)
END: Final = b"\r\n--b--\r\n"
SIZE: Final = 60_000
ROOM: Final = QUOTA // SIZE
FOLDER: Final = Path("data/files")


async def begin(house: House, stack: AsyncExitStack, key: str) -> Wire:
    """An upload of which all but the end is sent."""
    wire = Wire(*await asyncio.open_connection("127.0.0.1", house.port))
    stack.callback(wire.writer.close)
    body = PART + b"x" * SIZE
    lines = ["POST /v1/files HTTP/1.1", "Host: a", f"Content-Length: {len(body) + len(END)}", bearer(key)]
    lines += ["Content-Type: multipart/form-data; boundary=b", "", ""]
    await wire.send("\r\n".join(lines).encode() + body)
    return wire


async def refusal(wire: Wire) -> Answer | None:
    try:
        async with asyncio.timeout(0.3):
            return await wire.answer()
    except TimeoutError:
        return None


def test_open_uploads_count_against_the_quota(database: str, play: Play) -> None:
    """Twenty at once are 1.2 MB of 200 KB. What is refused or given up makes room; others are not concerned."""

    async def scene() -> None:
        async with (
            keyed_door() as door,
            house_of(database, access=door.access) as house,
            AsyncExitStack() as stack,
        ):
            greedy, other = await door.key(tenant="greedy"), await door.key(tenant="other")
            wires = [await begin(house, stack, greedy) for _ in range(20)]
            answers = await asyncio.gather(*map(refusal, wires))
            open_now = [wire for wire, answer in zip(wires, answers, strict=True) if answer is None]
            assert {(answer.status, answer.code) for answer in answers if answer} == {(507, "quota_exceeded")}
            assert 1 <= len(open_now) <= ROOM
            assert bytes_in(FOLDER) <= QUOTA
            file = await begin(house, stack, other)
            assert (await file.ask(END)).status == 200
            for wire in open_now:
                wire.reset()
            await eventually(lambda: bytes_in(FOLDER) == SIZE)
            for number in range(ROOM):
                assert (await (await begin(house, stack, greedy)).ask(END)).status == 200, number
            answer = await (await begin(house, stack, greedy)).answer()
            assert answer.status == 507
            assert house.gateway.files._usage == {}

    play(scene)


def test_what_is_kept_while_others_are_open_counts_too(database: str, play: Play) -> None:
    async def scene() -> None:
        async with house_of(database) as house, AsyncExitStack() as stack:
            files = house.gateway.files
            slow = await stack.enter_async_context(files.upload(tenant="local"))
            await slow.write(b"x" * SIZE)
            for _ in range(ROOM - 1):
                await files.create(b"x" * SIZE, filename="a")
            with pytest.raises(QuotaExceeded):
                await slow.write(b"x" * SIZE)

    play(scene)
