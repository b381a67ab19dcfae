"""A worker on each loop: paced, throttled and gathered jobs cost no attempt, and each runs once."""

import asyncio
from typing import Any

import pytest
from jobstage import JobStage, JobStages, on_each_loop
from loops import until

import headgate
from headgate import Context, Job, JobState
from headgate.core.events import GatePaused

DONE = {(JobState.COMPLETED, 1)}
RUNS: list[Any] = []
INSIDE: set[asyncio.Task[Any] | None] = set()


@headgate.task("asks", model="m")
async def asks(ctx: Context, given: Any) -> str | None:
    return (await ctx.llm.complete(messages=[{"role": "user", "content": str(given)}])).content


@headgate.task("stays")
async def stays(ctx: Context, seconds: float) -> int:
    """Returns how many were inside together with it."""
    RUNS.append(ctx.job.id)
    INSIDE.add(asyncio.current_task())
    try:
        together = len(INSIDE)
        await asyncio.sleep(seconds)
        return together
    finally:
        INSIDE.discard(asyncio.current_task())


TASKS: list[headgate.Task[Any, Any]] = [asks, stays]


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RUNS.clear()
    INSIDE.clear()


async def _ends(stage: JobStage, task: Any, given: list[Any], **options: Any) -> list[Job]:
    asked = [{"task": task.name, "input": one, **options} for one in given]
    return [await handle.wait() for handle in await stage.gateway.jobs.submit_many(asked)]


def _answered(jobs: list[Job]) -> bool:
    return {(job.state, job.attempts) for job in jobs} == DONE


@on_each_loop
async def test_paced_jobs_are_made_once_each(stages: JobStages) -> None:
    """Jobs once lost attempts to an error in the gate's timer, after their answers had been paid for."""
    stage = await stages.open({"latency_s": 0.001, "slots": 8, "interval_s": 0.002}, tasks=TASKS)
    jobs = await _ends(stage, asks, list(range(100)), max_attempts=1)
    assert _answered(jobs)
    assert stage.provider.calls == 100


@pytest.mark.parametrize("hint", [{"retry_after_s": 0.05}, {}], ids=["with a hint", "without a hint"])
@on_each_loop
async def test_throttled_jobs_wait_and_lose_no_attempt(stages: JobStages, hint: dict[str, float]) -> None:
    throttled = {"status": 429, **hint}
    stage = await stages.open(
        {"latency_s": 0.01, "slots": 4, "script": [*(["ok"] * 10), throttled] * 2},
        tasks=TASKS,
        jobs={"retry": {"jitter": "none", "first_wait_s": 0.05}},
    )
    jobs = await _ends(stage, asks, list(range(50)), max_attempts=1)
    assert _answered(jobs)
    assert stage.provider.calls == 52
    assert sum(job.deferrals for job in jobs) == 2


@on_each_loop
async def test_jobs_wait_out_a_model_that_throttles_everything(stages: JobStages) -> None:
    throttled = {"status": 429, "retry_after_s": 0.05}
    stage = await stages.open({"latency_s": 0.01, "slots": 4, "script": [throttled] * 10}, tasks=TASKS)
    jobs = await _ends(stage, asks, list(range(50)), max_attempts=1)
    assert _answered(jobs)
    assert stage.provider.calls == 60
    assert stage.told(GatePaused)


@pytest.mark.parametrize("workers", [1, 5])
@on_each_loop
async def test_no_more_jobs_run_than_there_are_workers(stages: JobStages, workers: int) -> None:
    stage = await stages.open(tasks=TASKS, jobs={"workers": workers})
    jobs = await _ends(stage, stays, [0.02] * (workers * 4))
    assert _answered(jobs)
    assert max(RUNS.count(job.id) for job in jobs) == 1
    assert stage.gateway.durable.running == 0


@on_each_loop
async def test_no_more_jobs_of_a_model_are_at_the_provider_than_its_gate_lets_in(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 0.01, "slots": 3}, tasks=TASKS)
    jobs = await _ends(stage, asks, list(range(60)))
    assert _answered(jobs)
    assert (stage.provider.most_in_flight, stage.provider.calls) == (3, 60)


@on_each_loop
async def test_two_workers_share_the_jobs_and_run_each_once(stages: JobStages) -> None:
    desk = await stages.open(tasks=TASKS, work=False)
    for _ in range(2):
        await stages.open(tasks=TASKS, jobs={"workers": 10})
    jobs = await _ends(desk, stays, [0.005] * 100)
    assert _answered(jobs)
    assert sorted(RUNS) == sorted(job.id for job in jobs)


@on_each_loop
async def test_a_job_that_exceeds_its_timeout_is_stopped_and_tried_again(stages: JobStages) -> None:
    stage = await stages.open(
        {"latency_s": 0.01, "slots": 1, "script": ["stall"]},
        tasks=TASKS,
        jobs={"retry": {"jitter": "none", "first_wait_s": 0.02}},
    )
    (job,) = await _ends(stage, asks, ["?"], timeout_s=1)
    assert (job.state, job.attempts) == (JobState.COMPLETED, 2)
    assert (stage.provider.calls, stage.provider.cancelled) == (2, 1)


@on_each_loop
async def test_a_preempted_job_goes_back_uncounted(stages: JobStages) -> None:
    stage = await stages.open(
        {"latency_s": 0.01, "slots": 1, "preempt": True, "script": [{"outcome": "ok", "latency_s": 30.0}]},
        tasks=TASKS,
    )
    handle = await stage.submit(asks, "?", max_attempts=1)
    await until(lambda: stage.provider.in_flight == 1)
    await stage.gateway.complete(model="m", messages=[{"role": "user", "content": "first, please"}])
    job = await handle.wait()
    assert (job.state, job.attempts, job.deferrals) == (JobState.COMPLETED, 1, 1)
    assert (stage.provider.calls, stage.provider.cancelled) == (3, 1)
