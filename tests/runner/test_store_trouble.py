"""A database without room: what was accepted is kept, what is done is not done again, and everybody is told."""

import asyncio
from typing import Any

import pytest
from jobstage import JobStage, JobStages, on_job_stages

import headgate
from headgate import Context, JobState, StoreUnavailable
from headgate.core.events import StoreChanged
from headgate.stores.sqlite import SqliteStore

USER = [{"role": "user", "content": "?"}]
LARGE = "x" * 1_000_000


@headgate.task("echo")
async def echo(ctx: Context, given: Any) -> Any:
    return given


@headgate.task("asks", model="m")
async def asks(ctx: Context, given: Any) -> str:
    await ctx.llm.complete(messages=USER)
    return LARGE


async def _fill_disk(stage: JobStage) -> None:
    """SQLite's own way to have no room: not one page more than there is now."""
    await _allow_pages(stage, 1)


async def _free_disk(stage: JobStage) -> None:
    await _allow_pages(stage, 1_000_000)


async def _allow_pages(stage: JobStage, pages: int) -> None:
    store = stage.gateway.durable.store
    assert isinstance(store, SqliteStore)
    await store._write("pragma", lambda db: db.pragma("max_page_count", pages))


@on_job_stages
async def test_a_full_disk_refuses_the_submission_and_tells_those_who_listen(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    await stage.submit(echo, 1)
    await _fill_disk(stage)
    with pytest.raises(StoreUnavailable, match="the disk is full") as caught:
        await stage.submit(echo, LARGE)
    assert caught.value.retry_after_s > 0
    await _free_disk(stage)
    await stage.submit(echo, LARGE)
    await asyncio.sleep(0)
    told = stage.told(StoreChanged)
    assert [(event.health, bool(event.error)) for event in told] == [("down", True), ("ok", False)]
    assert told[0].store.startswith("sqlite ")
    assert (await stage.gateway.jobs.count())["pending"] == 2


@on_job_stages
async def test_a_result_that_cannot_be_written_waits_and_its_call_is_not_made_again(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer was paid for. It is kept for as long as the disk is full, and then written."""
    stage = await stages.open({"latency_s": 10.0}, tasks=[asks])
    handle = await stage.submit(asks, timeout_s=30)
    await asyncio.sleep(5)
    await _fill_disk(stage)
    await asyncio.sleep(120)
    assert (await handle.job()).state is JobState.RUNNING, (
        "done, but not yet written: its timeout is behind it"
    )
    assert f"the outcome of job {handle.id} waits" in caplog.text
    await _free_disk(stage)
    job = await handle.wait()
    assert (job.state, job.attempts, job.crashes, job.result) == (JobState.COMPLETED, 1, 0, LARGE)
    assert stage.provider.calls == 1


@on_job_stages
async def test_a_worker_goes_on_by_itself_when_there_is_room_again(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 1.0}, tasks=[asks])
    handles = [await stage.submit(asks) for _ in range(20)]
    await asyncio.sleep(0.5)
    await _fill_disk(stage)
    await asyncio.sleep(60)
    most = stage.provider.calls
    assert most <= 20
    await _free_disk(stage)
    jobs = [await handle.wait() for handle in handles]
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert stage.provider.calls == 20


@on_job_stages
async def test_jobs_that_are_done_but_not_written_do_not_pile_up_without_end(stages: JobStages) -> None:
    """Twice the workers at most: those that run and those that wait for the disk."""
    stage = await stages.open({"latency_s": 1.0, "slots": 4}, tasks=[asks], jobs={"workers": 4})
    handles = [await stage.submit(asks) for _ in range(40)]
    await asyncio.sleep(0.5)
    await _fill_disk(stage)
    await asyncio.sleep(60)
    assert stage.gateway.durable.running <= 8
    assert stage.provider.calls <= 8
    await _free_disk(stage)
    for handle in handles:
        assert (await handle.wait()).attempts == 1
    assert stage.provider.calls == 40


@on_job_stages
async def test_upkeep_that_fails_twice_in_a_row_warns_once(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    """Once may be a restart of the database. From the second time on an operator must know that no job is rescued."""
    stage = await stages.open(tasks=[echo], work=False)
    await stage.submit(echo, 1)
    upkeep = stage.gateway.durable._upkeep
    rescue = next(duty for duty in upkeep.duties if duty.name == "rescue")
    await stage.gateway.durable.store.aclose()
    warned = []
    for _ in range(4):
        caplog.clear()
        with caplog.at_level("WARNING", "headgate"):
            await upkeep._do(rescue)
        warned.append(
            [record.getMessage() for record in caplog.records if "upkeep rescue" in record.getMessage()]
        )

    assert [len(messages) for messages in warned] == [0, 1, 0, 0]
    assert "2 time(s) in a row" in warned[1][0]
