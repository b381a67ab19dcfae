"""Queued summaries: each article once, skips as answers, dead letters only for what needs a person."""

import asyncio
from typing import Any

import pytest
from apps.articles.desk_stage import CONTENT, LONG, open_articles, temperatures_at_the_provider
from jobstage import JobStages, on_each_database, on_job_stages

import headgate

REPEATS = {"outcome": "repeat"}


@on_each_database
async def test_an_article_is_queued_run_and_kept(stages: JobStages) -> None:
    """Completed means that the summary is stored: both are one transaction."""
    stage = await open_articles(stages, {"latency_s": 5.0})
    queued = await stage.queue()
    assert queued == {"job_id": queued["job_id"], "status": queued["status"]}
    assert queued["status"] in {"pending", "running"}
    told = await stage.status(queued["job_id"])
    assert (told.pop("status"), told.pop("retry_count")) in {("pending", 0), ("running", 0)}
    assert told == {
        "job_id": queued["job_id"],
        "article_id": "a1",
        "max_retries": 3,
        "error_message": None,
        "summary": None,
    }
    ended = await stage.ended(queued["job_id"])
    kept = await stage.summary()
    assert (ended["status"], ended["retry_count"]) == ("completed", 0)
    assert ended["summary"] == kept["summary"]
    assert (kept["model"], kept["prompt"]) == ("m", "summary-v1")
    assert kept["prompt_tokens"] > 0 < kept["completion_tokens"]


@on_each_database
async def test_twenty_at_once_for_one_article_are_one_job(stages: JobStages) -> None:
    """One article stood in the table 895 times."""
    stage = await open_articles(stages)
    told = await asyncio.gather(*(stage.queue() for _ in range(20)))
    assert len({one["job_id"] for one in told}) == 1
    assert sorted(one.get("reason", "") for one in told) == ["", *["in_flight"] * 19]
    await stage.ended(told[0]["job_id"])
    assert stage.stage.provider.calls == 1


@on_each_database
async def test_the_guard_answers_with_its_reasons(stages: JobStages) -> None:
    """Skips were errors, and then dead letters."""
    stage = await open_articles(stages, {"latency_s": 5.0})
    first = await stage.queue()
    assert await stage.queue() == {"job_id": first["job_id"], "status": "skipped", "reason": "in_flight"}
    await stage.ended(first["job_id"])
    assert await stage.queue() == {"job_id": first["job_id"], "status": "skipped", "reason": "summary_exists"}
    too_short = await stage.queue("a2", "x" * 99 + " " * 50)
    assert too_short == {"job_id": None, "status": "skipped", "reason": "content_too_short"}


@on_each_database
async def test_tenants_do_not_see_each_others_articles(stages: JobStages) -> None:
    stage = await open_articles(stages)
    mine, theirs = await stage.queue(), await stage.queue(tenant="other")
    assert mine["job_id"] != theirs["job_id"]
    with pytest.raises(headgate.UnknownJob):
        await stage.status(theirs["job_id"])
    await stage.ended(mine["job_id"])
    await stage.stage.gateway.jobs.wait(theirs["job_id"], tenant="other")
    assert await stage.summary(tenant="other") is not None
    assert await stage.summary(tenant="third") is None


@on_job_stages
async def test_a_job_of_another_task_is_no_summary(stages: JobStages) -> None:
    stage = await open_articles(stages)
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    handle = await stage.stage.submit("chat", body)
    with pytest.raises(headgate.UnknownJob):
        await stage.status(handle.id)


# ---- Failures ------------------------------------------------------------------------------------------------


@on_each_database
async def test_an_outage_uses_up_three_attempts_then_a_cooldown_then_it_is_tried_again(
    stages: JobStages,
) -> None:
    """The dead letter itself goes back to work: beside a new job it would come back to life as well."""
    outage = {"script": ["transient"] * 3, "latency_s": 1.0}
    stage = await open_articles(stages, outage, options={"cooldown_s": 60.0}, jobs={"revive_after_s": 1e6})
    queued = await stage.queue()
    ended = await stage.ended(queued["job_id"])
    assert (ended["status"], ended["retry_count"], ended["max_retries"]) == ("dead_letter", 3, 3)
    assert ended["error_message"].startswith("transient 503")
    skipped = await stage.queue()
    assert skipped == {
        "job_id": queued["job_id"],
        "status": "skipped",
        "reason": "recent_failure_cooldown",
    }
    await asyncio.sleep(60)
    assert await stage.queue() == {"job_id": queued["job_id"], "status": "pending"}
    ended = await stage.ended(queued["job_id"])
    assert (ended["status"], ended["retry_count"], ended["error_message"]) == ("completed", 0, None)
    assert stage.stage.provider.calls == 4


