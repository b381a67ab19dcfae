"""How a running job is stopped: by its timeout, by a cancel, by its worker going away. Also when it will not."""

import asyncio
import logging
from typing import Any

import pytest
from jobstage import JobStages, on_each_loop, on_job_stages

import headgate
from headgate import Context, JobFailed, JobState, StateConflict, Task, UnknownJob
from headgate.core.events import JobSettled

STOPPED: list[str] = []
"""What the tasks below had to say when they were stopped."""


@headgate.task("naps")
async def naps(ctx: Context, seconds: float) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        STOPPED.append(ctx.job.id)
        raise
    return "rested"


@headgate.task("deaf")
async def deaf(ctx: Context, seconds: float) -> str:
    """Swallows every cancellation until its time is over."""
    until = asyncio.get_running_loop().time() + seconds
    while (left_s := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left_s)
        except asyncio.CancelledError:
            STOPPED.append(ctx.job.id)
    ctx.save("late", ctx.job.id, {})
    return "late"


@headgate.task("clumsy")
async def clumsy(ctx: Context, seconds: float) -> None:
    """Its clean-up breaks."""
    try:
        await asyncio.sleep(seconds)
    finally:
        raise ValueError("the clean-up broke")


@headgate.task("tidy")
async def tidy(ctx: Context, seconds: float) -> str:
    """Takes a moment to clean up, and says what it has."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        await asyncio.sleep(2)
        return "half of it"
    return "all of it"


@headgate.task("asks", model="m")
async def asks(ctx: Context, given: Any) -> str | None:
    return (await ctx.llm.complete(messages=[{"role": "user", "content": "?"}])).content


TASKS: list[Task[Any, Any]] = [naps, deaf, clumsy, tidy, asks]


@pytest.fixture(autouse=True)
def _nobody_stopped() -> None:
    STOPPED.clear()


# ---- Timeouts -----------------------------------------------------------------------------------------------


@on_job_stages
async def test_an_attempt_that_takes_too_long_is_stopped_and_has_failed(stages: JobStages) -> None:
    stage = await stages.open(tasks=TASKS)
    job = await stage.ended(naps, 100.0, timeout_s=3, max_attempts=2)
    assert (job.state, job.reason, job.attempts) == (JobState.DEAD_LETTER, "exhausted", 2)
    assert (job.error_class, job.error) == ("transient", "transient timeout: it ran longer than its 3 s")
    assert [(entry.at - (entry.started_at or entry.at)).total_seconds() for entry in job.history] == [3, 3]
    assert len(STOPPED) == 2
    assert stage.now == pytest.approx(3 + 5 + 3, abs=0.01)


@on_job_stages
async def test_the_timeout_is_the_submissions_else_the_tasks_else_the_settings(stages: JobStages) -> None:
    quick = headgate.task("quick", timeout_s=7)(naps.run)
    stage = await stages.open(tasks=[*TASKS, quick], jobs={"timeout_s": 50})
    asked: list[tuple[Any, dict[str, float], float]] = [
        (naps, {}, 50),
        (quick, {}, 7),
        (quick, {"timeout_s": 2}, 2),
    ]
    for task, options, timeout_s in asked:
        assert (await (await stage.submit(task, 0.0, **options)).job()).timeout_s == timeout_s


@on_job_stages
async def test_an_upstream_that_hangs_is_let_go_at_the_jobs_timeout(stages: JobStages) -> None:
    """The call is really cancelled upstream, and its slot is free for the next attempt."""
    stage = await stages.open({"latency_s": 1.0, "slots": 1, "script": ["stall", "ok"]}, tasks=TASKS)
    job = await stage.ended(asks, timeout_s=20)
    assert (job.state, job.attempts) == (JobState.COMPLETED, 2)
    assert (stage.provider.calls, stage.provider.cancelled) == (2, 1)
    assert stage.now == pytest.approx(20 + 5 + 1, abs=0.01)


@on_job_stages
async def test_a_task_that_swallows_its_cancellation_is_overruled_after_five_seconds(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    """Its job is settled over its head, its place is free, and what it does afterwards is never written."""
    stage = await stages.open(tasks=TASKS, jobs={"workers": 1})
    handle = await stage.submit(deaf, 60.0, timeout_s=10, max_attempts=1)
    other = await stage.submit(naps, 1.0)
    job = await handle.wait()
    assert stage.now == pytest.approx(15, abs=0.01)
    assert (job.reason, job.attempts) == ("exhausted", 1)
    assert "runs on; the job is settled without it" in caplog.text
    assert (await other.wait()).state is JobState.COMPLETED, "its place went to another job"
    await asyncio.sleep(100)
    assert (await handle.job()) == job, "it ended at 60 s and nobody noticed"
    assert await stage.gateway.records.get("late", handle.id) is None


@on_job_stages
async def test_an_overruled_run_that_still_works_cannot_touch_the_next_one(stages: JobStages) -> None:
    """The old run saves a step and its progress while the new one runs: both are refused by their lease."""
    refused: list[str] = []

    @headgate.task("ghost")
    async def ghost(ctx: Context, given: Any) -> str:
        attempt = ctx.job.attempt
        for _ in range(3):
            try:
                await asyncio.sleep(12)
            except asyncio.CancelledError:
                continue

        async def make() -> str:
            return f"of attempt {attempt}"

        try:
            await ctx.progress(attempt, 9)
            return await ctx.step("made", make)
        except Exception as error:
            refused.append(type(error).__name__)
            raise

    stage = await stages.open(tasks=[ghost])
    handle = await stage.submit(ghost, timeout_s=10, max_attempts=2)
    job = await handle.wait()
    await asyncio.sleep(100)
    assert refused == ["ClaimLost", "ClaimLost"]
    assert ((await handle.job()).progress, job.state) == (None, JobState.DEAD_LETTER)


@on_job_stages
async def test_a_clean_up_that_breaks_does_not_hide_the_timeout(stages: JobStages) -> None:
    stage = await stages.open(tasks=TASKS)
    job = await stage.ended(clumsy, 100.0, timeout_s=3, max_attempts=1)
    assert "it ran longer than its 3 s" in str(job.error)


@on_job_stages
async def test_what_a_task_returns_while_it_is_being_stopped_counts(stages: JobStages) -> None:
    stage = await stages.open(tasks=TASKS)
    job = await stage.ended(tidy, 100.0, timeout_s=3)
    assert (job.state, job.result) == (JobState.COMPLETED, "half of it")


# ---- Cancel -----------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_pending_job_is_cancelled_at_once_and_never_runs(stages: JobStages) -> None:
    stage = await stages.open(tasks=TASKS)
    handle = await stage.submit(naps, 1.0, run_at=stage.epoch + 10)
    assert await handle.cancel() is JobState.CANCELLED
    job = await handle.wait(timeout=0.1)
    assert (job.state, job.reason, job.attempts) == (JobState.CANCELLED, "cancelled", 0)
    await asyncio.sleep(20)
    assert stage.told(JobSettled) == []
    assert await handle.cancel() is JobState.CANCELLED, "twice is once"


@on_job_stages
async def test_a_running_job_is_told_and_may_clean_up(stages: JobStages) -> None:
    stage = await stages.open(tasks=TASKS)
    handle = await stage.submit(naps, 100.0)
    await asyncio.sleep(10)
    assert await handle.cancel() is JobState.RUNNING
    job = await handle.wait()
    assert stage.now == 10, "here its worker hears of it at once"
    assert (job.state, job.reason, STOPPED) == (JobState.CANCELLED, "cancelled", [handle.id])
    with pytest.raises(JobFailed, match="cancelled"):
        await handle.result()


@on_each_loop
async def test_a_cancel_stops_the_call_at_the_provider(stages: JobStages) -> None:
    """Nobody pays for an answer that nobody wants."""
    stage = await stages.open({"latency_s": 0.01, "slots": 1, "script": ["stall"]}, tasks=TASKS)
    handle = await stage.submit(asks)
    await asyncio.sleep(0.5)
    await handle.cancel()
    await handle.wait()
    assert (stage.provider.cancelled, stage.provider.in_flight) == (1, 0)
    assert (await stage.ended(asks)).state is JobState.COMPLETED, "the slot is free"


@on_job_stages
async def test_a_task_that_will_not_stop_is_cancelled_over_its_head(stages: JobStages) -> None:
    stage = await stages.open(tasks=TASKS)
    handle = await stage.submit(deaf, 60.0)
    await asyncio.sleep(10)
    await handle.cancel()
    assert (await handle.wait()).state is JobState.CANCELLED
    assert stage.now == pytest.approx(15, abs=0.01)


@on_each_loop
async def test_a_clean_up_that_breaks_is_cancelled_all_the_same(stages: JobStages) -> None:
    stage = await stages.open(tasks=TASKS)
    handle = await stage.submit(clumsy, 100.0)
    await asyncio.sleep(0.3)
    await handle.cancel()
    job = await handle.wait()
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled")


@pytest.mark.parametrize(("task", "most_s"), [("naps", 11.0), ("deaf", 16.0)])
@on_job_stages
async def test_a_cancel_reaches_a_job_that_runs_elsewhere_with_the_next_renewal(
    stages: JobStages, task: str, most_s: float
) -> None:
    """A lease of 30 s is renewed every 10; one who will not stop has 5 s more."""
    await stages.open(tasks=TASKS)
    desk = await stages.open(tasks=TASKS, work=False)
    handle = await desk.submit(task, 300.0)
    await asyncio.sleep(12)
    assert (await handle.job()).state is JobState.RUNNING
    assert await handle.cancel() is JobState.RUNNING
    job = await handle.wait()
    assert job.state is JobState.CANCELLED
    assert desk.now - 12 <= most_s + 1, "and another second until it is seen from here"


@on_job_stages
async def test_a_job_that_fails_while_it_is_being_cancelled_is_not_tried_again(stages: JobStages) -> None:
    @headgate.task("fails")
    async def fails(ctx: Context, given: Any) -> None:
        await asyncio.sleep(5)
        raise ValueError("by itself")

    worker = await stages.open(tasks=[fails])
    desk = await stages.open(tasks=[fails], work=False)
    handle = await desk.submit(fails)
    await asyncio.sleep(4)
    await handle.cancel()
    job = await handle.wait()
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled")
    told = [(one.state, one.reason, one.failure) for one in worker.told(JobSettled)]
    assert told == [("cancelled", "cancelled", None)], "what is told is what is stored"
    await asyncio.sleep(60)
    assert (await handle.job()).attempts == 1


@on_job_stages
async def test_what_has_ended_cannot_be_cancelled(stages: JobStages) -> None:
    stage = await stages.open(tasks=TASKS)
    handle = await stage.submit(naps, 0.0)
    await handle.wait()
    with pytest.raises(StateConflict, match="is completed and cannot be cancelled"):
        await handle.cancel()
    for unknown in ("nobody", "", "x" * 1000):
        with pytest.raises((UnknownJob, headgate.InvalidRequest)):
            await stage.gateway.jobs.cancel(unknown)
    with pytest.raises(UnknownJob):
        await stage.gateway.jobs.cancel(handle.id, tenant="another")


@on_job_stages
async def test_a_job_that_is_cancelled_before_its_first_step_ends_at_once(stages: JobStages) -> None:
    """Nobody waits the five seconds that a task has to clean up, and no log says that it runs on."""
    stage = await stages.open(tasks=TASKS)
    durable = stage.gateway.durable
    handle = await stage.submit(naps, 30.0)
    while durable.running == 0:  # noqa: ASYNC110 - the very next step after its claim
        await asyncio.sleep(0)
    durable.stop_here(handle.id)
    assert (await handle.wait()).state is JobState.CANCELLED
    assert stage.now < 1


@on_each_loop
async def test_many_cancels_at_once_leave_no_place_taken(stages: JobStages) -> None:
    """Also those that meet a job between its claim and its first step."""
    stage = await stages.open(tasks=TASKS, jobs={"workers": 8})
    handles = [await stage.submit(naps, 30.0) for _ in range(60)]

    async def cancel(number: int) -> None:
        await asyncio.sleep(number * 0.01)
        await handles[number].cancel()

    await asyncio.gather(*map(cancel, range(60)))
    jobs = [await handle.wait() for handle in handles]
    assert {job.state for job in jobs} == {JobState.CANCELLED}
    await asyncio.sleep(0.3)
    assert stage.gateway.durable.running == 0
    assert (await stage.ended(naps, 0.01)).state is JobState.COMPLETED


# ---- Going away ------------------------------------------------------------------------------------------


@on_each_loop
async def test_closing_lets_what_runs_finish_and_starts_nothing_new(stages: JobStages) -> None:
    stage = await stages.open(tasks=TASKS, jobs={"workers": 2})
    handles = [await stage.submit(naps, 1.0) for _ in range(4)]
    await asyncio.sleep(0.5)
    await stage.gateway.aclose(drain_s=30)
    desk = await stages.open(tasks=TASKS, work=False)
    states = [(await desk.gateway.jobs.get(handle.id)).state for handle in handles]
    assert states == [JobState.COMPLETED] * 2 + [JobState.PENDING] * 2


@pytest.mark.parametrize("task", [naps, deaf, clumsy])
@on_job_stages
async def test_what_has_not_finished_by_then_goes_back_uncounted(stages: JobStages, task: Any) -> None:
    """Whether it stops when told, will not, or breaks while it cleans up: no deploy costs a job an attempt."""
    stage = await stages.open(tasks=TASKS)
    handle = await stage.submit(task, 100.0, max_attempts=1)
    await asyncio.sleep(5)
    await stage.gateway.aclose(drain_s=7)
    assert stage.now <= 5 + 7 + 10
    desk = await stages.open(tasks=TASKS, work=False)
    job = await desk.gateway.jobs.get(handle.id)
    assert (job.state, job.attempts, job.deferrals, job.crashes) == (JobState.PENDING, 0, 1, 0)
    assert job.error == "its worker was shutting down"


@on_each_loop
async def test_a_job_that_waits_at_a_gate_goes_back_when_the_gateway_closes(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 1.0, "slots": 1}, tasks=TASKS)
    handles = [await stage.submit(asks, max_attempts=1) for _ in range(2)]
    await asyncio.sleep(0.5)
    await stage.gateway.aclose(drain_s=30)
    desk = await stages.open(tasks=TASKS, work=False)
    jobs = [await desk.gateway.jobs.get(handle.id) for handle in handles]
    assert [(job.state, job.attempts) for job in jobs] == [(JobState.COMPLETED, 1), (JobState.PENDING, 0)]
    assert stage.provider.calls == 1


@on_job_stages
async def test_the_next_worker_takes_over_at_once_and_in_order(stages: JobStages) -> None:
    order: list[int] = []

    @headgate.task("ordered")
    async def ordered(ctx: Context, number: int) -> None:
        await asyncio.sleep(10)
        order.append(number)

    first = await stages.open(tasks=[ordered], jobs={"workers": 2})
    for number in range(4):
        await first.submit(ordered, number)
        await asyncio.sleep(0.1)
    await asyncio.sleep(5)
    await first.gateway.aclose(drain_s=0)
    second = await stages.open(tasks=[ordered], jobs={"workers": 1})
    start = second.now
    while len(order) < 4:
        await stages.world.clock.sleep(1)
    assert order == [0, 1, 2, 3], "who was sent back at once keeps its place in line"
    assert second.now - start == pytest.approx(40, abs=1.1)


@on_job_stages
async def test_a_closed_gateway_takes_no_jobs_and_runs_none(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    stage = await stages.open(tasks=TASKS)
    await stage.gateway.aclose()
    with pytest.raises(headgate.StoreUnavailable, match="is closed"):
        await stage.submit(naps, 1.0)
    with pytest.raises(headgate.StoreUnavailable, match="is closed"):
        await stage.gateway.work()
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(60)
    assert "no jobs can be claimed" not in caplog.text
