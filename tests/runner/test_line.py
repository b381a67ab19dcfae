"""Who runs when: priorities that age, tenants in turns, lanes, times to come and times that are up."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from conftest import Figure
from jobstage import JobStage, JobStages, on_job_stages

import headgate
from headgate import Context, InvalidRequest, JobState, Lane
from headgate.core.events import JobSettled, Responded

ORDER: list[Any] = []


@headgate.task("notes")
async def notes(ctx: Context, name: Any) -> None:
    """A second of work; one worker makes the line visible."""
    ORDER.append(name)
    await asyncio.sleep(1)


@headgate.task("slow-notes")
async def slow_notes(ctx: Context, name: Any) -> None:
    ORDER.append(name)
    await asyncio.sleep(10)


@headgate.task("asks", model="m")
async def asks(ctx: Context, name: Any) -> None:
    await ctx.llm.complete(messages=[{"role": "user", "content": "?"}])
    ORDER.append(name)


@pytest.fixture(autouse=True)
def _empty() -> None:
    ORDER.clear()


async def _one_at_a_time(stages: JobStages) -> JobStage:
    """A worker with one place, and a job that takes it while the line forms."""
    stage = await stages.open(tasks=[notes, slow_notes, asks], jobs={"workers": 1})
    await stage.submit(notes, "first")
    await asyncio.sleep(0.5)
    return stage


async def _all_done(stage: JobStage) -> None:
    while (await stage.gateway.jobs.count(tenant=None))["pending"] + stage.gateway.durable.running:
        await stage.world.clock.sleep(1)


# ---- Priority and age ---------------------------------------------------------------------------------------


@on_job_stages
async def test_lower_priorities_go_first_and_equals_in_the_order_they_came(stages: JobStages) -> None:
    stage = await _one_at_a_time(stages)
    for number, priority in enumerate((9, 5, 0, 5, 9, 0)):
        await stage.submit(notes, f"{priority}.{number}", priority=priority)
    await _all_done(stage)
    assert ORDER == ["first", "0.2", "0.5", "5.1", "5.3", "9.0", "9.4"]


@on_job_stages
async def test_a_job_of_the_last_priority_is_overtaken_for_nine_minutes_and_then_never_again(
    stages: JobStages,
) -> None:
    """A flood of urgent jobs, twice as fast as they can be done, does not starve the patient one."""
    stage = await _one_at_a_time(stages)
    await stage.submit(notes, "patient", priority=9)
    flood = 0
    while "patient" not in ORDER:
        await stage.submit(slow_notes, flood, priority=0)
        flood += 1
        await asyncio.sleep(5)
    ahead = [name for name in ORDER[: ORDER.index("patient")] if isinstance(name, int)]
    assert ahead == list(range(108)), "those of its first 540 s, one every 5 s, in their order"


@on_job_stages
async def test_an_interactive_job_goes_as_if_it_had_come_ten_minutes_earlier(stages: JobStages) -> None:
    stage = await _one_at_a_time(stages)
    await stage.submit(notes, "batch, urgent", priority=0)
    await stage.submit(notes, "batch")
    await stage.submit(notes, "interactive", lane="interactive")
    await stage.submit(notes, "interactive, patient", lane="interactive", priority=9)
    await _all_done(stage)
    assert ORDER == ["first", "interactive", "interactive, patient", "batch, urgent", "batch"]


@on_job_stages
async def test_a_jobs_calls_wait_in_its_lane_at_the_gate(stages: JobStages) -> None:
    """Somebody waits for an interactive job: its call is granted before the batch calls that came earlier."""
    stage = await stages.open({"latency_s": 10.0, "slots": 4, "depth": 20}, tasks=[asks])
    for number in range(5):
        await stage.submit(asks, number)
    await asyncio.sleep(1)
    own = asyncio.create_task(stage.gateway.complete(model="m", messages=[{"role": "user", "content": "?"}]))
    await asyncio.sleep(1)
    gate = stage.gateway.status().upstreams[0]
    assert (gate.rt_queue, gate.be_queue) == (1, 1)
    await own
    assert stage.now == pytest.approx(20, abs=0.01), "a direct interactive call overtakes the job that waits"
    await _all_done(stage)
    lanes = {event.lane for event in stage.told(Responded)}
    assert lanes == {Lane.BATCH, Lane.INTERACTIVE}
    interactive = await stage.submit(asks, "interactive", lane="interactive")
    await interactive.wait()
    assert stage.told(Responded)[-1].lane is Lane.INTERACTIVE


@pytest.mark.parametrize("priority", [-1, 10, 2.5, True, "5", None])
@on_job_stages
async def test_a_priority_is_a_whole_number_from_0_to_9(stages: JobStages, priority: Any) -> None:
    stage = await stages.open(tasks=[notes], work=False)
    with pytest.raises(InvalidRequest, match="priority must be a whole number from 0 to 9"):
        await stage.submit(notes, 1, priority=priority)


@pytest.mark.parametrize("lane", ["", "fast", None, 5])
@on_job_stages
async def test_a_lane_is_interactive_or_batch(stages: JobStages, lane: Any) -> None:
    stage = await stages.open(tasks=[notes], work=False)
    with pytest.raises(InvalidRequest, match="lane"):
        await stage.submit(notes, 1, lane=lane)


# ---- Tenants --------------------------------------------------------------------------------------------------


@on_job_stages
async def test_tenants_take_turns_however_many_jobs_one_of_them_has(stages: JobStages) -> None:
    stage = await _one_at_a_time(stages)
    for tenant, count in (("busy", 30), ("calm", 3), ("other", 3)):
        for number in range(count):
            await stage.submit(notes, f"{tenant}.{number}", tenant=tenant)
    while len(ORDER) < 12:
        await stages.world.clock.sleep(1)
    turns = [name.split(".")[0] for name in ORDER[1:10]]
    assert Counter(turns) == {"busy": 3, "calm": 3, "other": 3}
    assert [name for name in ORDER if name.startswith("calm")] == ["calm.0", "calm.1", "calm.2"]


@on_job_stages
async def test_urgency_does_not_buy_another_tenants_turn(stages: JobStages) -> None:
    """Otherwise everybody would be urgent."""
    stage = await _one_at_a_time(stages)
    for number in range(6):
        await stage.submit(notes, f"urgent.{number}", tenant="urgent", priority=0, lane="interactive")
        await stage.submit(notes, f"patient.{number}", tenant="patient", priority=9)
    await _all_done(stage)
    turns = [name.split(".")[0] for name in ORDER[1:]]
    assert all(set(turns[at : at + 2]) == {"urgent", "patient"} for at in range(0, 12, 2))


@on_job_stages
async def test_models_share_the_places_of_a_worker(stages: JobStages) -> None:
    """A backlog for one model does not keep the other's jobs waiting."""
    models = {"other": {"upstreams": [{"provider": "simulated", "latency_s": 1.0, "slots": 100}]}}
    stage = await stages.open(
        {"latency_s": 1.0, "slots": 100}, tasks=[notes, asks], jobs={"workers": 8}, models=models, work=False
    )
    for number in range(200):
        await stage.submit(asks, f"m.{number}")
    for number in range(8):
        await stage.submit(notes, f"other.{number}", model="other")
    await stage.gateway.work()
    await asyncio.sleep(3)
    assert sum(name.startswith("other") for name in ORDER) == 8


