"""Calls under an idempotency key, as they come over HTTP: made once, the same bytes for all who ask with the key."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from calls.bodies import answer_once, bytes_of, calls, keyed, stream_once

from headgate.core.errors import KeyMismatch, StreamCut, UpstreamUnavailable
from headgate.planner import virtual
from headgate.planner.virtual import World


def run(main: Any) -> None:
    virtual.run(main)


def test_the_same_key_gets_the_same_bytes_and_one_call(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path)
        first = await answer_once(gateway, "k", b"body")
        again = await answer_once(gateway, "k", b"body")
        assert again.body == first.body
        assert (first.replayed, again.replayed) == (False, True)
        with pytest.raises(KeyMismatch):
            await answer_once(gateway, "k", b"another")
        assert calls(gateway) == 1
        await gateway.aclose()
        later = keyed(world, tmp_path)
        assert (await answer_once(later, "k", b"body")).body == first.body
        assert calls(later) == 0
        await later.aclose()

    run(main)


def test_a_stream_under_a_key_is_written_once_and_read_by_all(tmp_path: Path) -> None:
    """Also by those who come in the middle, and by those who come a day later."""

    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path, chunks=5, chunk_gap_s=1.0)

        async def read() -> bytes:
            return await bytes_of(await stream_once(gateway, "k", b"body"))

        early = asyncio.create_task(read())
        await world.clock.sleep(3)
        late = asyncio.create_task(read())
        whole = await early
        assert await late == whole
        stream = await stream_once(gateway, "k", b"body")
        assert await bytes_of(stream) == whole
        assert stream.replayed
        assert calls(gateway) == 1
        with pytest.raises(KeyMismatch):
            await bytes_of(await stream_once(gateway, "k", b"another"))
        await gateway.aclose()

    run(main)


def test_a_keyed_stream_goes_on_while_one_reader_stays_and_stops_with_the_last(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path, chunks=5, chunk_gap_s=1.0)
        first = await stream_once(gateway, "k", b"body")
        second = await stream_once(gateway, "k", b"body")
        async with first:
            await anext(first)
        whole = await bytes_of(second)
        assert whole.endswith(b"data: [DONE]\n\n")
        assert calls(gateway) == 1

        lone = await stream_once(gateway, "l", b"body")
        async with lone:
            await anext(lone)
        assert gateway.status().available_slots == gateway.status().total_slots
        assert await bytes_of(await stream_once(gateway, "l", b"body"))
        assert calls(gateway) == 3
        await gateway.aclose()

    run(main)


def test_a_keyed_stream_that_was_cut_is_not_kept(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path, chunks=5, script=["cut", "ok"])
        with pytest.raises(StreamCut):
            await bytes_of(await stream_once(gateway, "k", b"body"))
        assert await bytes_of(await stream_once(gateway, "k", b"body"))
        assert calls(gateway) == 2
        await gateway.aclose()

    run(main)


def test_a_failure_frees_the_key(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = keyed(world, tmp_path, script=[503, 503, 503, "ok"])
        with pytest.raises(UpstreamUnavailable):
            await answer_once(gateway, "k", b"body")
        assert (await answer_once(gateway, "k", b"body")).attempts == 1
        await gateway.aclose()

    run(main)
