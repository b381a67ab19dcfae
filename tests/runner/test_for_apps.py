"""What applications need of jobs: records inside a task, what its calls cost, keys under their own routes."""

from typing import Any

import pytest
from jobstage import JobStages, on_job_stages

import headgate
from headgate import Context
from headgate.core import events

SHELF = "shelf"


@headgate.task("keeper", model=None)
async def keeper(ctx: Context, name: str) -> dict[str, Any]:
    await ctx.records.put(SHELF, name, {"by": ctx.job.tenant})
    found = await ctx.records.find(SHELF, "the address")
    return {"ids": [one.id for one in await ctx.records.list(SHELF)], "found": found and found.id}


@headgate.task("spender", model="m")
async def spender(ctx: Context, _: None) -> list[float]:
    def check(answer: headgate.Answer) -> bool:
        return answer.content == "good"

    before_usd = ctx.llm.cost_usd
    await ctx.llm.complete(messages=[{"role": "user", "content": "Hi"}], check=check)
    return [before_usd, ctx.llm.cost_usd]


@on_job_stages
async def test_a_task_meets_the_records_of_its_tenant_and_no_others(stages: JobStages) -> None:
    stage = await stages.open(tasks=[keeper])
    for tenant in ("one", "two"):
        await stage.gateway.records.put(SHELF, f"{tenant}'s", {}, unique_key="the address", tenant=tenant)
    job = await (await stage.submit(keeper, "new", tenant="one")).wait()
    assert job.result == {"ids": ["one's", "new"], "found": "one's"}
    written = await stage.gateway.records.get(SHELF, "new", tenant="one")
    assert written is not None
    assert written.body == {"by": "one"}
    assert await stage.gateway.records.get(SHELF, "new", tenant="two") is None


@on_job_stages
async def test_a_task_knows_what_its_calls_cost_the_useless_ones_too(stages: JobStages) -> None:
    """A ceiling that counted good answers only would be broken through by bad ones."""
    stage = await stages.open({"latency_s": 1, "answers": ["bad", "bad", "good"]}, tasks=[spender])
    stage.gateway.routes.find("m").upstreams[0].price = lambda usage: 0.5
    assert (await stage.ended(spender)).result == [0.0, pytest.approx(1.5)]


@on_job_stages
async def test_an_unknown_price_costs_nothing(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 1, "answers": ["good"]}, tasks=[spender])
    assert (await stage.ended(spender)).result == [0.0, 0.0]


@on_job_stages
async def test_a_key_belongs_to_the_route_it_came_by(stages: JobStages) -> None:
    stage = await stages.open(tasks=[keeper], work=False)
    jobs = stage.gateway.jobs
    plain = await jobs.submit(keeper, "a", idempotency_key="k")
    own = await jobs.submit(keeper, "b", idempotency_key="k", endpoint="POST /v1/shelf")
    again = await jobs.submit(keeper, "b", idempotency_key="k", endpoint="POST /v1/shelf")
    assert plain.id != own.id == again.id
    assert [(one.endpoint, str(one.outcome)) for one in stage.told(events.KeyUsed)] == [
        ("POST /v1/jobs", "ran"),
        ("POST /v1/shelf", "ran"),
        ("POST /v1/shelf", "replayed"),
    ]