@on_job_stages
async def test_an_article_that_came_back_by_itself_is_in_flight(stages: JobStages) -> None:
    stage = await open_articles(
        stages, {"script": ["transient"] * 3, "latency_s": 290.0}, jobs={"revive_after_s": 60.0}
    )
    queued = await stage.queue()
    await stage.ended(queued["job_id"])
    await asyncio.sleep(200)
    assert (await stage.queue())["reason"] == "in_flight"
    assert (await stage.ended(queued["job_id"]))["status"] == "completed"
    assert stage.stage.provider.calls == 4


@on_each_database
async def test_blank_answers_are_permanent_at_once_and_need_a_person(stages: JobStages) -> None:
    """A text that makes the model say nothing was tried for ever."""
    stage = await open_articles(stages, {"outcome": "blank"}, options={"cooldown_s": 10.0})
    queued = await stage.queue()
    ended = await stage.ended(queued["job_id"])
    assert (ended["status"], ended["retry_count"]) == ("dead_letter", 1)
    [letter] = await stage.stage.gateway.dead_letters.list(task="summarize")
    assert (letter.reason, letter.retryable) == ("permanent", False)
    await asyncio.sleep(60)
    assert await stage.queue() == {
        "job_id": queued["job_id"],
        "status": "skipped",
        "reason": "dead_letter_exists",
    }
    assert stage.stage.provider.calls == 3


@pytest.mark.parametrize("most", [0, 1, 2, 4])
@on_job_stages
async def test_a_job_regenerates_what_repeats_itself_at_once(stages: JobStages, most: int) -> None:
    """MAX_REPETITION_RETRIES holds for jobs, too; each regeneration has the slot in hand."""
    script = ["repeat"] * most + ["ok"]
    stage = await open_articles(
        stages, {"script": script, "latency_s": 1.0}, options={"max_repetition_retries": most}
    )
    ended = await stage.ended((await stage.queue())["job_id"])
    assert (ended["status"], ended["retry_count"]) == ("completed", 0)
    assert stage.stage.provider.calls == most + 1
    assert stage.stage.now == pytest.approx(most + 1, abs=0.5)


@pytest.mark.parametrize(
    ("options", "temperatures"),
    [
        ({}, [0.3, 0.55, 0.8]),
        ({"max_repetition_retries": 4}, [0.3, 0.55, 0.8, 1.0, 1.0]),
        ({"temperature": None}, [None, None, None]),
    ],
)
@on_job_stages
async def test_each_queued_regeneration_raises_the_temperature_like_a_direct_one(
    stages: JobStages, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], temperatures: list[Any]
) -> None:
    script = ["repeat"] * (len(temperatures) - 1) + ["ok"]
    stage = await open_articles(stages, {"script": script}, options=options)
    seen = temperatures_at_the_provider(monkeypatch)
    ended = await stage.ended((await stage.queue())["job_id"])
    assert ended["status"] == "completed"
    assert seen == temperatures


