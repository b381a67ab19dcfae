"""Batches of the real gateway, through the client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import one_model

from headgate.client import AsyncClient, Client
from headgate.core.errors import DeadlineExceeded, UnknownBatch

COUNT = 12


def line(number: int, model: str = "m") -> dict[str, Any]:
    messages = [{"role": "user", "content": f"text {number}"}]
    return {"custom_id": f"line-{number}", "body": {"model": model, "messages": messages}}


@asynccontextmanager
async def served(**upstream: Any) -> AsyncIterator[AsyncClient]:
    settings = one_model({"provider": "simulated", "latency_s": 0, **upstream})
    jobs = {"retry": {"max_attempts": 1}}
    async with opened({**settings, "jobs": jobs}, work=True) as house, AsyncClient(house.url) as client:
        yield client


def test_a_batch_of_dicts_comes_back_line_by_line(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            batch = await client.batches.create(map(line, range(COUNT)), metadata={"from": "here"})
            seen: list[str] = []
            done = await client.batches.wait(
                batch["id"], 20, on_progress=lambda now: seen.append(now["status"])
            )
            assert (done["status"], done["metadata"]) == ("completed", {"from": "here"})
            lines = [answer async for answer in client.batches.output(batch["id"])]
            assert sorted(answer["custom_id"] for answer in lines) == sorted(
                f"line-{n}" for n in range(COUNT)
            )
            assert [answer async for answer in client.batches.output(batch["id"], errors=True)] == []
            assert [found["id"] async for found in client.batches.list(page_size=1)] == [batch["id"]]

    play(scene)


def test_a_batch_from_a_file_and_its_failed_lines_again(play: Play) -> None:
    path = Path('odd "name".jsonl')
    lines = [line(0), line(1, "simulated/down")]
    text = (json.dumps({"method": "POST", "url": "/v1/chat/completions", **one}) for one in lines)
    path.write_text("\n".join(text))

    async def scene() -> None:
        async with served() as client:
            batch = await client.batches.create(path)
            await client.batches.wait(batch["id"], 20)
            failed = [answer async for answer in client.batches.output(batch["id"], errors=True)]
            assert [answer["custom_id"] for answer in failed] == ["line-1"]
            again = await client.batches.retry(batch["id"], idempotency_key="again")
            assert (await client.batches.retry(batch["id"], idempotency_key="again"))["id"] == again["id"]

    play(scene)


def test_a_batch_can_be_left_and_cancelled(play: Play) -> None:
    async def scene() -> None:
        async with served(latency_s=30) as client:
            batch = await client.batches.create([line(0)])
            with pytest.raises(DeadlineExceeded, match="it goes on"):
                await client.batches.wait(batch["id"], 0.1)
            assert (await client.batches.cancel(batch["id"]))["status"] in {"cancelling", "cancelled"}
            with pytest.raises(UnknownBatch):
                await client.batches.get("nobody")

    play(scene)


def test_a_script_does_the_same(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            await asyncio.to_thread(script, client.url)

    def script(url: str) -> None:
        with Client(url) as client:
            batch = client.batches.create([line(0)])
            client.batches.wait(batch["id"], 20)
            assert [answer["custom_id"] for answer in client.batches.output(batch["id"])] == ["line-0"]

    play(scene)
