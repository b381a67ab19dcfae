"""The bookmarks design's keys, background queue and dead letters, row by row, on both stores.

Its routes, clients, screens and alerts come with the HTTP gateway and the app.
"""

import asyncio
import hashlib
import json
import uuid
from typing import Any

import msgspec
import pytest
from jobstage import JobStage, JobStages, on_each_database

import headgate
from headgate import Context, Jitter, JobState, KeyMismatch, RetryPolicy
from headgate.core.idempotency import IdempotencyRules
from headgate.stores.sqlite import SqliteStore

HOUR_S = 3600.0
KEY = str(uuid.UUID("8f14e45f-ceea-467f-a0e6-1b2c3d4e5f60"))
URL = "https://example.org/article"
CLOUD_QUEUE = RetryPolicy(max_attempts=4, first_wait_s=120, factor=2, longest_wait_s=3600, jitter=Jitter.NONE)
"""`message.retry({ delaySeconds: Math.pow(2, attempt) * 60 })`, the attempts counted from 1."""


class Bookmark(msgspec.Struct):
    bookmark_id: str
    url: str = URL


@headgate.task("llm_processing", model="m", retry=CLOUD_QUEUE)
async def llm_processing(ctx: Context, bookmark: Bookmark) -> dict[str, Any]:
    reply = await ctx.llm.complete(messages=[{"role": "user", "content": bookmark.url}])
    return {"summary": reply.content, "attempt": ctx.job.attempt, "max_attempts": ctx.job.max_attempts}


@headgate.task("extraction")
async def extraction(ctx: Context, bookmark: Bookmark) -> None:
    raise headgate.Reject("the page is gone")


async def _open(stages: JobStages, *upstreams: Any, **settings: Any) -> JobStage:
    return await stages.open(*upstreams, tasks=[llm_processing, extraction], **settings)


async def _ask(stage: JobStage, key: str = KEY, url: str = URL) -> headgate.Reply:
    return await stage.gateway.complete(
        model="m", messages=[{"role": "user", "content": url}], idempotency_key=key
    )


async def _rows(stage: JobStage, sqlite: str, postgres: str) -> list[tuple[Any, ...]]:
    """The table itself, past every port."""
    store: Any = stage.gateway.durable.store
    if isinstance(store, SqliteStore):
        return list(await store._read(lambda db: db.execute(sqlite).fetchall()))
    return [tuple(row) for row in await store._database.read(postgres)]


async def _keys(stage: JobStage, columns: str) -> list[tuple[Any, ...]]:
    rest = f"select {columns} from"
    return await _rows(stage, f"{rest} idempotency_keys", f"{rest} headgate.idempotency_keys")


# ---- What it is for -----------------------------------------------------------------------------------------


@on_each_database
async def test_double_submissions_are_one(stages: JobStages) -> None:
    """A share extension that fires twice, a bookmarklet clicked five times."""
    stage = await _open(stages)
    bookmark = Bookmark("b1")
    handles = await asyncio.gather(
        *(stage.submit(llm_processing, bookmark, idempotency_key=KEY) for _ in range(5))
    )
    assert len({handle.id for handle in handles}) == 1
    await handles[0].wait()
    assert stage.provider.calls == 1


@on_each_database
async def test_a_resend_is_safe_whenever_it_comes(stages: JobStages) -> None:
    """The network broke before the answer came: asked again while it runs, after it has ended, after a restart."""
    first = await _open(stages)
    handle = await first.submit(llm_processing, Bookmark("b1"), idempotency_key=KEY)
    during = await first.submit(llm_processing, Bookmark("b1"), idempotency_key=KEY)
    await handle.wait()
    after = await first.submit(llm_processing, Bookmark("b1"), idempotency_key=KEY)
    await first.gateway.aclose()
    second = await _open(stages)
    restarted = await second.submit(llm_processing, Bookmark("b1"), idempotency_key=KEY)
    assert {during.id, after.id, restarted.id} == {handle.id}
    assert (first.provider.calls, second.provider.calls) == (1, 0)


# ---- The table idempotency_keys ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    ["key", "endpoint", "request_hash", "response_status", "response_body", "created_at", "expires_at"],
)
@on_each_database
async def test_the_table_idempotency_keys_has_its_columns(stages: JobStages, column: str) -> None:
    stage = await _open(stages, work=False)
    await _ask(stage)
    ((value,),) = await _keys(stage, column)
    assert value is not None


