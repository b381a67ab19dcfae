"""Who is dead, seen from the jobs: silence costs nothing three times, and only a crash that a job met alone is held against it."""

import asyncio
from typing import Any

from jobstage import JobStage, JobStages, on_job_stages

import headgate
from headgate import Context, JobState
from headgate.core.job_rules import POISON_AFTER, POISON_AT_LAST

LEASE_S = 30.0


class Floor:
    """Who runs now, and which jobs were there when one began."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.began_beside: dict[str, list[list[str]]] = {}

    async def stay(self, name: str, seconds: float) -> None:
        self.began_beside.setdefault(name, []).append([*self.running])
        self.running.append(name)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running.remove(name)


def task_on(floor: Floor) -> headgate.Task[Any, Any]:
    @headgate.task("stays")
    async def stays(ctx: Context, given: list[Any]) -> None:
        await floor.stay(*given)

    return stays


def fall_silent(stage: JobStage) -> None:
    """The process lives and works, but its renewals do not reach the store any more."""
    renewing = stage.gateway.durable.node._renewing
    assert renewing is not None
    renewing.cancel()


async def die(stage: JobStage) -> None:
    """As another process of this machine sees that its lock is free."""
    durable = stage.gateway.durable
    await durable.store.bury_dead([durable.node.id])
    durable.node._due.set()


@on_job_stages
async def test_the_jobs_of_a_silent_node_run_again_within_two_leases_and_uncounted(stages: JobStages) -> None:
    """It may have been cut off, asleep or stopped: nothing proves that the job did it."""
    stays = task_on(Floor())
    silent = await stages.open(tasks=[stays])
    handle = await silent.submit(stays, ["job", 300])
    await silent.until(handle, JobState.RUNNING)
    other = await stages.open(tasks=[stays])
    await asyncio.sleep(LEASE_S)
    fall_silent(silent)
    since = stages.now
    while not other.gateway.durable.running:  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(1.0)

    assert LEASE_S - 10 <= stages.now - since <= 2 * LEASE_S + 2
    job = await handle.job()
    assert (job.attempts, job.crashes, job.deferrals) == (1, 0, 1)
    assert (await handle.wait()).state is JobState.COMPLETED


@on_job_stages
async def test_the_fourth_silence_counts_as_a_crash(stages: JobStages) -> None:
    """A job that freezes its worker each time must not do so for ever."""
    stays = task_on(Floor())
    stage = await stages.open(tasks=[stays])
    job_id = (await stage.submit(stays, ["job", 1000])).id
    for number in range(1, 7):
        while not stage.gateway.durable.running:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(1.0)
        stage, silent = await stages.open(tasks=[stays]), stage
        await asyncio.sleep(LEASE_S)
        fall_silent(silent)
        await asyncio.sleep(2 * LEASE_S + 5)
        job = await stage.gateway.jobs.get(job_id)
        assert job.crashes == max(0, number - 3)

    assert (job.state, job.reason) == (JobState.DEAD_LETTER, "poison")


@on_job_stages
async def test_crashes_beside_others_are_no_proof_until_the_sixth(stages: JobStages) -> None:
    """A job that was there three times by bad luck is innocent; one that is there each time is not."""
    floor = Floor()
    stays = task_on(floor)
    stage = await stages.open(tasks=[stays])
    suspect = await stage.submit(stays, ["suspect", 1000])
    for crash in range(1, POISON_AT_LAST + 1):
        beside = await stage.submit(stays, [f"beside {crash}", 1000])
        await asyncio.sleep(10)
        assert len(floor.running) == 2
        await die(stage)
        await asyncio.sleep(5)
        job = await suspect.job()
        assert (job.crashes, job.state is JobState.DEAD_LETTER) == (crash, crash == POISON_AT_LAST)
        assert (await beside.job()).crashes == 1
        await stage.gateway.jobs.cancel(beside.id)

    assert job.reason == "poison"


@on_job_stages
async def test_a_job_that_kills_its_worker_is_alone_at_its_third_crash_and_poison(
    stages: JobStages,
) -> None:
    """Its neighbours are suspects after two crashes, too: from then on they run one at a time."""
    floor = Floor()
    stays = task_on(floor)
    stage = await stages.open(tasks=[stays])
    others = [await stage.submit(stays, [f"other {number}", 40]) for number in range(5)]
    killer = await stage.submit(stays, ["killer", 1000])
    while (job := await killer.job()).state is not JobState.DEAD_LETTER:
        await asyncio.sleep(1)
        if "killer" in floor.running:
            await asyncio.sleep(9)
            await die(stage)

    assert (job.reason, job.crashes) == ("poison", POISON_AFTER)
    for handle in others:
        assert (await handle.wait()).state is JobState.COMPLETED
