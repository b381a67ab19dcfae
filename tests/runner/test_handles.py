"""Waiting for jobs and looking at them, from the process that runs them and from any other."""

import asyncio
from typing import Any

import pytest
from jobstage import JobStages, on_job_stages

import headgate
from headgate import Context, InvalidRequest, JobFailed, JobState, UnknownJob


@headgate.task("ends")
async def ends(ctx: Context, how: Any) -> Any:
    await asyncio.sleep(10)
    if how == "skip":
        raise headgate.Skip("nothing to do")
    if how == "fail":
        raise headgate.Reject("never")
    return how


@on_job_stages
async def test_a_result_is_there_when_the_job_has_ended_well(stages: JobStages) -> None:
    stage = await stages.open(tasks=[ends])
    handle = await stage.submit(ends, {"a": [1]})
    assert await handle.result() == {"a": [1]}
    assert stage.now == 10, "those who wait here hear of it at once"
    assert await handle.result(timeout=0.001) == {"a": [1]}, "and it stays there"


@on_job_stages
async def test_a_skipped_job_has_no_result_and_is_no_error(stages: JobStages) -> None:
    stage = await stages.open(tasks=[ends])
    handle = await stage.submit(ends, "skip")
    assert await handle.result() is None
    assert ((await handle.job()).state, (await handle.job()).reason) == (JobState.SKIPPED, "nothing to do")


@on_job_stages
async def test_a_job_without_a_result_raises_with_its_whole_story(stages: JobStages) -> None:
    stage = await stages.open(tasks=[ends])
    handle = await stage.submit(ends, "fail")
    with pytest.raises(JobFailed, match="ended as dead_letter, permanent: rejected: never") as caught:
        await handle.result()
    assert caught.value.job == await handle.job()
    assert caught.value.code == "job_failed"
    cancelled = await stage.submit(ends, 1)
    await cancelled.cancel()
    with pytest.raises(JobFailed, match="ended as cancelled"):
        await cancelled.result()


@on_job_stages
async def test_patience_ends_and_the_job_does_not(stages: JobStages) -> None:
    stage = await stages.open(tasks=[ends])
    handle = await stage.submit(ends, 1)
    for timeout in (3.0, 0.0, -1.0):
        with pytest.raises(TimeoutError, match=r"is still (pending|running)"):
            await handle.result(timeout=timeout)
    assert stage.now == 3
    assert await handle.result(timeout=30) == 1


@on_job_stages
async def test_another_process_sees_the_end_within_a_second(stages: JobStages) -> None:
    await stages.open(tasks=[ends])
    desk = await stages.open(tasks=[ends], work=False)
    handle = await desk.submit(ends, 1)
    assert await handle.result() == 1
    assert 10 <= desk.now <= 11.1


@on_job_stages
async def test_a_thousand_who_wait_share_one_look(stages: JobStages) -> None:
    """Also those who wait for the same job, and those who gave up meanwhile leave nothing behind."""
    await stages.open(tasks=[ends], jobs={"workers": 100})
    desk = await stages.open(tasks=[ends], work=False)
    handles = await desk.gateway.jobs.submit_many([{"task": "ends", "input": n} for n in range(300)])
    waiting = [asyncio.create_task(handle.result()) for handle in handles for _ in range(3)]
    impatient = [asyncio.create_task(handle.result(timeout=1)) for handle in handles]
    await asyncio.sleep(2)
    assert all(isinstance(task.exception(), TimeoutError) for task in impatient)
    gone = waiting[::3]
    for task in gone:
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [result for result in results if isinstance(result, int)] == [
        number for number in range(300) for _ in range(2)
    ]
    assert desk.gateway.durable.watch._waiting == {}


@on_job_stages
async def test_one_who_waits_is_not_lost_when_the_worker_goes_away(stages: JobStages) -> None:
    first = await stages.open(tasks=[ends])
    desk = await stages.open(tasks=[ends], work=False)
    handle = await desk.submit(ends, "late")
    waiting = asyncio.create_task(handle.result())
    await asyncio.sleep(5)
    await first.gateway.aclose(drain_s=0)
    await asyncio.sleep(60)
    assert not waiting.done()
    await stages.open(tasks=[ends])
    assert await waiting == "late"


@on_job_stages
async def test_a_job_nobody_has_is_unknown_and_so_is_another_tenants(stages: JobStages) -> None:
    stage = await stages.open(tasks=[ends])
    handle = await stage.submit(ends, 1, tenant="theirs")
    jobs = stage.gateway.jobs
    for ask in (jobs.get, jobs.wait, jobs.cancel):
        for job_id in ("nobody", handle.id):
            with pytest.raises(UnknownJob, match="there is no job"):
                await ask(job_id)
        for odd in ("", "a\nb", 5):
            with pytest.raises(InvalidRequest):
                await ask(odd)  # type: ignore[arg-type]
    assert await handle.result() == 1, "its own tenant has it"


@on_job_stages
async def test_a_list_is_newest_first_by_state_task_model_and_tenant(stages: JobStages) -> None:
    stage = await stages.open(tasks=[ends], work=False)
    ids = [(await stage.submit(ends, number, model="m" if number % 2 else None)).id for number in range(6)]
    await stage.submit(ends, 1, tenant="theirs")
    await stage.gateway.jobs.cancel(ids[0])
    listed = stage.gateway.jobs.list
    assert [job.id for job in await listed()] == ids[::-1]
    assert [job.id for job in await listed(state="pending")] == ids[:0:-1]
    assert [job.id for job in await listed(state=JobState.CANCELLED)] == [ids[0]]
    assert [job.id for job in await listed(model="m")] == ids[5:0:-2]
    assert [job.id for job in await listed(limit=2, after=ids[4])] == [ids[3], ids[2]]
    assert await listed(task="nothing") == []
    assert {(job.input, job.result, job.history) for job in await listed()} == {(None, None, ())}
    with pytest.raises(InvalidRequest, match="state must be one of pending, running"):
        await listed(state="failed")
    for limit in (0, 1001, None):
        with pytest.raises(InvalidRequest, match="limit"):
            await listed(limit=limit)  # type: ignore[arg-type]


@on_job_stages
async def test_counts_are_by_state_for_one_tenant_or_for_all(stages: JobStages) -> None:
    stage = await stages.open(tasks=[ends])
    for tenant in ("one", "one", "two"):
        await stage.submit(ends, 1, tenant=tenant)
    await stage.submit(ends, 1, tenant="two", run_at=stage.epoch + 100)
    await asyncio.sleep(1)
    all_states = dict.fromkeys(("pending", "running", "completed", "skipped", "dead_letter", "cancelled"), 0)
    count = stage.gateway.jobs.count
    assert await count(tenant=None) == {**all_states, "running": 3, "pending": 1}
    assert await count(tenant="one") == {**all_states, "running": 2}
    await asyncio.sleep(20)
    assert await count(tenant="two") == {**all_states, "completed": 1, "pending": 1}


@on_job_stages
async def test_times_tell_the_whole_way_of_a_job(stages: JobStages) -> None:
    stage = await stages.open(tasks=[ends], work=False)
    handle = await stage.submit(ends, 1)
    await asyncio.sleep(5)
    await stage.gateway.work()
    job = await handle.wait()
    assert job.started_at is not None
    assert job.finished_at is not None
    assert (job.started_at - job.created_at).total_seconds() == 5
    assert (job.finished_at - job.started_at).total_seconds() == 10
    assert (job.expires_at - job.run_at).total_seconds() == 72 * 3600
