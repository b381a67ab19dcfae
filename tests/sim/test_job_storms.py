"""Jobs through bad weather: a storm of 429s, an outage, a tenant with a mountain of work. Nobody helps them."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from conftest import Figure
from jobstage import JobStages, on_job_stages

import headgate
from headgate import Context, Job, JobState
from headgate.core.answer import Answer
from headgate.core.call import Call
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.providers.simulated import SimulatedProvider, options_for
from headgate.runner.jobs import JobHandle
from headgate.wiring import PROVIDERS, ProviderKind, Surroundings

STORM_S = (60.0, 660.0)


@headgate.task("asks", model="m")
async def asks(ctx: Context, given: Any) -> str | None:
    return (await ctx.llm.complete(messages=[{"role": "user", "content": str(given)}])).content


class Stormy(SimulatedProvider):
    """Answers 429 for ten minutes, each time with another Retry-After, and keeps book of every call."""

    def __init__(self, options: Mapping[str, Any], given: Surroundings) -> None:
        super().__init__(
            options_for("simulated", options),
            model="stormy",
            clock=given.clock,
            chance=given.chance,
            connect_timeout_s=given.timeouts.connect_s,
        )
        self._given = given
        self.begun: list[float] = []
        self.refused = 0

    async def send(self, call: Call) -> Answer:
        clock = self._given.clock
        self.begun.append(clock.now())
        if not STORM_S[0] <= clock.now() < STORM_S[1]:
            return await super().send(call)
        await clock.sleep(0.2)
        wait_s = 5 + 40 * self._given.chance()
        self.refused += 1
        raise ProviderFailure(Failure(kind=FailureKind.THROTTLED, status=429, retry_after_s=wait_s))


STORMY = {
    **PROVIDERS,
    "stormy": ProviderKind(
        lambda _model, options, given: Stormy(options, given),
        PROVIDERS["simulated"].check,
    ),
}


async def _ends(handles: list[JobHandle]) -> list[Job]:
    return [await handle.wait() for handle in handles]


async def _submit(stages: JobStages, stage: Any, count: int, **options: Any) -> list[JobHandle]:
    asked = [{"task": "asks", "input": number, **options} for number in range(count)]
    return [
        handle
        for start in range(0, count, 1000)
        for handle in await stage.gateway.jobs.submit_many(asked[start : start + 1000])
    ]


@on_job_stages
async def test_a_storm_of_429s_costs_no_attempt_and_brings_a_probe_now_and_then(
    stages: JobStages, figure: Figure
) -> None:
    """Ten minutes over 1,000 jobs that have one attempt each: a single lost one would be a dead letter."""
    stage = await stages.open(
        {"provider": "stormy", "latency_s": 2.0, "slots": 8}, tasks=[asks], providers=STORMY
    )
    jobs = await _ends(await _submit(stages, stage, 1000, max_attempts=1))
    stormy = stage.provider
    assert isinstance(stormy, Stormy)
    during = [at for at in stormy.begun if STORM_S[0] <= at < STORM_S[1]]
    # The first to be refused are those whose slots came free when it began.
    probes = [at for at in during if at > STORM_S[0] + 5]
    closest_s = min(later - earlier for earlier, later in pairwise(probes))
    lost = sum(job.attempts - 1 for job in jobs) + sum(job.state is not JobState.COMPLETED for job in jobs)
    figure("429 storm of 10 min, 1,000 jobs: attempts lost", f"{lost} (0)")
    figure(
        "429 storm: calls in the storm", f"{len(during)} (≤ 60), the closest {closest_s:.2f} s apart (≥ 1)"
    )
    figure(
        "429 storm: all done",
        f"{stage.now - STORM_S[1]:.0f} s after it (≤ 260 s: 45 s of pause, 1,000 jobs at 4/s)",
    )
    assert lost == 0
    assert {job.state for job in jobs} == {JobState.COMPLETED}
    assert len(during) <= 60
    assert closest_s >= 1, "one after the other, never a crowd"
    assert len(stormy.begun) == 1000 + stormy.refused
    assert stage.now - STORM_S[1] <= 260


@pytest.mark.parametrize(("count", "most_s"), [(500, 200), (20, 30)])
@on_job_stages
async def test_an_outage_of_half_an_hour_loses_no_job(
    stages: JobStages, count: int, most_s: float, figure: Figure
) -> None:
    """The upstream is closed and probed every few seconds: that costs no job an attempt, however few there are."""
    stage = await stages.open(
        {"latency_s": 2.0, "slots": 8, "outage": [[1, 1801]], "failure_latency_s": 0.1}, tasks=[asks]
    )
    handles = await _submit(stages, stage, count)
    await asyncio.sleep(1800)
    dead = await stage.gateway.dead_letters.list(limit=1000)
    probes = stage.provider.calls
    jobs = await _ends(handles)
    failed = sum(entry.outcome == "failed" for job in jobs for entry in job.history)
    figure(
        f"outage of 30 min, {count} jobs",
        f"{len(dead)} dead letters (0), {failed} attempts lost (≤ 8: those before it closed), {probes} calls (≤ 500);"
        f" all done {stage.now - 1801:.0f} s after it (≤ {most_s} s)",
    )
    assert not dead
    assert {job.state for job in jobs} == {JobState.COMPLETED}
    assert failed <= 8
    assert probes <= 500
    assert stage.now - 1801 <= most_s
    assert max(job.revivals for job in jobs) == 0


@on_job_stages
async def test_a_tenant_with_a_mountain_of_work_does_not_bury_the_others(
    stages: JobStages, figure: Figure
) -> None:
    """10,000 jobs against nine times 100, all there from the start: the small ones get nine tenths of the turns."""
    stage = await stages.open({"latency_s": 1.0, "slots": 20}, tasks=[asks], work=False)
    asked = [{"task": "asks", "input": number} for number in range(1000)]
    for _ in range(10):
        await stage.gateway.jobs.submit_many(asked, tenant="large")
    small = [
        handle
        for number in range(9)
        for handle in await stage.gateway.jobs.submit_many(asked[:100], tenant=f"small-{number}")
    ]
    await asyncio.sleep(1)
    start = stage.now
    await stage.gateway.work()
    ended = [(await handle.wait()).finished_at for handle in small]
    took_s = stage.now - start
    alone_s = 10_900 / 20
    done = await stage.gateway.jobs.count(tenant="large")
    figure(
        "9 tenants of 100 jobs beside one of 10,000: done after",
        f"{took_s:.0f} s (≤ 55 s; in one line it would be {alone_s:.0f} s); the large one had {done['completed']} turns",
    )
    assert len(ended) == 900
    assert took_s <= 55
    assert done["completed"] >= 80, "nobody gives way entirely"
