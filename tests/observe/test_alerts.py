"""Each alert fires and clears on a real gateway in virtual time, and tells of itself once.

Workers are stopped before hours pass: what is to be delivered is counted in the store, where it waits as a job.
"""

import shutil
import time
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from jobstage import JobStages, on_job_stages
from observe.alerts_stage import CALM_S, ROUND_S, reject, watched, work
from stage import USER, until_closed

from headgate.apps.newsletter.ledger import Ledger, Run, RunState
from headgate.core.errors import HeadgateError, StoreUnavailable
from headgate.core.events import Responded
from headgate.core.job import JobState
from headgate.observe.alerts import LOOK_EVERY_S

WELL_S = 60.0


def once(*script: Any, **upstream: Any) -> dict[str, Any]:
    """A model of its own, tried once a call, whose upstream answers by this script."""
    upstream = {"provider": "simulated", "model": "instant", "script": list(script), **upstream}
    return {"once": {"upstreams": [upstream], "retry": {"max_attempts": 1}}}


@on_job_stages
async def test_dead_letters_of_another_process_are_seen_in_the_store(stages: JobStages, caplog: Any) -> None:
    """A worker's dead letters are told by the server beside it, which heard of none."""
    worker = await stages.open(tasks=[reject])
    async with watched(stages, caplog, work=False, alerts={"dead_letters_per_hour": 2}) as seen:
        for _ in range(3):
            await worker.ended(reject)
        await worker.gateway.durable.stop_working(0)
        await seen.sleep(LOOK_EVERY_S + ROUND_S)
        assert seen.active == [("dead_letters", "")]


@on_job_stages
async def test_jobs_that_nobody_does_are_late_too(stages: JobStages, caplog: Any) -> None:
    """Where no worker runs, no job ends late: none ends at all."""
    async with watched(
        stages, caplog, {"model": "instant"}, tasks=[work], work=False, webhooks={"url": None}
    ) as seen:
        handle = await seen.stage.submit(work)
        await seen.sleep(290)
        assert seen.active == []
        await seen.sleep(LOOK_EVERY_S + 2 * ROUND_S)
        assert seen.active == [("job_delay", "")]
        await seen.stage.gateway.work()
        assert (await handle.wait()).state is JobState.COMPLETED
        await seen.stage.gateway.durable.stop_working(0)
        await seen.sleep(LOOK_EVERY_S + CALM_S + 2 * ROUND_S)
        assert (seen.active, seen.over) == ([], [("job_delay", "")])


@on_job_stages
async def test_an_upstream_that_is_misconfigured(stages: JobStages, caplog: Any) -> None:
    models = once(*[{"status": 401}] * 3, "ok")
    async with watched(stages, caplog, models=models, work=False) as seen:
        for _ in range(3):
            with pytest.raises(HeadgateError):
                await seen.stage.gateway.complete(model="once", messages=USER)
        await seen.sleep(ROUND_S)
        assert seen.active == [("upstream_misconfigured", "simulated/instant")]
        assert "headgate doctor" in seen.warnings[0]
        await seen.sleep(31)
        await seen.stage.gateway.complete(model="once", messages=USER)
        await seen.sleep(WELL_S + 2 * ROUND_S)
        await seen.expect_one_incident("upstream_misconfigured", "simulated/instant")


@on_job_stages
async def test_names_that_clients_invent_make_one_alert(stages: JobStages, caplog: Any) -> None:
    """A family's members are as many as clients like, and so would be the messages at night."""
    upstream = {"provider": "simulated", "script": [{"status": 401}] * 9, "latency_s": 0}
    models = {"family/*": {"upstreams": [upstream], "retry": {"max_attempts": 1}}}
    async with watched(stages, caplog, models=models, work=False) as seen:
        for name in ("slow", "flaky", "instant"):
            for _ in range(3):
                with pytest.raises(HeadgateError):
                    await seen.stage.gateway.complete(model=f"family/{name}", messages=USER)
        held = [gate.upstream for gate in seen.stage.gateway.status().upstreams if gate.condition == "held"]
        assert len(held) == 3
        await seen.sleep(ROUND_S)
        assert seen.active == [("upstream_misconfigured", "simulated/*")]


@on_job_stages
async def test_a_breaker_that_is_open_for_more_than_five_minutes(stages: JobStages, caplog: Any) -> None:
    models = once(outage=[[0, 60]])
    async with watched(stages, caplog, models=models, work=False) as seen:
        await until_closed(seen.stage.gateway, "once")
        await seen.sleep(290)
        assert seen.active == []
        await seen.sleep(10 + 2 * ROUND_S)
        assert seen.active == [("breaker_open", "simulated/instant")]
        await seen.stage.gateway.complete(model="once", messages=USER)
        await seen.sleep(WELL_S + 2 * ROUND_S)
        await seen.expect_one_incident("breaker_open", "simulated/instant")