@on_job_stages
async def test_a_job_that_is_tried_again_begins_with_the_first_temperature(
    stages: JobStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await open_articles(stages, {"script": ["repeat", "transient", "repeat", "ok"]})
    seen = temperatures_at_the_provider(monkeypatch)
    ended = await stage.ended((await stage.queue())["job_id"])
    assert ended["status"] == "completed"
    assert seen == [0.3, 0.55, 0.3, 0.55]


@on_job_stages
async def test_retry_count_is_the_failed_attempts_whatever_became_of_the_job(stages: JobStages) -> None:
    script = [{"status": 503, "retry_after_s": 20}, "ok"]
    stage = await open_articles(stages, {"script": script, "latency_s": 10.0})
    queued = await stage.queue()
    seen = []
    while ("running", 1) not in seen:
        told = await stage.status(queued["job_id"])
        seen.append((told["status"], told["retry_count"]))
        await asyncio.sleep(2)
    assert seen[0] in {("pending", 0), ("running", 0)}
    assert ("pending", 1) in seen
    assert (await stage.ended(queued["job_id"]))["retry_count"] == 1
    cancelled = await stage.queue("a2")
    await asyncio.sleep(1)
    await stage.stage.gateway.jobs.cancel(cancelled["job_id"])
    told = await stage.ended(cancelled["job_id"])
    assert (told["status"], told["retry_count"]) == ("cancelled", 0)


@on_job_stages
async def test_endless_repetition_is_a_failure_that_counts(stages: JobStages) -> None:
    stage = await open_articles(stages, REPEATS, jobs={"revive_after_s": 1e6})
    ended = await stage.ended((await stage.queue())["job_id"])
    assert (ended["status"], ended["retry_count"]) == ("dead_letter", 3)
    assert ended["error_message"] == "invalid_output: the answer repeats itself"
    assert stage.stage.provider.calls == 3 * 3


@on_job_stages
async def test_a_busy_gate_costs_an_article_no_attempt(stages: JobStages) -> None:
    """A 429 burnt a job's attempt: three busy moments killed a healthy article."""
    busy = {"script": [{"status": 429, "retry_after_s": 20}] * 5, "latency_s": 1.0}
    stage = await open_articles(stages, busy)
    ended = await stage.ended((await stage.queue())["job_id"])
    assert (ended["status"], ended["retry_count"]) == ("completed", 0)


# ---- Long articles and races -------------------------------------------------------------------------------------


@on_each_database
async def test_a_long_article_is_read_in_parts_and_a_retry_pays_for_none_twice(stages: JobStages) -> None:
    """Parts are steps: what was answered before the failure is not asked again."""
    stage = await open_articles(stages, {"script": ["ok", "ok", "transient"], "latency_s": 1.0})
    queued = await stage.queue(content=LONG)
    ended = await stage.ended(queued["job_id"])
    parts = -(-(len(LONG) - 900) // (6000 - 900))
    assert (ended["status"], ended["retry_count"]) == ("completed", 1)
    assert parts <= stage.stage.provider.calls - 2 <= parts + 2, "all parts, the whole, and one failed call"
    asked = stage.stage.provider.calls
    kept = await stage.summary()
    assert kept["prompt"] == "whole-v1"
    assert kept["prompt_tokens"] > len(LONG) // 4, "the parts are counted"
    assert stage.stage.provider.calls == asked


@on_job_stages
async def test_an_article_that_was_summarised_meanwhile_is_skipped_without_a_call(stages: JobStages) -> None:
    """Somebody asked for it at once while it stood in the queue."""
    stage = await open_articles(stages, {"latency_s": 1.0}, work=False)
    queued = await stage.queue()
    told = await stage.now(priority="high")
    await stage.stage.gateway.work()
    ended = await stage.ended(queued["job_id"])
    assert (ended["status"], ended["error_message"]) == ("skipped", "summary_exists")
    assert stage.stage.provider.calls == 1
    assert (await stage.summary())["summary"] == told["summary"]


@on_each_database
async def test_a_summary_that_was_deleted_may_be_made_again(stages: JobStages) -> None:
    """A quality check deleted results, and the guard held the articles back for a day."""
    stage = await open_articles(stages)
    first = await stage.queue()
    await stage.ended(first["job_id"])
    assert await stage.stage.gateway.records.delete("articles", "a1")
    again = await stage.queue()
    assert again["job_id"] != first["job_id"]
    assert again["status"] in {"pending", "running"}  # A worker may be quick.
    assert (await stage.ended(again["job_id"]))["status"] == "completed"


@on_each_database
async def test_the_same_key_gives_the_same_job_and_another_body_a_conflict(stages: JobStages) -> None:
    stage = await open_articles(stages, {"latency_s": 5.0})
    first = await stage.queue(key="k1")
    assert (await stage.queue(key="k1"))["job_id"] == first["job_id"]
    await stage.ended(first["job_id"])
    assert await stage.queue(key="k1") == {"job_id": first["job_id"], "status": "completed"}
    with pytest.raises(headgate.KeyMismatch):
        await stage.queue(content=CONTENT + "!", key="k1")
    with pytest.raises(headgate.KeyMismatch):
        await stage.queue("a2", key="k1")
    assert stage.stage.provider.calls == 1


@pytest.mark.parametrize(("priority", "lane"), [("high", "interactive"), ("low", "batch")])
@on_job_stages
async def test_the_priority_is_the_lane(stages: JobStages, priority: str, lane: str) -> None:
    stage = await open_articles(stages)
    queued = await stage.queue(priority=priority)
    assert (await stage.stage.gateway.jobs.get(queued["job_id"])).lane == lane


@on_job_stages
async def test_a_full_backlog_is_refused_with_when_to_come_back(stages: JobStages) -> None:
    stage = await open_articles(stages, work=False, jobs={"max_pending": 1})
    await stage.queue("a1")
    with pytest.raises(headgate.BacklogFull) as caught:
        await stage.queue("a2")
    assert caught.value.retry_after_s > 0
    assert (await stage.queue("a1"))["reason"] == "in_flight", "a skip needs no room"


@pytest.mark.parametrize(
    ("given", "state", "why"),
    [
        ({"article_id": "a", "content": "short"}, "skipped", "content_too_short"),
        ({"article_id": "a", "content": "x" * 240_001}, "dead_letter", "permanent"),
    ],
)
@on_job_stages
async def test_jobs_that_come_by_another_way_are_held_to_the_same(
    stages: JobStages, given: dict[str, Any], state: str, why: str
) -> None:
    stage = await open_articles(stages)
    job = await stage.stage.ended("summarize", given)
    assert (job.state, job.reason, job.max_attempts) == (state, why, 3)
    assert stage.stage.provider.calls == 0
