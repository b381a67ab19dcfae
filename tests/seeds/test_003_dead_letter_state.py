"""The dead-letter state for summary jobs that time out again and again, row by row, on both stores.

What it calls `retry_count` and `max_retries` are `attempts` and `max_attempts` here; `failed` is a moment in a job's
history and not a state in which it could be forgotten.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from jobstage import JobStage, JobStages, on_each_database

import headgate
from headgate import Context, Job, JobState
from headgate.core.events import JobSettled

STUCK: dict[str, Any] = {
    "stuck": {"upstreams": [{"provider": "simulated", "outcome": "stall"}]},
    "mended": {"upstreams": [{"provider": "simulated", "script": ["transient"]}]},
}
"""An upstream that never answers, and one that fails once."""


@headgate.task("summarise", timeout_s=20.0)
async def summarise(ctx: Context, article: dict[str, str]) -> str | None:
    text = article.get("text", "")
    return (await ctx.llm.complete(messages=[{"role": "user", "content": text}])).content


async def _open(stages: JobStages, **jobs: Any) -> JobStage:
    return await stages.open(tasks=[summarise], models=STUCK, jobs=jobs)


async def _article(stage: JobStage, article_id: str, model: str = "m", max_retries: int = 3) -> Job:
    """A job for one article, followed to its end."""
    return await stage.ended(
        summarise, {"article_id": article_id, "text": article_id}, model=model, max_attempts=max_retries
    )


# ---- The states ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pending", "running", "completed", "dead_letter"])
def test_the_states_have_their_names(name: str) -> None:
    assert JobState(name).value == name


@pytest.mark.parametrize(
    ("state", "terminal"),
    [("pending", False), ("running", False), ("completed", True), ("dead_letter", True)],
)
def test_is_terminal_knows_dead_letter(state: str, terminal: bool) -> None:
    assert JobState(state).final is terminal


def test_failed_is_no_state_a_job_can_be_forgotten_in() -> None:
    """`GetPendingJobs` took only pending jobs, and failed ones waited for ever."""
    assert "failed" not in set(JobState)


# ---- The arrows of the diagram ------------------------------------------------------------------------------


@on_each_database
async def test_pending_running_completed(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 10.0}, tasks=[summarise], work=False)
    handle = await stage.submit(summarise, {"text": "a"}, model="m")
    states = [(await handle.job()).state]
    await stage.gateway.work()
    await asyncio.sleep(5)
    states.append((await handle.job()).state)
    states.append((await handle.wait()).state)
    assert states == [JobState.PENDING, JobState.RUNNING, JobState.COMPLETED]


@on_each_database
async def test_running_failed_pending_while_retry_count_is_below_max_retries(stages: JobStages) -> None:
    """A job that can be retried is pending again, so that it is taken again."""
    stage = await _open(stages)
    handle = await stage.submit(summarise, {"text": "a"}, model="mended", max_attempts=3)
    await asyncio.sleep(1)
    job = await handle.job()
    assert (job.state, job.attempts, job.max_attempts) == (JobState.PENDING, 1, 3)
    assert str(job.error).startswith("transient 503"), "error_message is set at every failure"
    assert job.finished_at is None, "completed_at stays as it was"
    assert [entry.outcome for entry in job.history] == ["failed"]
    job = await handle.wait()
    assert (job.state, job.attempts) == (JobState.COMPLETED, 2)


@on_each_database
async def test_running_failed_dead_letter_when_retry_count_reaches_max_retries(stages: JobStages) -> None:
    stage = await _open(stages)
    job = await _article(stage, "slow", model="stuck")
    assert (job.state, job.attempts, job.max_attempts) == (JobState.DEAD_LETTER, 3, 3)
    assert job.finished_at == datetime.fromtimestamp(stage.epoch, UTC), "completed_at is set"
    assert [event.state for event in stage.told(JobSettled)] == ["pending", "pending", "dead_letter"]


@pytest.mark.parametrize("max_retries", [1, 2, 5])
@on_each_database
async def test_retry_count_plus_one_reaching_max_retries_is_the_end(
    stages: JobStages, max_retries: int
) -> None:
    """The CASE of the UPDATE: as many attempts as `max_retries`, and after each but the last it is pending."""
    stage = await _open(stages, revive_after_s=1e6)
    job = await _article(stage, "slow", model="stuck", max_retries=max_retries)
    assert [entry.attempt for entry in job.history] == list(range(1, max_retries + 1))
    assert stage.provider_of("stuck").calls == max_retries
    await asyncio.sleep(60)
    assert stage.provider_of("stuck").calls == max_retries, "and it is not called again"


@on_each_database
async def test_a_completed_job_has_no_error_and_is_not_run_again(stages: JobStages) -> None:
    stage = await _open(stages)
    job = await _article(stage, "good")
    await asyncio.sleep(10)
    assert (job.state, job.error, job.reason, stage.provider.calls) == (JobState.COMPLETED, None, None, 1)


# ---- What it is good for --------------------------------------------------------------------------------------


@on_each_database
async def test_the_vicious_circle_of_retry_and_timeout_ends(stages: JobStages) -> None:
    """Retry → timeout → retry → timeout …: three of them, 20 s each, and then never again by itself."""
    stage = await _open(stages)
    job = await _article(stage, "slow", model="stuck")
    assert "it ran longer than its 20 s" in str(job.error)
    assert stage.now == pytest.approx(3 * 20 + 5 + 10, abs=1)
    assert stage.provider_of("stuck").cancelled == 3, "each call was really let go"


@on_each_database
async def test_other_articles_are_not_held_up_by_those_that_time_out(stages: JobStages) -> None:
    stage = await _open(stages, workers=16)
    for number in range(8):
        await stage.submit(summarise, {"article_id": f"slow-{number}"}, model="stuck", max_attempts=3)
    await asyncio.sleep(1)
    start = stage.now
    for number in range(20):
        assert (await _article(stage, f"good-{number}")).state is JobState.COMPLETED
    assert stage.now - start == pytest.approx(20, abs=1), "a second each, as if the others were not there"


@on_each_database
async def test_failed_articles_are_kept_with_their_history(stages: JobStages) -> None:
    """Not deleted, not moved out of sight: input, error and each attempt can still be read."""
    stage = await _open(stages)
    job = await _article(stage, "slow", model="stuck")
    kept = await stage.gateway.jobs.get(job.id)
    assert kept.input == {"article_id": "slow", "text": "slow"}
    assert [(entry.outcome, entry.kind) for entry in kept.history] == [("failed", "transient")] * 3
    assert all(entry.started_at is not None and entry.at > entry.started_at for entry in kept.history)
    assert [one.id for one in await stage.gateway.jobs.list(task="summarise")] == [job.id]


# ---- Looking at them, and sending them back ----------------------------------------------------------------------


@on_each_database
async def test_dead_letters_are_listed_newest_first_with_all_the_columns(stages: JobStages) -> None:
    """SELECT article_id, status, retry_count, max_retries, error_message, created_at … ORDER BY created_at DESC."""
    stage = await _open(stages)
    handles = []
    for number in range(3):
        handles.append(
            await stage.submit(
                summarise, {"text": "x"}, model="stuck", max_attempts=2, metadata={"article_id": f"a{number}"}
            )
        )
        await asyncio.sleep(1)
    await _article(stage, "good")
    for handle in handles:
        await handle.wait()
    listed = [
        (one.metadata["article_id"], one.state, one.attempts, one.max_attempts, one.error_message)
        for one in await stage.gateway.dead_letters.list()
    ]
    message = "transient timeout: it ran longer than its 20 s"
    assert listed == [(f"a{number}", JobState.DEAD_LETTER, 2, 2, message) for number in (2, 1, 0)]
    times = [one.created_at for one in await stage.gateway.dead_letters.list()]
    assert times == sorted(times, reverse=True)


@on_each_database
async def test_by_hand_a_job_goes_back_to_pending_with_retry_count_0(stages: JobStages) -> None:
    """UPDATE … SET status = 'pending', retry_count = 0 WHERE article_id = …"""
    stage = await _open(stages)
    job = await _article(stage, "slow", model="stuck", max_retries=1)
    await stage.gateway.aclose()
    desk = await stages.open(tasks=[summarise], models=STUCK, work=False)
    await desk.gateway.dead_letters.replay(job.id, by="operator")
    again = await desk.gateway.jobs.get(job.id)
    assert (again.state, again.attempts, again.error, again.finished_at) == (JobState.PENDING, 0, None, None)
    assert [entry.outcome for entry in again.history] == ["failed", "replayed"]


@on_each_database
async def test_a_job_sent_back_by_hand_completes_when_the_trouble_is_over(stages: JobStages) -> None:
    models = {"m2": {"upstreams": [{"provider": "simulated", "script": ["stall"]}]}}
    stage = await stages.open(tasks=[summarise], models=models)
    job = await _article(stage, "slow", model="m2", max_retries=1)
    assert job.state is JobState.DEAD_LETTER
    handle = await stage.gateway.dead_letters.replay(job.id)
    assert (await handle.wait()).state is JobState.COMPLETED
    assert await stage.gateway.dead_letters.list() == []


@on_each_database
async def test_moving_to_dead_letter_is_a_line_in_the_log(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    """docker logs … | grep -i "dead_letter" """
    stage = await _open(stages)
    job = await _article(stage, "slow", model="stuck", max_retries=2)
    lines = [record for record in caplog.records if "dead_letter" in record.getMessage()]
    assert [(line.levelno, line.getMessage()) for line in lines] == [
        (logging.WARNING, f"dead_letter job={job.id} task=summarise reason=exhausted attempts=2")
    ]


@on_each_database
async def test_unlike_there_an_exhausted_job_also_comes_back_by_itself(stages: JobStages) -> None:
    """ "No automatic recovery" was a drawback; a job that merely met an outage needs no hand."""
    models = {"m2": {"upstreams": [{"provider": "simulated", "script": ["stall"]}]}}
    stage = await stages.open(tasks=[summarise], models=models, jobs={"revive_after_s": 10})
    job = await _article(stage, "slow", model="m2", max_retries=1)
    await asyncio.sleep(40)
    revived = await stage.gateway.jobs.get(job.id)
    assert (revived.state, revived.revivals) == (JobState.COMPLETED, 1)
