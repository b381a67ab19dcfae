"""The task in virtual time: its attempts and waits, what it pays for, what it keeps, and that nothing sticks."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apps.bookmarks.stage import ANSWER, DESCRIPTION, fetching
from jobstage import JobStage, JobStages, on_job_stages

import headgate
from headgate.apps.bookmarks import BookmarkOptions, build
from headgate.apps.bookmarks.bookmark import Bookmark, Given, standing
from headgate.apps.bookmarks.desk import Desk
from headgate.apps.bookmarks.mount import new_bookmark_id
from headgate.core.job import Job, JobState

URL = "https://a.example/page"
GOOD = {"outcome": {"outcome": "ok", "content": ANSWER}, "latency_s": 1.0}
BAD = json.dumps({**DESCRIPTION, "summary": "too short"})


async def opened(
    stages: JobStages,
    *,
    asked: list[str] | None = None,
    options: BookmarkOptions | None = None,
    **upstream: Any,
) -> tuple[JobStage, Desk]:
    options = options or BookmarkOptions(model="m")
    app = build(options, fetch=fetching(asked=asked))
    stage = await stages.open({**GOOD, **upstream}, app=app)
    return stage, Desk(stage.gateway, new_bookmark_id, options)


async def save(desk: Desk, url: str = URL) -> Bookmark:
    bookmark, _, _ = await desk.save(Given(url=url), key=url, tenant="local")
    return bookmark


async def settled(stage: JobStage, desk: Desk, bookmark: Bookmark) -> Bookmark:
    assert bookmark.job_id is not None
    await stage.gateway.jobs.wait(bookmark.job_id)
    return await desk.get(bookmark.id, tenant="local")


@on_job_stages
async def test_three_attempts_two_and_four_minutes_apart_and_the_page_is_fetched_once(
    stages: JobStages,
) -> None:
    asked: list[str] = []
    stage, desk = await opened(stages, asked=asked, script=["transient", "transient"])
    bookmark = await save(desk)
    await asyncio.sleep(60)
    waiting = await desk.get(bookmark.id, tenant="local")
    assert (waiting.status, waiting.llm_status, waiting.attempts) == ("retrying", "queued", 1)
    assert waiting.error_message == "The model did not answer. It is tried again by itself."
    assert waiting.waiting_until is not None
    assert waiting.waiting_until.timestamp() == pytest.approx(stage.epoch + 61, abs=1)
    done = await settled(stage, desk, bookmark)
    assert (done.status, done.title, done.attempts) == ("done", DESCRIPTION["title"], 3)
    starts = list(stage.provider.starts)
    assert [later - earlier for earlier, later in itertools.pairwise(starts)] == pytest.approx(
        [121, 241], abs=1
    )
    assert asked == [URL]


@on_job_stages
async def test_the_third_failure_is_the_last_and_a_person_can_try_again(stages: JobStages) -> None:
    asked: list[str] = []
    stage, desk = await opened(stages, asked=asked, script=["transient"] * 3)
    failed = await settled(stage, desk, await save(desk))
    assert (failed.status, failed.can_retry, failed.attempts, stage.provider.calls) == ("failed", True, 3, 3)
    again = await desk.reprocess(failed.id, by="me", key=None, tenant="local")
    assert again.status == "processing"
    done = await settled(stage, desk, again)
    assert (done.status, asked, stage.provider.calls) == ("done", [URL], 4)


@on_job_stages
async def test_two_bad_answers_and_a_good_one_are_one_attempt(stages: JobStages) -> None:
    stage, desk = await opened(stages, outcome={"outcome": "ok"}, answers=[BAD, BAD, ANSWER])
    done = await settled(stage, desk, await save(desk))
    job = await stage.gateway.jobs.get(str(done.job_id))
    assert (done.status, done.attempts, job.attempts, stage.provider.calls) == ("done", 1, 1, 3)


@on_job_stages
async def test_what_was_paid_for_is_not_paid_for_again(stages: JobStages) -> None:
    """The description is a step: a worker that goes after it leaves it to the next one."""
    asked: list[str] = []
    stage, desk = await opened(stages, asked=asked)
    bookmark = await save(desk)
    await asyncio.sleep(0.5)
    await stage.gateway.aclose(drain_s=0)
    second, desk = await opened(stages, asked=asked)
    done = await settled(second, desk, bookmark)
    assert (done.status, asked) == ("done", [URL])
    assert second.provider.calls == 1


@on_job_stages
async def test_a_bookmark_deleted_under_its_job_costs_nothing(stages: JobStages) -> None:
    stage, _ = await opened(stages)
    handle = await stage.submit("bookmark", Given(url=URL))
    assert (await handle.wait()).state is JobState.SKIPPED
    assert stage.provider.calls == 0


@on_job_stages
async def test_a_bookmark_whose_job_was_pruned_is_as_it_was(stages: JobStages) -> None:
    """Jobs are kept for days, bookmarks for years; one that had failed can be tried again."""
    stage, desk = await opened(stages, script=[{"outcome": "ok", "content": ANSWER}, "rejected"])
    done = await settled(stage, desk, await save(desk, "https://a.example/1"))
    failed = await settled(stage, desk, await save(desk, "https://a.example/2"))
    assert (done.status, failed.status) == ("done", "failed")
    await stage.gateway.durable.store.prune(before=stage.epoch + 1, limit=10)
    with pytest.raises(headgate.UnknownJob):
        await stage.gateway.jobs.get(str(done.job_id))
    assert (await desk.get(done.id, tenant="local")).status == "done"
    lost = await desk.get(failed.id, tenant="local")
    assert (lost.status, lost.can_retry) == ("failed", True)
    again = await desk.reprocess(failed.id, by="me", key=None, tenant="local")
    assert (await settled(stage, desk, again)).status == "done"


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def a_job(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        **dict.fromkeys(Job.__struct_fields__),
        "state": JobState.PENDING,
        "attempts": 0,
        "history": (),
        "run_at": MOMENT + timedelta(hours=1),
    }
    return Job(**{**fields, **changes})


@pytest.mark.parametrize(
    ("job", "status", "llm_status"),
    [
        (a_job(), "processing", "queued"),
        (a_job(error="held: …"), "processing", "queued"),
        (a_job(attempts=1, error="transient 503"), "retrying", "queued"),
        (a_job(state=JobState.RUNNING, attempts=1), "processing", "processing"),
        (a_job(state=JobState.RUNNING, attempts=2), "retrying", "processing"),
        (a_job(state=JobState.COMPLETED, attempts=1), "done", "done"),
        (a_job(state=JobState.DEAD_LETTER, reason="poison"), "failed", "failed"),
        (a_job(state=JobState.CANCELLED, reason="cancelled"), "failed", "failed"),
        (a_job(state=JobState.SKIPPED, reason="the bookmark was deleted"), "failed", "failed"),
        (a_job(state=JobState.DEAD_LETTER, reason="permanent", error="rejected"), "failed", "failed"),
        (None, "failed", "failed"),
    ],
)
def test_every_state_of_a_job_is_one_of_a_bookmark(job: Job | None, status: str, llm_status: str) -> None:
    """There is no state of its own to be forgotten in: a row can never stick in `processing`."""
    told = standing(job, MOMENT)
    assert (told.status, told.llm_status) == (status, llm_status)
    assert (told.error_message is None) == (
        status == "done" or (job is not None and not (job.error or job.reason))
    )


def test_no_state_is_left_out() -> None:
    states: Sequence[JobState] = list(JobState)
    assert {standing(a_job(state=state), MOMENT).status for state in states} == {
        "processing",
        "done",
        "failed",
    }