# ---- Times ----------------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_job_starts_when_it_is_due_and_never_before(stages: JobStages, figure: Figure) -> None:
    stage = await stages.open(tasks=[notes], jobs={"workers": 100})
    times = [0.001, 0.5, 0.999, 1.0, 7.25, 59.9, 60.0, 601.123]
    handles = [await stage.submit(notes, at, run_at=stage.epoch + at) for at in times]
    late_ms = []
    for handle, at in zip(handles, times, strict=True):
        job = await handle.wait()
        assert job.started_at is not None
        late_ms.append((job.started_at.timestamp() - stage.epoch + stage.now - at) * 1000)
    figure("run_at of a job", f"{max(late_ms):.1f} ms late at most, never early (≤ 2 ms)")
    assert min(late_ms) >= -0.001
    assert max(late_ms) <= 2


@on_job_stages
async def test_a_job_that_gets_due_while_all_places_are_taken_waits_for_one(stages: JobStages) -> None:
    """A full worker that knew of the next job's time used to look for it without a rest until a place was free."""
    stage = await stages.open(tasks=[notes], jobs={"workers": 1})
    later = await stage.submit(notes, "later", run_at=stage.epoch + 5)
    await asyncio.sleep(1.5)
    for number in range(8):
        await stage.submit(notes, number)
    job = await later.wait()
    assert job.started_at is not None
    assert (job.started_at - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds() == pytest.approx(9.5, abs=0.01)


@pytest.mark.parametrize(
    "given",
    [
        datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC),
        datetime(2026, 1, 1, 9, 0, 30, tzinfo=timezone(timedelta(hours=9))),
        datetime(2026, 1, 1, tzinfo=UTC).timestamp() + 30,
        int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) + 30,
    ],
)
@on_job_stages
async def test_a_time_is_a_datetime_with_its_zone_or_epoch_seconds(stages: JobStages, given: Any) -> None:
    stage = await stages.open(tasks=[notes])
    job = await stage.ended(notes, 1, run_at=given)
    assert job.run_at == datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
    assert stage.now == pytest.approx(31, abs=0.01)


