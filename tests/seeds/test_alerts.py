"""The seeds' rows on alerts: the bookmarks design's four conditions (chapter 6), and the notice that dead letters lacked.

Each fires and clears on a real gateway in virtual time, with one webhook for each.
"""

from typing import Any

import pytest
from jobstage import JobStages, on_job_stages
from observe.alerts_stage import CALM_S, ROUND_S, TEN_MINUTES_S, reject, watched, work
from observe.receivers_stage import Receiver
from stage import USER

from headgate.core.errors import HeadgateError
from headgate.core.job import JobState
from headgate.observe.alerts import LOOK_EVERY_S


@on_job_stages
async def test_002_dead_letters_more_than_10_an_hour(stages: JobStages, caplog: Any) -> None:
    """DLQ件数 > 10件/時."""
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
async def test_002_retry_failure_rate_more_than_5_percent(stages: JobStages, caplog: Any) -> None:
    """リトライ失敗率 > 5%, from twenty samples on."""
    script = [{"status": 503}, "ok"] * 18 + [{"status": 503}] * 4
    upstream = {"provider": "simulated", "model": "instant", "script": script, "breaker": False}
    retry = {"max_attempts": 2, "jitter": "none", "first_wait_s": 0.1}
    models = {"r": {"upstreams": [upstream], "retry": retry}}
    # Two of these 20 requests fail: `errors` would fire, too.
    async with watched(stages, caplog, models=models, work=False, alerts={"error_rate": 0.5}) as seen:
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
async def test_002_duplicate_key_rate_more_than_50_percent(stages: JobStages, caplog: Any) -> None:
    """冪等キー重複率 > 50%（異常な重複送信）."""
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
async def test_002_llm_delay_more_than_5_minutes_on_average(stages: JobStages, caplog: Any) -> None:
    """LLM処理遅延 > 5分平均."""
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
async def test_003_an_administrator_is_told_by_itself(stages: JobStages, caplog: Any) -> None:
    """通知機能なし: 管理者への自動通知は未実装（今後の課題）. To the address for alerts, where one is set, and nothing else goes there."""
    receiver = Receiver(lambda: stages.now)
    await receiver.up()
    alerts = {"dead_letters_per_hour": 0, "webhook": receiver.url("/alerts")}
    try:
        async with watched(stages, caplog, tasks=[reject], alerts=alerts, webhooks={"url": None}) as seen:
            await seen.stage.ended(reject)
            await seen.sleep(3 * ROUND_S)
            (message,) = receiver.received
            assert message.path == "/alerts"
            assert message.is_signed_with(await seen.stage.gateway.webhooks.secret(alerts=True))
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
