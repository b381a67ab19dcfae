"""The bookmarks design's chapter 6: its four important metrics and the numbers its four alerts look at.

It names quantities, not metrics; each can be read from the page. The expressions stand in docs/reference/metrics.md.
"""

import asyncio
from typing import Any

import pytest
from jobstage import JobStage, JobStages, on_each_database
from observe.metrics_stage import Page, metrics_of, page
from stage import USER

import headgate
from headgate import Context, Jitter, JobState, KeyMismatch, RetryPolicy
from headgate.observe.metrics import Metrics

KEYS = "headgate_idempotency_requests_total"
TWICE = RetryPolicy(max_attempts=2, first_wait_s=60, jitter=Jitter.NONE)


@headgate.task("llm_processing", model="m", retry=TWICE)
async def llm_processing(ctx: Context, url: str) -> str:
    reply = await ctx.llm.complete(messages=[{"role": "user", "content": url}])
    return reply.content or ""


async def _open(stages: JobStages, *upstreams: Any) -> tuple[JobStage, Metrics]:
    stage = await stages.open(*upstreams, tasks=[llm_processing])

    return stage, metrics_of(stage.gateway, now=stages.world.clock.now)


async def _looked(stages: JobStages, metrics: Metrics) -> Page:
    """A scrape shows the look that the one before it began."""
    await stages.world.clock.sleep(5)
    page(metrics)
    await stages.world.clock.sleep(1)
    return page(metrics)


@on_each_database
async def test_the_share_of_keys_that_are_repeats(stages: JobStages) -> None:
    """冪等キー利用率（重複リクエスト検知率）; the alert: 冪等キー重複率 > 50%."""
    stage, metrics = await _open(stages)

    async def ask(key: str, text: str = "one") -> None:
        message = {"role": "user", "content": text}
        await stage.gateway.complete(model="m", messages=[message], idempotency_key=key)

    await ask("first")
    await ask("first")
    await asyncio.gather(ask("second"), ask("second"))
    with pytest.raises(KeyMismatch):
        await ask("first", "another")
    await stage.submit(llm_processing, "url", idempotency_key="third")
    await stage.submit(llm_processing, "url", idempotency_key="third")
    with pytest.raises(KeyMismatch):
        await stage.submit(llm_processing, "another", idempotency_key="third")

    seen = page(metrics)
    assert seen(KEYS, endpoint="complete", outcome="ran") == 2
    assert seen(KEYS, endpoint="complete", outcome="replayed") == 1
    assert seen(KEYS, endpoint="complete", outcome="shared") == 1
    assert seen(KEYS, endpoint="complete", outcome="mismatch") == 1
    jobs = {outcome: seen(KEYS, endpoint="POST /v1/jobs", outcome=outcome) for outcome in _OUTCOMES}
    assert jobs == {"ran": 1, "replayed": 1, "mismatch": 1}
    repeats = seen(KEYS, outcome="replayed") + seen(KEYS, outcome="shared")
    assert repeats / seen(KEYS) == pytest.approx(3 / 8)


_OUTCOMES = ("ran", "replayed", "mismatch")


@on_each_database
async def test_the_share_of_retries_that_succeed(stages: JobStages) -> None:
    """自動リトライ成功率; the alert: リトライ失敗率 > 5%."""
    script = [
        {"status": 503},
        "ok",
        {"status": 503},
        {"status": 503},
        {"status": 503},
        "ok",
        "ok",
    ]
    stage, metrics = await _open(stages, {"script": script, "breaker": False})

    await stage.gateway.complete(model="m", messages=USER)
    with pytest.raises(headgate.UpstreamUnavailable):
        await stage.gateway.complete(model="m", messages=USER)
    await stage.gateway.complete(model="m", messages=USER)

    seen = page(metrics)
    assert seen("headgate_retried_requests_total", outcome="ok") == 1
    assert seen("headgate_retried_requests_total", outcome="failed") == 1
    assert seen("headgate_retries_total", outcome="ok") == 1
    assert seen("headgate_retries_total", outcome="transient") == 2


@on_each_database
async def test_how_many_dead_letters_there_are_and_how_long_they_lie(stages: JobStages) -> None:
    """DLQ滞留件数・処理時間 and エンドユーザーの手動再試行率; the alert: DLQ件数 > 10件/時."""
    script = [{"status": 503}] * 4
    stage, metrics = await _open(stages, {"script": script, "breaker": False})
    dead = [await stage.ended(llm_processing, f"url {index}") for index in range(2)]
    assert {job.state for job in dead} == {JobState.DEAD_LETTER}

    seen = await _looked(stages, metrics)
    assert seen("headgate_jobs_dead_total", task="llm_processing", reason="exhausted") == 2
    assert seen("headgate_dead_letters") == 2

    assert seen("headgate_dead_letter_age_seconds") < 200
    await stages.world.clock.sleep(1800)
    assert (await _looked(stages, metrics))("headgate_dead_letter_age_seconds") > 1800
    handle = await stage.gateway.dead_letters.replay(dead[1].id, by="the user")
    assert (await handle.wait()).state is JobState.COMPLETED

    seen = await _looked(stages, metrics)
    assert seen("headgate_dead_letters") == 1
    assert seen("headgate_replays_total") == 1
    assert seen("headgate_replayed_after_seconds_count") == 1
    assert seen("headgate_replayed_after_seconds_sum") == pytest.approx(1812, abs=1)
    assert seen("headgate_jobs_accepted_total") == 2
    settled = {"task": "llm_processing", "retried": "true", "state": "dead_letter"}
    assert seen("headgate_jobs_settled_total", **settled) == 2


@on_each_database
async def test_how_long_jobs_are_delayed(stages: JobStages) -> None:
    """LLM処理遅延 > 5分平均: from due to done."""
    stage, metrics = await _open(stages, {"latency_s": 20.0, "slots": 1})
    handles = [await stage.submit(llm_processing, f"url {index}") for index in range(3)]
    for handle in handles:
        await handle.wait()

    seen = page(metrics)
    delay_s = seen("headgate_job_wait_seconds_sum") + seen("headgate_job_run_seconds_sum")
    mean_s = delay_s / seen("headgate_job_run_seconds_count")
    assert mean_s == pytest.approx((20 + 40 + 60) / 3, rel=0.05)