@pytest.mark.parametrize(
    "given",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001 - the mistake
        "2026-01-01",
        float("nan"),
        float("inf"),
        True,
        datetime(2030, 1, 1, tzinfo=UTC),
    ],
)
@on_job_stages
async def test_any_other_time_is_refused(stages: JobStages, given: Any) -> None:
    stage = await stages.open(tasks=[notes], work=False)
    with pytest.raises(InvalidRequest) as caught:
        await stage.submit(notes, 1, run_at=given)
    assert caught.value.param == "run_at"


@on_job_stages
async def test_a_time_that_has_passed_means_now(stages: JobStages) -> None:
    """It gains no place in line by pretending to have waited."""
    stage = await _one_at_a_time(stages)
    await stage.submit(notes, "honest")
    await asyncio.sleep(0.1)
    await stage.submit(notes, "clever", run_at=0)
    await _all_done(stage)
    assert ORDER == ["first", "honest", "clever"]


# ---- Expiry -------------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_job_that_is_not_done_in_time_is_given_up(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    stage = await stages.open({"latency_s": 1.0, "outcome": "misconfigured"}, tasks=[asks])
    handle = await stage.submit(asks, 1, expires_after_s=200)
    job = await handle.wait()
    assert 200 <= stage.now <= 206
    assert (job.state, job.reason, job.attempts) == (JobState.DEAD_LETTER, "expired", 0)
    assert f"dead_letter job={job.id} task=asks reason=expired attempts=0" in caplog.text
    last = stage.told(JobSettled)[-1]
    assert (last.state, last.reason, last.failure) == ("dead_letter", "expired", "expired")


@on_job_stages
async def test_time_counts_from_when_the_job_was_due(stages: JobStages) -> None:
    stage = await stages.open(tasks=[notes])
    job = await stage.ended(notes, 1, run_at=stage.epoch + 1000, expires_after_s=10)
    assert job.state is JobState.COMPLETED
    assert (job.expires_at - job.run_at).total_seconds() == 10


@on_job_stages
async def test_a_job_whose_time_is_up_is_not_started_any_more(stages: JobStages) -> None:
    """A worker that comes back after a night must not call a model for what nobody wants now."""
    desk = await stages.open(tasks=[asks], work=False)
    handles = [await desk.submit(asks, number, expires_after_s=60) for number in range(5)]
    await asyncio.sleep(100)
    worker = await stages.open(tasks=[asks])
    jobs = [await handle.wait() for handle in handles]
    assert {(job.state, job.reason, job.attempts) for job in jobs} == {(JobState.DEAD_LETTER, "expired", 0)}
    assert worker.provider.calls == 0


@on_job_stages
async def test_a_job_that_expires_between_two_attempts_still_tells_why_it_failed(stages: JobStages) -> None:
    """Whoever looks at the dead letter needs the cause, not the calendar."""

    @headgate.task("fails")
    async def fails(ctx: Context, given: Any) -> None:
        raise ValueError("the disk is full")

    desk = await stages.open(tasks=[fails], work=False)
    handle = await desk.submit(fails, expires_after_s=8)
    first = await stages.open(tasks=[fails])
    await asyncio.sleep(1)
    await first.gateway.aclose()
    await asyncio.sleep(100)
    worker = await stages.open(tasks=[fails])
    job = await handle.wait()
    assert (job.reason, job.attempts, job.error_class) == ("expired", 1, "broken")
    assert (
        job.error
        == "its time was up before it could start; last failure: broken ValueError: the disk is full"
    )
    assert [entry.outcome for entry in job.history] == ["failed", "expired"]
    last = worker.told(JobSettled)[-1]
    assert (last.state, last.reason) == ("dead_letter", "expired")


@on_job_stages
async def test_a_job_that_runs_when_its_time_is_up_may_finish(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 50.0}, tasks=[asks])
    assert (await stage.ended(asks, 1, expires_after_s=20)).state is JobState.COMPLETED


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "60", 1e9])
@pytest.mark.parametrize("name", ["expires_after_s", "timeout_s"])
@on_job_stages
async def test_seconds_are_a_number_above_0_and_within_a_year(
    stages: JobStages, name: str, seconds: Any
) -> None:
    stage = await stages.open(tasks=[notes], work=False)
    with pytest.raises(InvalidRequest, match=name) as caught:
        await stage.submit(notes, 1, **{name: seconds})
    assert caught.value.param == name