@on_each_database
async def test_the_columns_hold_what_they_are_called(stages: JobStages) -> None:
    stage = await _open(stages, work=False)
    reply = await _ask(stage)
    ((key, endpoint, request_hash, status, body),) = await _keys(
        stage, "key, endpoint, request_hash, response_status, response_body"
    )
    assert (key, endpoint, status) == (KEY, "complete", 200)
    assert len(request_hash) == hashlib.sha256().digest_size
    assert json.loads(body)["body"] == reply.json()


@on_each_database
async def test_expires_at_is_created_at_and_72_hours(stages: JobStages) -> None:
    stage = await _open(stages, work=False)
    await stage.submit(llm_processing, Bookmark("b1"), idempotency_key=KEY)
    ((created_at, expires_at),) = await _keys(stage, "created_at, expires_at")
    assert expires_at - created_at == 72 * HOUR_S == IdempotencyRules().retention_s
    assert created_at == stage.epoch


@on_each_database
async def test_there_is_an_index_on_expires_at(stages: JobStages) -> None:
    stage = await _open(stages, work=False)
    await stage.gateway.jobs.count()
    named = "where tablename = 'idempotency_keys' and indexdef like '%(expires_at)%'"
    found = await _rows(
        stage,
        "select name from pragma_index_list('idempotency_keys') as list"
        " where (select name from pragma_index_info(list.name)) = 'expires_at'",
        f"select indexname from pg_indexes {named}",
    )
    assert len(found) == 1


@pytest.mark.parametrize(
    "key",
    [str(uuid.uuid4()), f"{hashlib.sha256(URL.encode()).hexdigest()[:8]}-1767225600000"],
    ids=["uuid v4", "the client's own: hash and time"],
)
@on_each_database
async def test_a_key_is_whatever_the_client_makes(stages: JobStages, key: str) -> None:
    stage = await _open(stages, work=False)
    first = await stage.submit(llm_processing, Bookmark("b1"), idempotency_key=key)
    assert (await stage.submit(llm_processing, Bookmark("b1"), idempotency_key=key)).id == first.id


# ---- The four steps ------------------------------------------------------------------------------------------


@on_each_database
async def test_step_1_first_request_is_recorded_then_done_then_its_response_is_recorded(
    stages: JobStages,
) -> None:
    stage = await _open(stages, {"latency_s": 10.0}, work=False)
    asking = asyncio.create_task(_ask(stage))
    await asyncio.sleep(5)
    ((key, state, status),) = await _keys(stage, "key, state, response_status")
    assert (key, state, status) == (KEY, "sent", None), "on the disk before the answer is there"
    await asking
    ((state, status),) = await _keys(stage, "state, response_status")
    assert (state, status, stage.provider.calls) == ("done", 200, 1)


@on_each_database
async def test_step_2_the_same_key_gets_the_stored_response_and_nothing_is_done(stages: JobStages) -> None:
    stage = await _open(stages, work=False)
    first = await _ask(stage)
    again = await _ask(stage)
    assert (again.content, again.usage, again.request_id) == (first.content, first.usage, first.request_id)
    assert (first.replayed, again.replayed, stage.provider.calls) == (False, True, 1)


@on_each_database
async def test_step_3_another_body_under_the_key_is_a_conflict(stages: JobStages) -> None:
    stage = await _open(stages, work=False)
    await _ask(stage)
    with pytest.raises(KeyMismatch, match="was used for a different request"):
        await _ask(stage, url="https://example.org/other")
    job_key = str(uuid.uuid4())
    await stage.submit(llm_processing, Bookmark("b1"), idempotency_key=job_key)
    with pytest.raises(KeyMismatch):
        await stage.submit(llm_processing, Bookmark("b2"), idempotency_key=job_key)
    assert stage.provider.calls == 1
    assert IdempotencyRules().mismatch_status == 409


@on_each_database
async def test_step_4_after_its_time_a_key_is_as_good_as_deleted(stages: JobStages) -> None:
    stage = await _open(stages, work=False, jobs={"lease_s": HOUR_S})
    await _ask(stage)
    await asyncio.sleep(72 * HOUR_S - stage.now - 1)
    assert (await _ask(stage)).replayed
    await asyncio.sleep(1)
    assert not (await _ask(stage, url="https://example.org/other")).replayed
    assert stage.provider.calls == 2


@on_each_database
async def test_expired_keys_are_really_deleted(stages: JobStages) -> None:
    stage = await _open(stages, idempotency={"retention_h": 0.01})
    await stage.submit(llm_processing, Bookmark("b1"), idempotency_key=KEY)
    assert len(await _keys(stage, "key")) == 1
    await asyncio.sleep(110)
    assert await _keys(stage, "key") == []


