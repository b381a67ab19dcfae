"""One tenant's jobs, however many and for whatever models, against another tenant's one job."""

import asyncio

import pytest
from jobstage import JobStage, JobStages, database, on_each_database

from headgate import Job, JobState
from headgate.providers.simulated import SimulatedProvider, options_for
from headgate.runner.jobs import JobHandle
from headgate.wiring import PROVIDERS, ProviderKind

__all__ = ["database"]
HANG_S = 30.0
"""How long each of the attacker's calls takes."""
WORKERS = 16
ANY_NAME = {
    **PROVIDERS,
    "any-name": ProviderKind(
        lambda _model, options, given: SimulatedProvider(
            options_for("simulated", options),
            model="any",
            clock=given.clock,
            chance=given.chance,
            connect_timeout_s=given.timeouts.connect_s,
        ),
        PROVIDERS["simulated"].check,
    ),
}
"""A provider that takes every model's name, as ollama and OpenAI-compatible servers are called with."""
FAMILIES = {
    "evil/*": {"upstreams": [{"provider": "any-name", "latency_s": HANG_S}]},
    "after": {"upstreams": [{"provider": "simulated", "latency_s": 0.1}]},
    "zzz": {"upstreams": [{"provider": "simulated", "latency_s": 0.1}]},
}
USER = [{"role": "user", "content": "?"}]


async def _submit(stage: JobStage, tenant: str, *models: str) -> list[JobHandle]:
    asked = [{"task": "chat", "input": {"model": model, "messages": USER}} for model in models]
    return [
        handle
        for start in range(0, len(asked), 1000)
        for handle in await stage.gateway.jobs.submit_many(asked[start : start + 1000], tenant=tenant)
    ]


async def _all_ready(stage: JobStage) -> None:
    """Jobs of one submission are due one after the other, and become ready in bites."""
    await asyncio.sleep(1)
    while (await stage.gateway.durable.store.ready(now=stage.epoch)).next_at is not None:
        pass


def _waited_s(job: Job) -> float:
    assert job.started_at is not None
    return (job.started_at - job.created_at).total_seconds()


@pytest.mark.parametrize("model", ["zzz", "after"])
@on_each_database
async def test_two_hundred_invented_models_do_not_keep_another_tenant_waiting(
    stages: JobStages, model: str
) -> None:
    """Models were served by name, and tenants took turns only within one: whoever invents names went first for ever."""
    stage = await stages.open(providers=ANY_NAME, models=FAMILIES, jobs={"workers": WORKERS})
    await _submit(stage, "attacker", *[f"evil/hang:{number}" for number in range(1, 201)])
    await asyncio.sleep(1)
    (handle,) = await _submit(stage, "victim", model)
    await asyncio.sleep(HANG_S + 1)
    job = await handle.job()
    assert job.state is JobState.COMPLETED
    assert _waited_s(job) <= HANG_S


@on_each_database
async def test_more_models_than_one_look_names_keep_nobody_waiting(stages: JobStages) -> None:
    """A look at what is ready is bounded; what it cannot name this time it names the next."""
    stage = await stages.open(providers=ANY_NAME, models=FAMILIES, jobs={"workers": WORKERS}, work=False)
    await _submit(stage, "attacker", *[f"evil/hang:{number}" for number in range(1500)])
    victims = await _submit(stage, "victim", "zzz", "after")
    await _all_ready(stage)
    await stage.gateway.work()
    await asyncio.sleep(HANG_S + 1)
    assert {(await handle.job()).state for handle in victims} == {JobState.COMPLETED}


@on_each_database
async def test_none_of_a_tenants_own_models_is_left_out_for_ever(stages: JobStages) -> None:
    """1,100 models nobody here knows by now, and one behind them that is known."""
    unknown = {"gone/*": {"upstreams": [{"provider": "any-name"}]}}
    desk = await stages.open(providers=ANY_NAME, models={**FAMILIES, **unknown}, work=False)
    await _submit(desk, "local", *[f"gone/{number}" for number in range(1100)])
    (handle,) = await _submit(desk, "local", "zzz")
    await _all_ready(desk)
    await stages.open(providers=ANY_NAME, models=FAMILIES, jobs={"workers": WORKERS})
    await asyncio.sleep(5)
    assert (await handle.job()).state is JobState.COMPLETED


@on_each_database
async def test_one_tenant_holds_at_most_half_of_the_workers_while_another_waits(stages: JobStages) -> None:
    """Alone it may use all; from then on places that come free go to the other until both have half."""
    stage = await stages.open(providers=ANY_NAME, models=FAMILIES, jobs={"workers": WORKERS})
    await _submit(stage, "attacker", *[f"evil/hang:{number}" for number in range(200)])
    await asyncio.sleep(1)
    assert stage.gateway.durable.running == WORKERS
    victims = await _submit(stage, "victim", *["evil/slow"] * 40)
    await asyncio.sleep(HANG_S)
    running = [handle for handle in victims if (await handle.job()).state is JobState.RUNNING]
    assert len(running) == WORKERS // 2
    assert stage.gateway.durable.running == WORKERS


@on_each_database
async def test_a_waiting_tenant_whose_model_is_full_still_keeps_half_for_itself(stages: JobStages) -> None:
    """Its next job, for another model, starts at once."""
    narrow = {"narrow": {"upstreams": [{"provider": "simulated", "latency_s": 600.0, "slots": 1}]}}
    stage = await stages.open(
        providers=ANY_NAME, models={**FAMILIES, **narrow}, jobs={"workers": WORKERS}, work=False
    )
    await _submit(stage, "victim", *["narrow"] * 10)
    attacks = await _submit(stage, "attacker", *[f"evil/hang:{number}" for number in range(200)])
    await stage.gateway.work()
    await asyncio.sleep(5)
    running = [handle for handle in attacks if (await handle.job()).state is JobState.RUNNING]
    assert len(running) == WORKERS // 2
    (handle,) = await _submit(stage, "victim", "zzz")
    await asyncio.sleep(1)
    assert (await handle.job()).state is JobState.COMPLETED
