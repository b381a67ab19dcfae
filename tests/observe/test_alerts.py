"""Each alert fires and clears on a real gateway in virtual time, and tells of itself once.

Workers are stopped before hours pass: what is to be delivered is counted in the store, where it waits as a job.
"""

import shutil
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from jobstage import JobStages, on_job_stages
from observe.alerts_stage import watched
from observe.receivers_stage import Receiver
from stage import USER

import headgate
from headgate import Context
from headgate.apps.newsletter.ledger import Ledger, Run, RunState
from headgate.core.errors import HeadgateError, StoreUnavailable
from headgate.core.job import JobState
from headgate.observe.alerts import JUDGE_EVERY_S, LOOK_EVERY_S

TEN_MINUTES_S = 600.0
CALM_S = 300.0
WELL_S = 60.0
ROUND_S = JUDGE_EVERY_S + 1


@headgate.task("reject")
async def reject(ctx: Context, given: Any) -> None:
    raise headgate.Reject("as asked")


@headgate.task("work", model="m")
async def work(ctx: Context, given: Any) -> None:
    await ctx.llm.complete(messages=USER)


def once(*script: Any) -> dict[str, Any]:
    """A model of its own, tried once a call, whose upstream answers by this script."""
    upstream = {"provider": "simulated", "model": "instant", "script": list(script)}
    return {"once": {"upstreams": [upstream], "retry": {"max_attempts": 1}}}


@on_job_stages
async def test_more_than_ten_dead_letters_in_an_hour(stages: JobStages, caplog: Any) -> None:
    async with watched(stages, caplog, tasks=[reject]) as seen:
        for _ in range(10):
            await seen.stage.ended(reject)
        await seen.sleep(LOOK_EVERY_S + ROUND_S)
        assert seen.active == []
        await seen.stage.ended(reject)
        await seen.stage.gateway.durable.stop_working(0)
        await seen.sleep(ROUND_S)
        assert seen.active == [("dead_letters", "")]
        (alert,) = seen.alerts.active()
        assert (alert.value, alert.threshold) == (11, 10)
        assert "headgate dead list" in alert.message
        await seen.sleep(3600 - 120)
        assert ("dead_letters", "") in seen.active
        await seen.sleep(120 + LOOK_EVERY_S + 60 + CALM_S + ROUND_S)
        await seen.expect_one_incident("dead_letters")


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
async def test_more_than_five_percent_of_retries_fail(stages: JobStages, caplog: Any) -> None:
    script = [{"status": 503}, "ok"] * 18 + [{"status": 503}] * 4
    upstream = {"provider": "simulated", "model": "instant", "script": script, "breaker": False}
    retry = {"max_attempts": 2, "jitter": "none", "first_wait_s": 0.1}
    models = {"r": {"upstreams": [upstream], "retry": retry}}
    async with watched(stages, caplog, models=models, work=False) as seen:
        for _ in range(18):
            await seen.stage.gateway.complete(model="r", messages=USER)
        with pytest.raises(HeadgateError):
            await seen.stage.gateway.complete(model="r", messages=USER)
        await seen.sleep(ROUND_S)
        assert seen.active == [], "19 samples say nothing yet"
        with pytest.raises(HeadgateError):
            await seen.stage.gateway.complete(model="r", messages=USER)
        await seen.sleep(ROUND_S)
        assert seen.active == [("retry_failures", "")]
        assert seen.alerts.active()[0].value == pytest.approx(0.1)
        await seen.sleep(TEN_MINUTES_S + CALM_S + 2 * ROUND_S)
        await seen.expect_one_incident("retry_failures")


@on_job_stages
async def test_more_than_half_of_the_keys_were_there_already(stages: JobStages, caplog: Any) -> None:
    async with watched(stages, caplog, {"model": "instant"}, work=False) as seen:

        async def ask(key: str) -> None:
            await seen.stage.gateway.complete(model="m", messages=USER, idempotency_key=key)

        for number in range(10):
            await ask(f"key {number}")
            await ask(f"key {number}")
        await seen.sleep(ROUND_S)
        assert seen.active == [], "half is not more than half"
        await ask("key 0")
        await seen.sleep(ROUND_S)
        assert seen.active == [("duplicate_keys", "")]
        await seen.sleep(TEN_MINUTES_S + CALM_S + 2 * ROUND_S)
        await seen.expect_one_incident("duplicate_keys")


@on_job_stages
async def test_jobs_are_done_more_than_five_minutes_late(stages: JobStages, caplog: Any) -> None:
    async with watched(stages, caplog, {"latency_s": 290.0, "slots": 10}, tasks=[work]) as seen:
        handles = [await seen.stage.submit(work) for _ in range(20)]
        for handle in handles:
            await handle.wait()
        await seen.sleep(ROUND_S)
        assert seen.active == [("job_delay", "")]
        value = seen.alerts.active()[0].value
        assert value is not None
        assert 300 < value < 580, "the second half waited for the first"
        await seen.sleep(TEN_MINUTES_S + CALM_S + 2 * ROUND_S)
        await seen.expect_one_incident("job_delay")


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
    models = once(*[{"status": 503}] * 5, "ok")
    async with watched(stages, caplog, models=models, work=False) as seen:
        for _ in range(5):
            with pytest.raises(HeadgateError):
                await seen.stage.gateway.complete(model="once", messages=USER)
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
async def test_what_the_receiver_gets_is_signed_and_says_what_to_do(stages: JobStages, caplog: Any) -> None:
    """To the address for alerts, where one is set, and nothing else goes there."""
    receiver = Receiver(lambda: stages.now)
    await receiver.up()
    alerts = {"dead_letters_per_hour": 0, "webhook": receiver.url("/alerts")}
    try:
        async with watched(stages, caplog, tasks=[reject], alerts=alerts, webhooks={"url": None}) as seen:
            await seen.stage.ended(reject)
            await seen.sleep(3 * ROUND_S)
            (message,) = receiver.received
            assert message.path == "/alerts"
            assert message.is_signed_with(await seen.stage.gateway.webhooks.secret())
            assert message.told["type"] == "alert.fired"
            data = message.told["data"]
            assert (data["alert"], data["value"], data["threshold"]) == ("dead_letters", 1, 0)
            assert "headgate dead list" in data["message"]
            assert data["cleared_at"] is None
            (delivery,) = await seen.deliveries()
            assert (delivery.task, delivery.state) == ("headgate.webhook", JobState.COMPLETED)
            assert receiver.url() not in str(delivery.input)
    finally:
        receiver.close()


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