@on_job_stages
async def test_a_database_that_does_not_work(stages: JobStages, caplog: Any) -> None:
    """Its webhook waits in memory until there is a database again to write it to."""
    async with watched(stages, caplog, work=False) as seen:
        await seen.stage.submit(
            "chat", {"model": "m", "messages": USER}, run_at=stages.world.clock.utc() + timedelta(days=1)
        )
        (path,) = stages.folder.glob("*.db")
        aside = path.rename(path.with_suffix(".aside"))
        with pytest.raises(StoreUnavailable):
            await seen.stage.submit("chat", {"model": "m", "messages": USER})
        await seen.sleep(4 * ROUND_S)
        assert seen.active == [("store_down", "")]
        assert len(seen.warnings) == 1
        aside.rename(path)
        await seen.sleep(WELL_S + 3 * ROUND_S)
        await seen.expect_one_incident("store_down")


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


@on_job_stages
async def test_a_disk_without_room(stages: JobStages, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    free_gb = 0.9
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: _Usage(0, 0, int(free_gb * 1e9)))
    async with watched(stages, caplog, work=False) as seen:
        await seen.sleep(ROUND_S)
        assert seen.active == [("disk_full", "")]
        free_gb = 1.1
        await seen.sleep(LOOK_EVERY_S + WELL_S + 2 * ROUND_S)
        assert seen.active == [("disk_full", "")], "a little more room is not room enough"
        free_gb = 1.3
        await seen.sleep(LOOK_EVERY_S + WELL_S + 2 * ROUND_S)
        await seen.expect_one_incident("disk_full")


@on_job_stages
async def test_newsletter_runs_that_fail_one_after_the_other(stages: JobStages, caplog: Any) -> None:
    """They run in another process: what is seen of them is what they write."""
    async with watched(stages, caplog, work=False, apps={"newsletter": {}}) as seen:
        ledger = Ledger(seen.stage.gateway)

        async def run(number: int, state: RunState) -> None:
            at = seen.stage.world.clock.utc()
            await ledger.save_run(Run(id=f"run-{number}", started_at=at, items=(), state=state))
            await seen.sleep(LOOK_EVERY_S + ROUND_S)

        await run(1, RunState.DELIVERED)
        await run(2, RunState.ABORTED)
        assert seen.active == [], "one is bad luck"
        await run(3, RunState.ABORTED)
        assert seen.active == [("runs_failing", "newsletter")]
        await run(4, RunState.JUDGING)
        assert seen.active == [("runs_failing", "newsletter")], "one that just began says nothing"
        await run(4, RunState.PARTIAL)
        await seen.expect_one_incident("runs_failing", "newsletter")


# ---- Telling ------------------------------------------------------------------------------------------------


@on_job_stages
async def test_nobody_is_written_to_where_no_address_is_set(stages: JobStages, caplog: Any) -> None:
    alerts = {"dead_letters_per_hour": 0}
    async with watched(stages, caplog, tasks=[reject], alerts=alerts, webhooks={"url": None}) as seen:
        await seen.stage.ended(reject)
        await seen.sleep(ROUND_S)
        assert len(seen.warnings) == 1
        assert await seen.deliveries() == []


@on_job_stages
async def test_an_application_that_breaks_does_not_break_the_alerts(stages: JobStages, caplog: Any) -> None:
    async with watched(
        stages, caplog, tasks=[reject], apps={"newsletter": {}}, alerts={"dead_letters_per_hour": 0}
    ) as seen:
        await seen.stage.gateway.records.put("newsletter.runs", "odd", {"no": "run"})
        await seen.stage.ended(reject)
        await seen.sleep(LOOK_EVERY_S + ROUND_S)
        assert seen.active == [("dead_letters", "")]


@on_job_stages
async def test_an_event_costs_less_than_a_microsecond(stages: JobStages, caplog: Any) -> None:
    """It is counted inside every call, by processor time."""
    async with watched(stages, caplog, {"model": "instant"}, work=False) as seen:
        await seen.stage.gateway.complete(model="m", messages=USER)
        (event,) = seen.stage.told(Responded)
        best_s = 1.0
        for _ in range(10):
            started = time.thread_time()
            for _ in range(5_000):
                seen.alerts(event)
            best_s = min(best_s, (time.thread_time() - started) / 5_000)
        assert best_s < 1e-6