# ---- The background queue ------------------------------------------------------------------------------------


@on_each_database
async def test_a_message_knows_its_attempt_and_how_many_it_has(stages: JobStages) -> None:
    stage = await _open(stages, {"latency_s": 1.0, "script": ["transient"]})
    job = await stage.ended(llm_processing, Bookmark("b1"), max_attempts=3)
    assert (job.result["attempt"], job.result["max_attempts"]) == (2, 3)


@on_each_database
async def test_a_processed_message_is_acknowledged_with_its_result(stages: JobStages) -> None:
    stage = await _open(stages)
    job = await stage.ended(llm_processing, Bookmark("b1"))
    assert (job.state, job.attempts) == (JobState.COMPLETED, 1)
    assert job.result["summary"]


def test_the_delays_of_the_queue_can_be_said_by_a_policy() -> None:
    """2^attempt · 60 s after attempts 1, 2, 3."""
    assert [CLOUD_QUEUE.backoff_s(attempt, 0.5) for attempt in (1, 2, 3)] == [
        2**attempt * 60 for attempt in (1, 2, 3)
    ]


@on_each_database
async def test_a_failed_message_is_retried_after_2_to_the_attempt_minutes(stages: JobStages) -> None:
    stage = await _open(stages, {"latency_s": 0.0, "script": ["transient"] * 2})
    await stage.ended(llm_processing, Bookmark("b1"))
    assert list(stage.provider.starts) == pytest.approx([0, 120, 120 + 240], abs=0.01)


@on_each_database
async def test_after_max_attempts_a_message_goes_to_the_dead_letter_queue(stages: JobStages) -> None:
    stage = await _open(stages, {"latency_s": 0.0, "outcome": "transient"})
    job = await stage.ended(llm_processing, Bookmark("b1"), max_attempts=2)
    assert (job.state, job.reason, job.attempts) == (JobState.DEAD_LETTER, "exhausted", 2)
    assert [one.id for one in await stage.gateway.dead_letters.list()] == [job.id]
    assert stage.provider.calls == 2


@on_each_database
async def test_one_failing_message_does_not_hold_up_its_batch(stages: JobStages) -> None:
    stage = await _open(stages, {"latency_s": 1.0, "script": ["transient"]})
    batch = [{"task": "llm_processing", "input": Bookmark(f"b{number}")} for number in range(8)]
    handles = await stage.gateway.jobs.submit_many(batch)
    await asyncio.sleep(5)
    states = [(await handle.job()).state for handle in handles]
    assert sorted(states) == [JobState.COMPLETED] * 7 + [JobState.PENDING]


# ---- failed_jobs ---------------------------------------------------------------------------------------------


@on_each_database
async def test_a_failed_job_has_the_fields_of_failed_jobs(stages: JobStages) -> None:
    """id, job_type, error_message, payload, failed_at, retryable. `bookmark_id` is the application's: see its own test."""
    stage = await _open(stages, {"latency_s": 1.0, "outcome": "transient"})
    job = await stage.ended(llm_processing, Bookmark("b1"), max_attempts=1)
    (failed,) = await stage.gateway.dead_letters.list()
    assert (failed.id, failed.job_type) == (job.id, "llm_processing")
    assert str(failed.error_message).startswith("transient 503")
    assert failed.failed_at == job.finished_at == stage.world.clock.utc()
    assert failed.retryable is True
    payload = (await stage.gateway.jobs.get(failed.id)).input
    assert payload == {"bookmark_id": "b1", "url": URL}


@on_each_database
async def test_what_can_never_work_is_not_retryable(stages: JobStages) -> None:
    stage = await _open(stages)
    await stage.ended(extraction, Bookmark("b1"))
    (failed,) = await stage.gateway.dead_letters.list()
    assert (failed.job_type, failed.error_message, failed.retryable) == (
        "extraction",
        "rejected: the page is gone",
        False,
    )


@on_each_database
async def test_the_retry_button_processes_it_again(stages: JobStages) -> None:
    """The app's `reprocess` needs no more than a replay."""
    stage = await _open(stages, {"latency_s": 1.0, "script": ["transient"]})
    job = await stage.ended(llm_processing, Bookmark("b1"), max_attempts=1)
    again = await stage.gateway.dead_letters.replay(job.id, by="user")
    assert (await again.wait()).state is JobState.COMPLETED
