"""Dead letters: how they come back by themselves, how people send them back, and how they are let go."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import Figure
from jobstage import JobStage, JobStages, database, on_each_database, on_job_stages

import headgate
from headgate import Context, InvalidRequest, JobState, Reason, StateConflict, UnknownJob
from headgate.core.events import JobsReplayed, KeyUsed

__all__ = ["database"]
USER = [{"role": "user", "content": "?"}]
WORKS: dict[str, bool] = {}
RUNS: list[float] = []


@headgate.task("fragile")
async def fragile(ctx: Context, given: Any) -> str:
    RUNS.append(asyncio.get_running_loop().time())
    if given == "wrong":
        raise headgate.Reject("it is wrong")
    if not WORKS.get("now"):
        raise ValueError("not yet")
    return f"done {given}"


@headgate.task("asks", model="m")
async def asks(ctx: Context, given: Any) -> str | None:
    return (await ctx.llm.complete(messages=USER)).content


@pytest.fixture(autouse=True)
def _start() -> None:
    WORKS.clear()
    RUNS.clear()


async def _exhausted(stage: JobStage, count: int, given: Any = "x", **options: Any) -> list[str]:
    handles = [await stage.submit(fragile, given, max_attempts=1, **options) for _ in range(count)]
    for handle in handles:
        assert (await handle.wait()).state is JobState.DEAD_LETTER
    return [handle.id for handle in handles]


# ---- By themselves -----------------------------------------------------------------------------------------


@on_job_stages
async def test_an_exhausted_job_comes_back_after_its_cool_down(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile], jobs={"revive_after_s": 100})
    (job_id,) = await _exhausted(stage, 1)
    WORKS["now"] = True
    await asyncio.sleep(125)
    job = await stage.gateway.jobs.get(job_id)
    assert (job.state, job.revivals, job.generation, job.attempts) == (JobState.COMPLETED, 1, 1, 1)
    assert 100 <= RUNS[1] <= 117, "after its cool-down, at the next look"
    assert [entry.outcome for entry in job.history] == ["failed", "revived", "completed"]


@on_job_stages
async def test_it_comes_back_three_times_and_then_stays(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile], jobs={"revive_after_s": 60})
    (job_id,) = await _exhausted(stage, 1)
    await asyncio.sleep(1000)
    job = await stage.gateway.jobs.get(job_id)
    assert (job.state, job.reason, job.revivals) == (JobState.DEAD_LETTER, "exhausted", 3)
    assert len(RUNS) == 4


@on_job_stages
async def test_each_revival_has_all_its_attempts_and_its_time_anew(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile], jobs={"revive_after_s": 60, "expires_after_s": 100})
    handle = await stage.submit(fragile, "x", max_attempts=2)
    await asyncio.sleep(400)
    job = await handle.job()
    assert (len(RUNS), job.reason, job.revivals, job.attempts) == (8, "exhausted", 3, 2)


@on_job_stages
async def test_only_exhausted_jobs_come_back(stages: JobStages) -> None:
    """A wrong request stays wrong, and what expired is not wanted any more."""
    stage = await stages.open(tasks=[fragile], jobs={"revive_after_s": 60})
    wrong = await stage.submit(fragile, "wrong")
    late = await stage.submit(fragile, "late", expires_after_s=3)
    discarded = (await _exhausted(stage, 1))[0]
    await stage.gateway.dead_letters.discard(discarded)
    await asyncio.sleep(500)
    assert [(await stage.gateway.jobs.get(one)).revivals for one in (wrong.id, late.id, discarded)] == [
        0,
        0,
        0,
    ]


@on_job_stages
async def test_one_that_comes_back_to_a_closed_model_is_not_spent_on_it(stages: JobStages) -> None:
    """Its cool-down ends while the model throttles everything: it may be a probe, but each refusal is forgiven."""
    throttled = {"status": 429, "retry_after_s": 200}
    stage = await stages.open(
        {"latency_s": 1.0, "script": ["transient", *[throttled] * 8]},
        tasks=[asks],
        jobs={"revive_after_s": 60},
    )
    handle = await stage.submit(asks, max_attempts=1)
    assert (await handle.wait()).state is JobState.DEAD_LETTER
    others = [stage.gateway.complete(model="m", messages=USER, deadline_s=150) for _ in range(6)]
    ends = await asyncio.gather(*others, return_exceptions=True)
    assert {type(end) for end in ends} == {headgate.UpstreamThrottled}
    await asyncio.sleep(600)
    job = await handle.job()
    assert (job.state, job.revivals, job.attempts) == (JobState.COMPLETED, 1, 1)


@on_job_stages
async def test_nobody_comes_back_while_the_model_is_held_as_misconfigured(stages: JobStages) -> None:
    script = ["transient", *["misconfigured"] * 3]
    stage = await stages.open({"latency_s": 1.0, "script": script}, tasks=[asks], jobs={"revive_after_s": 10})
    handle = await stage.submit(asks, max_attempts=1)
    await handle.wait()
    for _ in range(3):
        with pytest.raises(headgate.UpstreamMisconfigured):
            await stage.gateway.complete(model="m", messages=USER)
    held_at = stage.now
    job = await stage.until(handle, JobState.COMPLETED)
    assert job.revivals == 1
    assert stage.provider.starts[-1] >= held_at + 30


@on_job_stages
async def test_a_revived_job_does_not_run_beside_its_twin(stages: JobStages) -> None:
    """Another job with its dedup key is at work: it looks again later."""
    stage = await stages.open(tasks=[fragile], jobs={"revive_after_s": 60})
    (job_id,) = await _exhausted(stage, 1, dedup_key="d")
    twin = await stage.submit(fragile, "x", dedup_key="d", run_at=stage.epoch + 200)
    assert twin.created
    await asyncio.sleep(150)
    assert (await stage.gateway.jobs.get(job_id)).state is JobState.DEAD_LETTER
    WORKS["now"] = True
    await asyncio.sleep(200)
    jobs = [await stage.gateway.jobs.get(one) for one in (job_id, twin.id)]
    assert [job.state for job in jobs] == [JobState.COMPLETED] * 2


# ---- By people ----------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_replay_is_a_new_generation_with_its_whole_history(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile])
    (job_id,) = await _exhausted(stage, 1)
    WORKS["now"] = True
    handle = await stage.gateway.dead_letters.replay(job_id, by="anna")
    assert handle.id == job_id
    assert await handle.result() == "done x"
    job = await handle.job()
    assert (job.generation, job.attempts, job.revivals, job.error, job.reason) == (2, 1, 0, None, None)
    assert [(entry.outcome, entry.generation, entry.by) for entry in job.history] == [
        ("failed", 1, None),
        ("replayed", 2, "anna"),
        ("completed", 2, None),
    ]
    assert [(event.by, event.count) for event in stage.told(JobsReplayed)] == [("anna", 1)]


@on_job_stages
async def test_a_replay_may_bring_another_input_and_keeps_the_old_one(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile])
    WORKS["now"] = True
    handle = await stage.submit(fragile, "wrong")
    assert (await handle.wait()).reason == "permanent"
    again = await stage.gateway.dead_letters.replay(handle.id, input="right")
    assert await again.result() == "done right"
    job = await again.job()
    assert (job.input, job.history[1].input) == ("right", "wrong")


@on_job_stages
async def test_an_edited_input_is_checked_like_any_other(stages: JobStages) -> None:
    @headgate.task("typed")
    async def typed(ctx: Context, given: int) -> None:
        raise ValueError("no")

    stage = await stages.open(tasks=[typed])
    job = await stage.ended(typed, 5, max_attempts=1)
    with pytest.raises(InvalidRequest, match="does not fit task 'typed'"):
        await stage.gateway.dead_letters.replay(job.id, input="text")
    assert await stage.gateway.jobs.get(job.id) == job


@on_each_database
async def test_an_edited_input_that_names_another_model_moves_the_job_there(stages: JobStages) -> None:
    """As a submission of it would go there; one that names the old model, or none, stays where it was."""
    stage = await stages.open({"latency_s": 0.1})
    body = {"model": "simulated/rejecting", "messages": USER}
    dead = stage.gateway.dead_letters
    job = await stage.ended("chat", body)
    for kept in (body, {"messages": USER}):
        again = await (await dead.replay(job.id, input=kept)).wait()
        assert (again.state, again.model) == (JobState.DEAD_LETTER, "simulated/rejecting")
    with pytest.raises(headgate.UnknownModel):
        await dead.replay(job.id, input={**body, "model": "nobody"})
    moved = await (await dead.replay(job.id, input={**body, "model": "m"})).wait()
    assert (moved.state, moved.model, stage.provider.calls) == (JobState.COMPLETED, "m", 1)


@on_job_stages
async def test_a_job_that_was_given_its_model_apart_keeps_it_when_something_else_is_edited(
    stages: JobStages,
) -> None:
    """The submission's model went before the input's. That the input still names its own is no wish to change it."""
    stage = await stages.open({"latency_s": 0.1, "script": ["rejected"]})
    body = {"model": "simulated/down", "messages": USER}
    job = await stage.ended("chat", body, model="m")
    assert (job.state, job.model) == (JobState.DEAD_LETTER, "m")
    again = await (await stage.gateway.dead_letters.replay(job.id, input={**body, "temperature": 1})).wait()
    assert (again.state, again.model) == (JobState.COMPLETED, "m")


@on_each_database
async def test_under_a_key_a_replay_is_done_once_whatever_becomes_of_the_job(stages: JobStages) -> None:
    """Whoever lost the answer asks again: by then the job may run, be done, or be dead once more."""
    stage = await stages.open(tasks=[fragile])
    (job_id,) = await _exhausted(stage, 1)
    dead = stage.gateway.dead_letters
    first = await dead.replay(job_id, input="x", idempotency_key="click")
    while_it_waits = await dead.replay(job_id, input="x", idempotency_key="click")
    assert (await first.wait()).state is JobState.DEAD_LETTER
    after_it_died = await dead.replay(job_id, input="x", idempotency_key="click")
    assert [one.created for one in (first, while_it_waits, after_it_died)] == [True, False, False]
    with pytest.raises(headgate.KeyMismatch):
        await dead.replay(job_id, input="y", idempotency_key="click")
    assert (await stage.gateway.jobs.get(job_id)).generation == 2
    assert sum(event.count for event in stage.told(JobsReplayed)) == 1
    outcomes = [event.outcome for event in stage.told(KeyUsed)]
    assert outcomes == ["ran", "replayed", "replayed", "mismatch"]


@on_job_stages
async def test_only_a_dead_letter_can_be_replayed_or_discarded(stages: JobStages) -> None:
    WORKS["now"] = True
    stage = await stages.open(tasks=[fragile])
    dead = stage.gateway.dead_letters
    done = await stage.ended(fragile, "x")
    waits = await stage.submit(fragile, "x", run_at=stage.epoch + 100)
    for job_id, state in ((done.id, "completed"), (waits.id, "pending")):
        with pytest.raises(StateConflict, match=f"is {state}, not a dead letter"):
            await dead.replay(job_id)
        with pytest.raises(StateConflict, match=f"is {state}, not a dead letter"):
            await dead.discard(job_id)
    for act in (dead.replay, dead.discard):
        with pytest.raises(UnknownJob):
            await act("nobody")
    assert stage.told(JobsReplayed) == []


@on_job_stages
async def test_another_tenants_dead_letters_are_out_of_reach(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile])
    dead = stage.gateway.dead_letters
    job = await (await stage.submit(fragile, "x", max_attempts=1, tenant="theirs")).wait()
    assert await dead.list() == []
    assert [one.id for one in await dead.list(tenant="theirs")] == [job.id]
    for act in (dead.replay, dead.discard):
        with pytest.raises(UnknownJob):
            await act(job.id)
    assert [done async for done in dead.replay_many(task="fragile")] == []


@on_job_stages
async def test_a_replay_that_would_run_beside_its_twin_is_refused(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile])
    (job_id,) = await _exhausted(stage, 1, dedup_key="d")
    await stage.submit(fragile, "x", dedup_key="d", run_at=stage.epoch + 100)
    with pytest.raises(StateConflict, match="another job with dedup_key 'd' is at work"):
        await stage.gateway.dead_letters.replay(job_id)


@on_job_stages
async def test_a_discarded_one_needs_nobody_any_more(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile])
    (job_id,) = await _exhausted(stage, 1)
    await stage.gateway.dead_letters.discard(job_id, by="anna")
    job = await stage.gateway.jobs.get(job_id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "discarded")
    assert (job.history[-1].outcome, job.history[-1].by) == ("discarded", "anna")
    assert await stage.gateway.dead_letters.list() == []


# ---- Many ---------------------------------------------------------------------------------------------------


@on_job_stages
async def test_they_are_listed_newest_first_page_by_page(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile])
    ids = await _exhausted(stage, 7)
    dead = stage.gateway.dead_letters
    pages = [await dead.list(limit=3)]
    while pages[-1]:
        pages.append(await dead.list(limit=3, after=pages[-1][-1].id))
    assert [one.id for page in pages for one in page] == ids[::-1]
    assert {(one.input, one.history) for one in pages[0]} == {(None, ())}
    assert {(one.job_type, one.retryable, one.error_message) for one in pages[0]} == {
        ("fragile", True, "broken ValueError: not yet")
    }


@on_job_stages
async def test_every_filter_narrows_the_list(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 1.0, "outcome": "rejected"}, tasks=[fragile, asks])
    dead = stage.gateway.dead_letters
    (early,) = await _exhausted(stage, 1)
    await asyncio.sleep(100)
    between = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=50)
    wrong = (await stage.ended(fragile, "wrong")).id
    asked = (await stage.ended(asks)).id

    async def listed(**filters: Any) -> set[str]:
        return {one.id for one in await dead.list(**filters)}

    assert await listed(task="asks") == {asked}
    assert await listed(reason="permanent") == await listed(reason=Reason.PERMANENT) == {wrong, asked}
    assert await listed(model="m") == {asked}
    assert await listed(error_class="broken") == {early}
    assert await listed(since=between) == {wrong, asked}
    assert await listed(until=between) == {early}
    assert await listed(reason="permanent", task="fragile") == {wrong}
    assert {one.id: one.retryable for one in await dead.list()} == {early: True, wrong: False, asked: False}


@on_job_stages
async def test_a_filter_that_makes_no_sense_is_refused(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile], work=False)
    dead = stage.gateway.dead_letters
    with pytest.raises(InvalidRequest, match="reason must be one of exhausted, permanent, poison, expired"):
        await dead.list(reason="tired")
    with pytest.raises(InvalidRequest, match="since must be a datetime with its time zone, not datetime"):
        await dead.list(since=datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake
    for moment in ("x", 5, "2026-01-01T00:00:00Z"):
        with pytest.raises(InvalidRequest, match="until must be a datetime with its time zone, not"):
            await dead.list(until=moment)  # type: ignore[arg-type]
    for limit in (0, 1001, True, 2.5):
        with pytest.raises(InvalidRequest, match="limit"):
            await dead.list(limit=limit)  # type: ignore[arg-type]


@on_job_stages
async def test_all_of_them_must_be_meant(stages: JobStages) -> None:
    """`replay_many()` by mistake on a backlog of a year would be a storm."""
    stage = await stages.open(tasks=[fragile])
    (job_id,) = await _exhausted(stage, 1)
    dead = stage.gateway.dead_letters
    for many in (dead.replay_many, dead.discard_many):
        with pytest.raises(InvalidRequest, match="say which: task, reason, model"):
            await anext(aiter(many()))
        for per_second in (0, -1, 10_001, float("nan"), True, "5"):
            with pytest.raises(InvalidRequest, match="per_second"):
                await anext(aiter(many(reason="exhausted", per_second=per_second)))  # type: ignore[arg-type]
    assert (await stage.gateway.jobs.get(job_id)).state is JobState.DEAD_LETTER


@on_job_stages
async def test_many_go_back_no_faster_than_asked(stages: JobStages, figure: Figure) -> None:
    stage = await stages.open(tasks=[fragile], jobs={"max_pending": 10_000})
    ids = await _exhausted(stage, 250)
    WORKS["now"] = True
    start = stage.now
    replay = stage.gateway.dead_letters.replay_many(reason="exhausted", by="anna", per_second=50)
    told = [(done, stage.now - start) async for done in replay]
    assert [done for done, _ in told] == [50, 100, 150, 200, 250]
    assert [at for _, at in told] == pytest.approx([0, 1, 2, 3, 4], abs=0.01)
    figure("replay of 250 dead letters at 50 a second", f"{stage.now - start:.1f} s (5.0 s)")
    for job_id in ids:
        assert (await stage.gateway.jobs.wait(job_id)).state is JobState.COMPLETED
    assert [(event.by, event.count) for event in stage.told(JobsReplayed)] == [("anna", 50)] * 5


@on_job_stages
async def test_whoever_stops_iterating_stops_the_replay(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile])
    await _exhausted(stage, 30)
    WORKS["now"] = True
    async for done in stage.gateway.dead_letters.replay_many(task="fragile", per_second=10):
        if done == 10:
            break
    await asyncio.sleep(5)
    assert await stage.gateway.jobs.count() == {
        "pending": 0,
        "running": 0,
        "completed": 10,
        "skipped": 0,
        "dead_letter": 20,
        "cancelled": 0,
    }


@on_job_stages
async def test_what_dies_again_during_a_replay_is_not_replayed_for_ever(stages: JobStages) -> None:
    """They die faster than they are sent back; each is still sent once."""
    stage = await stages.open(tasks=[fragile])
    await _exhausted(stage, 40)
    counts = [
        done async for done in stage.gateway.dead_letters.replay_many(reason="exhausted", per_second=10)
    ]
    await asyncio.sleep(5)
    assert counts == [10, 20, 30, 40]
    assert len(RUNS) == 80


@on_job_stages
async def test_many_are_discarded_the_same_way(stages: JobStages) -> None:
    stage = await stages.open(tasks=[fragile])
    await _exhausted(stage, 30)
    keep = (await stage.ended(fragile, "wrong")).id
    start = stage.now
    counts = [
        done
        async for done in stage.gateway.dead_letters.discard_many(
            reason="exhausted", by="anna", per_second=10
        )
    ]
    assert counts == [10, 20, 30]
    assert stage.now - start == pytest.approx(3.0)
    assert [one.id for one in await stage.gateway.dead_letters.list()] == [keep]


# ---- Not for ever ---------------------------------------------------------------------------------------------


@on_job_stages
async def test_finished_jobs_are_kept_for_their_days_and_live_ones_for_ever(stages: JobStages) -> None:
    WORKS["now"] = True
    stage = await stages.open(tasks=[fragile], jobs={"retention_days": 0.01})
    done = await stage.ended(fragile, "x")
    dead = await stage.ended(fragile, "wrong")
    waits = await stage.submit(fragile, "later", run_at=stage.epoch + 5000)
    await asyncio.sleep(800)
    assert (await stage.gateway.jobs.get(done.id)).state is JobState.COMPLETED
    await asyncio.sleep(200)
    for job_id in (done.id, dead.id):
        with pytest.raises(UnknownJob):
            await stage.gateway.jobs.get(job_id)
    assert (await waits.job()).state is JobState.PENDING


@on_job_stages
async def test_a_dead_letter_is_one_warning_in_the_log(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    stage = await stages.open(tasks=[fragile])
    job = await stage.ended(fragile, "x", max_attempts=2)
    lines = [record for record in caplog.records if record.getMessage().startswith("dead_letter ")]
    assert [(record.levelname, record.name, record.getMessage()) for record in lines] == [
        ("WARNING", "headgate", f"dead_letter job={job.id} task=fragile reason=exhausted attempts=2")
    ]
