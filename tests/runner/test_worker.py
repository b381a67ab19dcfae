"""The worker on its gates: never more than it may, never more than the models take, and patient with a sick upstream."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from jobstage import JobStage, JobStages, on_each_loop, on_job_stages

import headgate
from headgate import Context, Job, JobState
from headgate.core.budget import BURST
from headgate.core.events import GatePaused, HolderPreempted, JobSettled, RequestRefused, UpstreamHeld
from headgate.runner.jobs import JobHandle

USER = [{"role": "user", "content": "?"}]


class Crowd:
    """How many are inside at one time."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.runs: list[Any] = []

    async def stay(self, who: Any, seconds: float) -> None:
        self.runs.append(who)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.inside -= 1


CROWD = Crowd()


@headgate.task("stays")
async def stays(ctx: Context, who: Any) -> None:
    await CROWD.stay(who, 1.0)


@headgate.task("asks", model="m")
async def asks(ctx: Context, given: Any) -> str | None:
    CROWD.inside += 1
    CROWD.most = max(CROWD.most, CROWD.inside)
    try:
        return (await ctx.llm.complete(messages=USER)).content
    finally:
        CROWD.inside -= 1


TASKS: list[headgate.Task[Any, Any]] = [stays, asks]


@pytest.fixture(autouse=True)
def _nobody_inside() -> None:
    CROWD.__init__()  # type: ignore[misc]


async def _submit(stage: JobStage, task: Any, count: int, **options: Any) -> list[JobHandle]:
    return [await stage.submit(task, number, **options) for number in range(count)]


async def _ends(handles: list[JobHandle]) -> list[Job]:
    return [await handle.wait() for handle in handles]


def _seconds_taken(job: Job) -> float:
    assert job.finished_at is not None
    return (job.finished_at - job.created_at).total_seconds()


# ---- Never more than there is room for ------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 5, 64])
@on_job_stages
async def test_no_more_jobs_run_than_there_are_workers_and_none_of_them_idles(
    stages: JobStages, workers: int
) -> None:
    stage = await stages.open(tasks=TASKS, jobs={"workers": workers})
    jobs = await _ends(await _submit(stage, stays, workers * 4))
    assert {job.state for job in jobs} == {JobState.COMPLETED}
    assert CROWD.most == workers
    assert stage.now == pytest.approx(4.0, abs=0.05)


