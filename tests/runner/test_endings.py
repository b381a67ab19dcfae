"""What the end of a job brings is accepted with that end: whoever ends it, once, and never instead of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from jobstage import JobStage, JobStages, on_job_stages

import headgate
from headgate import Context, JobState, Reject
from headgate.core.job import Claim, Ended, FollowUps, NewJob
from headgate.core.ports.claims import Want
from headgate.runner.durable import Durable
from headgate.stores.sqlite import SqliteStore

HOOK = "https://example.com/hook"
FAR_S = 1e9


@headgate.task("echo")
async def echo(ctx: Context, given: Any) -> Any:
    return given


@headgate.task("fails")
async def fails(ctx: Context, given: Any) -> None:
    raise Reject("no") if given == "for good" else RuntimeError("not yet")


@headgate.task("saves")
async def saves(ctx: Context, given: Any) -> None:
    ctx.save("pages", ctx.job.id, {}, unique_key="the only one")


class Ends:
    """A hook that keeps what it hears and sends one job after each that has a webhook."""

    def __init__(self) -> None:
        self.heard: list[Ended] = []

    def __call__(self, ended: Ended) -> tuple[NewJob, ...]:
        self.heard.append(ended)
        if ended.webhook is None:
            return ()
        told = msgspec.json.encode([ended.id, ended.state])
        after: dict[str, Any] = {
            "run_at": ended.finished_at + FAR_S,
            "expires_at": ended.finished_at + 2 * FAR_S,
        }
        return (NewJob(id=f"job_of_{ended.id}", task="tell", input=told, tenant=ended.tenant, **after),)


def broken(_ended: Ended) -> tuple[NewJob, ...]:
    raise ValueError("no idea what follows")


@asynccontextmanager
async def durable(stages: JobStages, stage: JobStage, follow_ups: FollowUps) -> AsyncIterator[Durable]:
    """The durable half of another process on the same database, with this hook."""
    own = stage.gateway._durable
    ids = stages._ids.__next__
    other = Durable(
        SqliteStore(stages.folder / "headgate.db", clock=stages.world.clock, new_id=ids),
        own.tasks,
        own._calls,
        rules=own.rules,
        idempotency=own.idempotency,
        quota=own.quota,
        folder=stages.folder / "nodes",
        clock=stages.world.clock,
        chance=stages.world.chance,
        new_id=ids,
        emit=stage.events.append,
        follow_ups=follow_ups,
    )
    try:
        await other.join()
        yield other
    finally:
        await other.aclose()


async def followers(stage: JobStage) -> list[Any]:
    listed = await stage.gateway.jobs.list(task="tell")
    return sorted([(await stage.gateway.jobs.get(job.id)).input for job in listed])


async def claim_for(other: Durable, node: str, stage: JobStage) -> Claim:
    await other.store.join(node)
    (claim,) = await other.store.claim([Want("", 1)], node=node, suspects=1, now=stage.epoch)
    return claim


# ---- A worker's doing -------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_job_that_ends_brings_its_follow_ups_once(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    ends = Ends()
    async with durable(stages, stage, ends) as other:
        await other.work()
        job = await stage.ended(echo, {"n": 1}, webhook=HOOK, metadata={"who": "me"})
        quiet = await stage.ended(echo, 2)

    assert (job.state, job.webhook) == (JobState.COMPLETED, HOOK)
    assert await followers(stage) == [[job.id, "completed"]]
    assert [one.id for one in ends.heard] == [job.id, quiet.id]
    told = ends.heard[0]
    assert (told.result, told.metadata, told.attempts) == (b'{"n":1}', b'{"who":"me"}', 1)
    assert job.finished_at is not None
    assert told.finished_at == job.finished_at.timestamp()


@on_job_stages
async def test_a_try_that_is_not_the_last_brings_nothing(stages: JobStages) -> None:
    """A caller hears of the end, not of every attempt."""
    stage = await stages.open(tasks=[fails], work=False)
    ends = Ends()
    async with durable(stages, stage, ends) as other:
        await other.work()
        worn_out = await stage.ended(fails, webhook=HOOK, max_attempts=3)
        refused = await stage.ended(fails, "for good", webhook=HOOK)

    assert [(one.id, one.reason, one.attempts) for one in ends.heard] == [
        (worn_out.id, "exhausted", 3),
        (refused.id, "permanent", 1),
    ]
    assert [one.error for one in ends.heard] == [worn_out.error, refused.error]
    assert len(await followers(stage)) == 2


@on_job_stages
async def test_an_end_that_could_not_be_written_brings_nothing(stages: JobStages) -> None:
    """Its record's key is taken: it is completed for nobody, and what follows tells how it did end."""
    stage = await stages.open(tasks=[saves], work=False)
    async with durable(stages, stage, Ends()) as other:
        await other.work()
        first = await stage.ended(saves, webhook=HOOK)
        second = await stage.ended(saves, webhook=HOOK)

    assert await followers(stage) == sorted([[first.id, "completed"], [second.id, "dead_letter"]])


@on_job_stages
async def test_a_hook_that_raises_costs_no_outcome(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    async with durable(stages, stage, broken) as other:
        await other.work()
        job = await stage.ended(echo, 1, webhook=HOOK)

    assert (job.state, job.result) == (JobState.COMPLETED, 1)
    assert f"job {job.id} ends without what should follow it" in caplog.text


# ---- Upkeep's doing ---------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_poisonous_job_brings_its_follow_ups(stages: JobStages) -> None:
    """No worker lives to tell: whoever finds the body does."""
    stage = await stages.open(tasks=[echo], work=False)
    ends = Ends()
    async with durable(stages, stage, ends) as other:
        handle = await stage.submit(echo, webhook=HOOK, metadata={"who": "me"})
        for number in range(3):
            await claim_for(other, f"doomed-{number}", stage)
            await other.store.bury_dead([f"doomed-{number}"])
            await other._upkeep.rescue()

    assert await followers(stage) == [[handle.id, "dead_letter"]]
    (told,) = ends.heard
    assert (told.reason, told.metadata) == ("poison", b'{"who":"me"}')


@on_job_stages
async def test_a_job_cancelled_over_its_workers_head_brings_its_follow_ups(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    async with durable(stages, stage, Ends()) as other:
        handle = await stage.submit(echo, webhook=HOOK)
        await claim_for(other, "deaf", stage)
        await handle.cancel()
        await stages.world.clock.sleep(other.rules.lease_s + 1)
        await other._upkeep.enforce_cancels()

    assert await followers(stage) == [[handle.id, "cancelled"]]


@on_job_stages
async def test_an_expired_job_brings_its_follow_ups(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    ends = Ends()
    async with durable(stages, stage, ends) as other:
        handle = await stage.submit(echo, webhook=HOOK, expires_after_s=5.0)
        await stages.world.clock.sleep(6.0)
        for _ in range(2):
            await other._upkeep.expire()

    assert await followers(stage) == [[handle.id, "dead_letter"]]
    assert [one.reason for one in ends.heard] == ["expired"]


@on_job_stages
async def test_a_hook_that_raises_keeps_nothing_from_expiring(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    async with durable(stages, stage, broken) as other:
        handle = await stage.submit(echo, webhook=HOOK, expires_after_s=5.0)
        await stages.world.clock.sleep(6.0)
        await other._upkeep.expire()

    assert (await handle.job()).reason == "expired"
    assert f"job {handle.id} ends without what should follow it" in caplog.text
