"""Jobs and dead letters of the real gateway, through the client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import one_model

from headgate.client import AsyncClient, Client, Outbox
from headgate.core.errors import DeadlineExceeded, InvalidRequest, KeyMismatch, StateConflict, UnknownJob
from headgate.core.job import JobState

ANSWERS = {"Hi": "hello there"}
SLOW = {"model": "m", "messages": [{"role": "user", "content": "slow"}]}


def chat(text: str, model: str = "m") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


@asynccontextmanager
async def served(**upstream: Any) -> AsyncIterator[AsyncClient]:
    settings = one_model({"provider": "simulated", "latency_s": 0, "answers": ANSWERS, **upstream})
    jobs = {"retry": {"max_attempts": 1}}
    async with opened({**settings, "jobs": jobs}, work=True) as house, AsyncClient(house.url) as client:
        yield client


async def dead_job(client: AsyncClient) -> str:
    job = await client.submit("chat", chat("Hi", "simulated/down"), max_attempts=1)
    assert (await client.wait(job.id, 20)).state is JobState.DEAD_LETTER
    return job.id


def test_a_job_is_handed_in_waited_for_and_looked_at(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            job = await client.submit("chat", chat("Hi"), metadata={"from": "here"})
            done = await client.wait(job.id, 20)
            assert done.state is JobState.COMPLETED
            assert done.result["choices"][0]["message"]["content"] == "hello there"
            assert (await client.job(job.id)).metadata == {"from": "here"}
            with pytest.raises(StateConflict):
                await client.cancel(job.id)

    play(scene)


def test_the_same_key_is_the_same_job_and_another_body_a_mismatch(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            first = await client.submit("chat", chat("Hi"), idempotency_key="click")
            assert (await client.submit("chat", chat("Hi"), idempotency_key="click")).id == first.id
            with pytest.raises(KeyMismatch):
                await client.submit("chat", chat("Other"), idempotency_key="click")

    play(scene)


def test_many_are_handed_in_at_once_and_listed_over_pages(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            submitted = await client.submit_many([{"task": "chat", "input": chat("Hi")}] * 7)
            listed = [job.id async for job in client.jobs(task="chat", page_size=3)]
            assert sorted(listed) == sorted(job.id for job in submitted)
            assert len(listed) == 7
            with pytest.raises(InvalidRequest, match=r"1"):
                await client.submit_many([{"task": "chat", "input": chat("Hi")}, {"task": "nobody"}])

    play(scene)


def test_waiting_ends_with_its_time_and_a_cancel_with_the_job(play: Play) -> None:
    async def scene() -> None:
        async with served(latency_s=30) as client:
            job = await client.submit("chat", SLOW)
            with pytest.raises(DeadlineExceeded, match="it goes on"):
                await client.wait(job.id, 0.2)
            await client.cancel(job.id)
            assert (await client.wait(job.id, 10)).state is JobState.CANCELLED
            with pytest.raises(UnknownJob):
                await client.job("nobody")

    play(scene)


def test_dead_letters_are_listed_shown_replayed_and_discarded(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            job_id, other = await dead_job(client), await dead_job(client)
            assert {job.id async for job in client.dead_letters.list(task="chat")} == {job_id, other}
            assert (await client.dead_letters.get(job_id)).job_type == "chat"
            assert await client.dead_letters.count(task="chat") == 2
            await client.dead_letters.replay(job_id, input=chat("Other", "simulated/down"))
            replayed = await client.wait(job_id, 20)
            assert (replayed.generation, replayed.input["messages"][0]["content"]) == (2, "Other")
            assert (await client.dead_letters.discard(other)).state is JobState.CANCELLED
            with pytest.raises(StateConflict):
                await client.dead_letters.get(other)

    play(scene)


def test_many_dead_letters_go_by_their_filter(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            ids = [await dead_job(client) for _ in range(2)]
            with pytest.raises(InvalidRequest):
                await client.dead_letters.discard_all()
            order = await client.dead_letters.discard_all(task="chat")
            assert (await client.wait(order.id, 20)).state is JobState.COMPLETED
            assert {(await client.job(job_id)).state for job_id in ids} == {JobState.CANCELLED}

    play(scene)


def test_a_feed_runs_through_and_again_finds_all_done(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            texts = [f"text {number}" for number in range(30)]
            first = await client.feed(texts, task="chat", run="r", input=chat, in_flight=8, every_s=0.05)
            again = await client.feed(texts, task="chat", run="r", input=chat, in_flight=8, every_s=0.05)
            assert (first.completed, first.resumed) == (30, 0)
            assert (again.completed, again.resumed) == (30, 30)
            assert len([job async for job in client.jobs(page_size=100)]) == 30

    play(scene)


def test_a_feed_sees_each_end_at_once_and_needs_no_second_pass(play: Play) -> None:
    """The gateway answers when a job ends. A feed that waited for its next pass would wait for an hour here."""

    async def scene() -> None:
        async with served() as client:
            passes: list[float] = []
            progress = await client.feed(
                [f"text {number}" for number in range(60)],
                task="chat",
                run="r",
                input=chat,
                in_flight=4,
                every_s=3600,
                on_progress=lambda progress: passes.append(progress.next_pass_s),
            )
            assert (progress.completed, passes) == (60, [3600, 0])

    play(scene)


def test_an_outbox_empties_into_the_gateway(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            with Outbox("outbox.db") as outbox:
                entries = [outbox.add("chat", chat(f"text {number}")) for number in range(5)]
                assert (await outbox.flush(client)).sent == 5
                ids = [outbox.get(entry.id).standing.server_id for entry in entries]
            for number, job_id in enumerate(ids):
                job = await client.job(str(job_id))
                assert job.input["messages"][0]["content"] == f"text {number}"

    play(scene)


def test_a_script_does_the_same(play: Play) -> None:
    async def scene() -> None:
        async with served() as client:
            await asyncio.to_thread(script, client.url)

    def script(url: str) -> None:
        with Client(url) as client:
            job = client.submit("chat", chat("Hi"))
            assert client.wait(job.id, 20).state is JobState.COMPLETED
            assert [found.id for found in client.jobs()] == [job.id]
            assert list(client.dead_letters.list()) == []

    play(scene)