@pytest.mark.parametrize(
    ("slots", "reserved", "in_flight", "places"), [(1, 0, 1, 2), (4, 1, 3, 4), (8, 0, 8, 10), (2, 2, 1, 2)]
)
@on_job_stages
async def test_no_more_jobs_of_a_model_run_than_its_gate_takes_and_a_few_that_wait(
    stages: JobStages, slots: int, reserved: int, in_flight: int, places: int
) -> None:
    """A job that only waits at a gate holds a worker's place and a lease for nothing."""
    upstream = {"latency_s": 1.0, "slots": slots, "reserved_slots": reserved}
    stage = await stages.open(upstream, tasks=TASKS)
    jobs = await _ends(await _submit(stage, asks, 40))
    assert {(job.state, job.attempts, job.deferrals) for job in jobs} == {(JobState.COMPLETED, 1, 0)}
    assert (stage.provider.most_in_flight, CROWD.most) == (in_flight, places)
    assert stage.now == pytest.approx(-(-40 // in_flight), abs=0.05), "and the gate never waits for a job"


@on_job_stages
async def test_a_job_starts_at_once_wherever_it_was_submitted(stages: JobStages) -> None:
    worker = await stages.open(tasks=TASKS)
    desk = await stages.open(tasks=TASKS, work=False)
    waits_ms = []
    for stage in (worker, desk):
        await asyncio.sleep(3.3)
        job = await stage.ended(stays)
        assert job.started_at is not None
        waits_ms.append((job.started_at - job.created_at).total_seconds() * 1000)
    assert max(waits_ms) <= 2


@on_job_stages
async def test_two_workers_share_the_jobs_and_never_run_one_twice(stages: JobStages) -> None:
    desk = await stages.open(tasks=TASKS, work=False)
    workers = [await stages.open(tasks=TASKS, jobs={"workers": 10}) for _ in range(2)]
    jobs = await _ends(await _submit(desk, stays, 200))
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert sorted(CROWD.runs) == list(range(200))
    shares = [len(worker.told(JobSettled)) for worker in workers]
    assert sum(shares) == 200
    assert min(shares) >= 80
    assert CROWD.most == 20
    assert stages.now == pytest.approx(10, abs=1.1)


# ---- A provider that throttles ----------------------------------------------------------------------------------


@on_job_stages
async def test_a_throttled_job_waits_for_itself_and_costs_no_attempt(stages: JobStages) -> None:
    """One refusal says nothing about the others: they are done long before the one that was refused."""
    script = ["ok"] * 4 + [{"status": 429, "retry_after_s": 100}]
    stage = await stages.open({"latency_s": 1.0, "slots": 2, "script": script}, tasks=TASKS)
    jobs = await _ends(await _submit(stage, asks, 20, max_attempts=1))
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert stage.provider.calls == 20 + 1
    *others, refused = sorted(_seconds_taken(job) for job in jobs)
    assert others[-1] <= 12
    assert refused >= 100
    assert sum(job.deferrals for job in jobs) == 1


@on_job_stages
async def test_a_model_that_throttles_everything_makes_its_jobs_wait_together(stages: JobStages) -> None:
    """While it is closed there is one probe at a time, ever more rarely, and nobody loses an attempt."""
    script = [{"status": 429, "retry_after_s": 60}] * 12
    stage = await stages.open({"latency_s": 1.0, "slots": 4, "script": script}, tasks=TASKS)
    jobs = await _ends(await _submit(stage, asks, 40, max_attempts=1))
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert stage.provider.calls == 40 + 12
    assert stage.told(GatePaused)
    starts = list(stage.provider.starts)
    probes = [at for at in starts[:13] if at > starts[0] + 2]
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert len(probes) >= 5
    assert gaps == sorted(gaps)
    assert 5 * gaps[0] <= gaps[-1] <= 62, "never more rarely than it asks for"


@on_job_stages
async def test_the_jobs_of_a_closed_model_are_not_even_claimed(stages: JobStages) -> None:
    """They would take the places and the leases of jobs that can run."""
    stage = await stages.open(
        {"latency_s": 1.0, "slots": 4, "outcome": {"status": 429, "retry_after_s": 100}}, tasks=TASKS
    )
    await _submit(stage, asks, 20)
    await asyncio.sleep(50)
    seen = []
    for _ in range(100):
        await asyncio.sleep(1)
        seen.append(stage.gateway.durable.running)
    assert max(seen) <= 1, "the probe"
    assert stage.provider.calls <= 15


@on_job_stages
async def test_a_throttle_without_a_hint_costs_no_attempt_either(stages: JobStages) -> None:
    script = ["throttled"] * 6
    stage = await stages.open({"latency_s": 1.0, "slots": 2, "script": script}, tasks=TASKS)
    jobs = await _ends(await _submit(stage, asks, 5, max_attempts=1))
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert stage.provider.calls == 11


@on_each_loop
async def test_the_jobs_of_other_models_go_on_meanwhile(stages: JobStages) -> None:
    models = {"calm": {"upstreams": [{"provider": "simulated", "latency_s": 0.02}]}}
    script = [{"status": 429, "retry_after_s": 100}]
    stage = await stages.open({"latency_s": 0.02, "script": script}, tasks=TASKS, models=models)
    throttled = await stage.submit(asks)
    await asyncio.sleep(0.3)
    chats = [await stage.submit("chat", {"model": "calm", "messages": USER}) for _ in range(10)]
    calm = await _ends(chats)
    assert {job.state for job in calm} == {JobState.COMPLETED}
    assert (await throttled.job()).state is JobState.PENDING


@on_each_loop
async def test_a_second_upstream_takes_the_jobs_while_the_first_refuses_them(stages: JobStages) -> None:
    first = {"latency_s": 0.02, "slots": 2, "outcome": {"status": 429, "retry_after_s": 100}}
    stage = await stages.open(first, {"latency_s": 0.02, "slots": 4}, tasks=TASKS)
    jobs = await _ends(await _submit(stage, asks, 21))
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert max(_seconds_taken(job) for job in jobs) < 50, "nobody waited for what the first one asked for"


# ---- A provider that is down or misconfigured -----------------------------------------------------------------


@on_job_stages
async def test_an_outage_costs_an_attempt_only_until_it_is_seen(stages: JobStages) -> None:
    """Two minutes of it under 60 jobs: the calls that show it are counted, the probes are not."""
    stage = await stages.open(
        {"latency_s": 1.0, "slots": 4, "outage": [[0, 120]], "failure_latency_s": 0.1}, tasks=TASKS
    )
    jobs = await _ends(await _submit(stage, asks, 60))
    assert {job.state for job in jobs} == {JobState.COMPLETED}
    failed_calls = sum(start < 120 for start in stage.provider.starts)
    assert failed_calls == stage.provider.calls - 60
    assert failed_calls <= 40, "a probe every 5 s at most, after the first few"
    assert sum(job.attempts - 1 for job in jobs) <= 4


@on_job_stages
async def test_no_crowd_of_jobs_is_claimed_for_one_probe(stages: JobStages) -> None:
    """Each of them is a claim and a settlement in the database, again at every probe, for nothing."""
    stage = await stages.open(
        {"latency_s": 1.0, "slots": 64, "outage": [[0, 120]], "failure_latency_s": 0.1}, tasks=TASKS
    )
    jobs = await _ends(await _submit(stage, asks, 200))
    failed_calls = stage.provider.calls - len(jobs)
    assert sum(job.deferrals for job in jobs) <= 2 * failed_calls + 64


@on_job_stages
async def test_a_call_that_failed_is_counted_although_the_next_upstream_was_not_asked(
    stages: JobStages,
) -> None:
    """The second upstream is closed: what the first one did to the job is still an attempt."""
    down = {"latency_s": 0.1, "outcome": "transient"}
    stage = await stages.open({**down, "breaker": False}, down, tasks=TASKS)
    handles = await _submit(stage, asks, 5, max_attempts=3)
    await asyncio.sleep(120)
    jobs = [await handle.job() for handle in handles]
    assert {(job.reason, job.attempts) for job in jobs} == {("exhausted", 3)}
    assert stage.provider.calls == 15


@on_job_stages
async def test_a_held_upstream_makes_jobs_wait_until_somebody_mends_it(stages: JobStages) -> None:
    """A wrong key over night: no job is lost, and no probe more often than every 30 s."""
    stage = await stages.open({"latency_s": 1.0, "slots": 2, "script": ["misconfigured"] * 6}, tasks=TASKS)
    jobs = await _ends(await _submit(stage, asks, 10, max_attempts=1))
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert stage.provider.calls == 16
    assert [event.held for event in stage.told(UpstreamHeld)][-1] is False
    probes = list(stage.provider.starts)[3:6]
    assert all(later - earlier >= 30 for earlier, later in pairwise(probes))


@on_job_stages
async def test_who_does_not_hold_fails_for_good_at_a_misconfigured_upstream(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 1.0, "slots": 2, "outcome": "misconfigured"}, tasks=TASKS)
    jobs = await _ends(await _submit(stage, asks, 10, hold=False))
    assert {(job.state, job.reason) for job in jobs} == {(JobState.DEAD_LETTER, "permanent")}
    assert {job.error_class for job in jobs} == {"misconfigured"}


@on_job_stages
async def test_later_attempts_are_paid_from_the_upstreams_budget(stages: JobStages) -> None:
    """60 jobs that want 240 retries of an upstream that never closes get as many as it allows; the others wait uncounted."""
    upstream = {"latency_s": 0.1, "slots": 10, "outcome": "transient", "breaker": False, "retry_budget": 0.5}
    stage = await stages.open(upstream, tasks=TASKS)
    handles = await _submit(stage, asks, 60)
    await asyncio.sleep(150)
    assert stage.provider.calls == 60 + 0.5 * BURST
    jobs = [await handle.job() for handle in handles]
    assert sum(job.attempts for job in jobs) == stage.provider.calls
    assert all(job.state is JobState.PENDING for job in jobs)
    assert any("retry budget is used up" in str(job.error) for job in jobs)


@on_job_stages
async def test_by_default_the_budget_pays_for_all_attempts_of_a_few_jobs(stages: JobStages) -> None:
    upstream = {"latency_s": 0.1, "slots": 10, "outcome": "transient", "breaker": False}
    stage = await stages.open(upstream, tasks=TASKS)
    await _ends(await _submit(stage, asks, 20))
    assert stage.provider.calls == 100


# ---- Giving way -----------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_preempted_job_goes_back_uncounted_and_is_done_later(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 10.0, "slots": 1, "preempt": True}, tasks=TASKS)
    handle = await stage.submit(asks, max_attempts=1)
    await asyncio.sleep(4)
    reply = await stage.gateway.complete(model="m", messages=USER)
    assert reply.latency_ms == pytest.approx(10_000, abs=10), "it did not wait for the job"
    job = await handle.wait()
    assert (job.state, job.attempts, job.deferrals) == (JobState.COMPLETED, 1, 1)
    assert len(stage.told(HolderPreempted)) == 1
    assert (stage.provider.calls, stage.provider.cancelled) == (3, 1)


@on_job_stages
async def test_a_full_queue_sends_jobs_back_uncounted(stages: JobStages) -> None:
    """Jobs without a model of their own may all ask the same one: its gate refuses some, and they come back."""

    @headgate.task("anonymous")
    async def anonymous(ctx: Context, given: Any) -> None:
        await ctx.llm.complete(model="m", messages=USER)

    stage = await stages.open({"latency_s": 1.0, "slots": 2, "depth": 4}, tasks=[anonymous])
    jobs = await _ends(await _submit(stage, anonymous, 40, max_attempts=1))
    assert {(job.state, job.attempts) for job in jobs} == {(JobState.COMPLETED, 1)}
    assert {event.reason for event in stage.told(RequestRefused)} == {"queue_full"}
    assert stage.provider.calls == 40


# ---- Crashes --------------------------------------------------------------------------------------------------


async def _declare_dead(stage: JobStage) -> None:
    """What other nodes do with one that was not heard of: its claims are gone, and it finds out at its renewal."""
    durable = stage.gateway.durable
    await durable.store.bury_dead([durable.node.id])


@on_job_stages
async def test_a_node_that_was_thought_dead_drops_its_jobs_and_joins_anew(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    @headgate.task("long")
    async def long(ctx: Context, given: Any) -> None:
        await CROWD.stay(ctx.job.attempt, 60)

    stage = await stages.open(tasks=[long])
    handle = await stage.submit(long)
    await asyncio.sleep(5)
    await _declare_dead(stage)
    job = await handle.wait()
    assert (job.state, job.attempts, job.crashes) == (JobState.COMPLETED, 1, 1)
    assert CROWD.most == 1, "the old run was stopped before the new one began"
    assert "was declared dead" in caplog.text
    assert [entry.outcome for entry in job.history] == ["crashed", "completed"]


@on_job_stages
async def test_suspects_run_one_at_a_time_and_the_third_crash_is_poison(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    """Six jobs were there at two crashes. One of them is to blame; the others survive it."""
    suspects = Crowd()

    @headgate.task("suspect")
    async def suspect(ctx: Context, who: int) -> None:
        await suspects.stay(who, 30)

    stage = await stages.open(tasks=[suspect, stays])
    handles = await _submit(stage, suspect, 6)
    for _ in range(2):
        await asyncio.sleep(15)
        await _declare_dead(stage)
    assert suspects.most == 6
    suspects.most = 0
    await asyncio.sleep(20)
    others = await _submit(stage, stays, 10)
    await asyncio.sleep(2)
    assert [(await other.job()).state for other in others] == [JobState.COMPLETED] * 10, "not held up by them"
    await _declare_dead(stage)
    jobs = await _ends(handles)
    assert suspects.most == 1
    assert sorted((str(job.state), job.reason, job.crashes) for job in jobs) == [
        ("completed", None, 2)
    ] * 5 + [("dead_letter", "poison", 3)]
    (poison,) = [job for job in jobs if job.reason == "poison"]
    assert (poison.attempts, poison.error_class) == (0, "crashed")
    assert f"dead_letter job={poison.id} task=suspect reason=poison attempts=0" in caplog.text


@on_job_stages
async def test_a_suspect_waits_for_a_node_that_has_its_model(stages: JobStages) -> None:
    """Suspects are claimed whatever they need; one without its model must not fail for good because of it."""
    special = {"special": {"upstreams": [{"provider": "simulated", "latency_s": 30.0}]}}
    knows = await stages.open(tasks=TASKS, models=special)
    handle = await knows.submit(asks, model="special")
    for _ in range(2):
        await asyncio.sleep(15)
        await _declare_dead(knows)
    await knows.gateway.aclose(drain_s=0)
    other = await stages.open(tasks=TASKS)
    await asyncio.sleep(5)
    job = await other.gateway.jobs.get(handle.id)
    assert (job.state, job.crashes, job.error) == (JobState.PENDING, 2, "no model is called 'special' here")
    await other.gateway.aclose()
    again = await stages.open(tasks=TASKS, models=special)
    job = await again.gateway.jobs.wait(handle.id)
    assert (job.state, job.attempts) == (JobState.COMPLETED, 1)
