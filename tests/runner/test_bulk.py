"""A replay or discard of many as a job: at its pace, through a stop, only what was dead when it was asked."""

import asyncio
from typing import Any

import pytest
from jobstage import JobStage, JobStages, database, on_each_database, on_job_stages

import headgate
from headgate import Context, InvalidRequest, JobState
from headgate.core.events import JobsReplayed

__all__ = ["database"]


@headgate.task("wrong")
async def wrong(ctx: Context, given: Any) -> None:
    await asyncio.sleep(0.1)
    raise headgate.Reject("as ever")


async def _bury(stage: JobStage, count: int, tenant: str = "local") -> list[str]:
    handles = [await stage.submit(wrong, number, tenant=tenant) for number in range(count)]
    for handle in handles:
        assert (await handle.wait()).state is JobState.DEAD_LETTER
    return [handle.id for handle in handles]


@on_job_stages
async def test_it_keeps_its_pace_and_tells_how_far_it_is(stages: JobStages) -> None:
    stage = await stages.open(tasks=[wrong])
    await _bury(stage, 60)
    start = stage.now
    order = await stage.gateway.bulk.replay(task="wrong", per_second=10)
    await asyncio.sleep(3)
    progress = (await order.job()).progress
    assert progress["total"] == 60
    assert 20 <= progress["done"] <= 40
    assert await order.result() == {"done": 60, "total": 60}
    assert stage.now - start == pytest.approx(6, abs=0.5)
    assert sum(event.count for event in stage.told(JobsReplayed)) == 60


@on_each_database
async def test_after_a_stop_it_goes_on_where_it_was(stages: JobStages) -> None:
    stage = await stages.open(tasks=[wrong])
    ids = await _bury(stage, 50)
    order = await stage.gateway.bulk.replay(task="wrong", per_second=10, by="anna")
    await asyncio.sleep(2.5)
    await stage.gateway.aclose(drain_s=0.0)
    after = await stages.open(tasks=[wrong])
    job = await after.gateway.jobs.wait(order.id)
    assert (job.state, job.result) == (JobState.COMPLETED, {"done": 50, "total": 50})
    for job_id in ids:
        # They die again each time: were they looked for anew, the first of them would be sent back twice.
        history = (await after.gateway.jobs.wait(job_id)).history
        assert [entry.by for entry in history if entry.outcome == "replayed"] == ["anna"]


@on_each_database
async def test_what_dies_after_the_asking_is_not_meant(stages: JobStages) -> None:
    stage = await stages.open(tasks=[wrong], work=False)
    worker = await stages.open(tasks=[wrong])
    [before] = await _bury(worker, 1)
    await worker.gateway.aclose()
    order = await stage.gateway.bulk.discard(task="wrong")
    late = await stage.submit(wrong, "late", priority=0, lane="interactive")
    another = await stages.open(tasks=[wrong], jobs={"workers": 1})
    assert (await another.gateway.jobs.wait(late.id)).state is JobState.DEAD_LETTER
    assert (await another.gateway.jobs.wait(order.id)).result == {"done": 1, "total": 1}
    assert (await stage.gateway.jobs.get(before)).reason == "discarded"
    assert (await stage.gateway.jobs.get(late.id)).state is JobState.DEAD_LETTER


@on_job_stages
async def test_a_filter_is_required_and_checked_at_once(stages: JobStages) -> None:
    stage = await stages.open(tasks=[wrong], work=False)
    for asked in ({}, {"reason": "boredom"}, {"task": "wrong", "per_second": 0}, {"task": "wrong", "by": ""}):
        with pytest.raises(InvalidRequest):
            await stage.gateway.bulk.replay(**asked)
    with pytest.raises(TypeError, match="colour"):
        await stage.gateway.bulk.replay(colour="red")  # type: ignore[call-arg]  # as in a script without types
    assert await stage.gateway.jobs.list() == []


@on_job_stages
async def test_nobody_submits_it_by_name(stages: JobStages) -> None:
    """Its input names a filter that only headgate makes."""
    stage = await stages.open(tasks=[wrong], work=False)
    for task in ("headgate.replay", "headgate.discard"):
        with pytest.raises(headgate.UnknownTask):
            await stage.submit(task, {"which": {}, "by": "me", "per_second": 1})
