"""Batches from create to their files, through every part there is, in virtual time."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from batches.lines import CHAT, EMBEDDINGS, jsonl, line, read
from jobstage import JobStage, JobStages, database, on_each_database, on_job_stages

from headgate.batches.job import FINALIZE, VALIDATE
from headgate.core.batch import Batch, BatchState, Checked, Closing, open_in
from headgate.core.batch_order import job_id_of
from headgate.core.errors import (
    InvalidRequest,
    KeyMismatch,
    StateConflict,
    UnknownBatch,
    UnknownFile,
    UnknownJob,
)
from headgate.core.ports.claims import Want
from headgate.core.record import RecordWrite

__all__ = ["database"]
INSTANT = {"latency_s": 0.0}


async def create(stage: JobStage, content: bytes, endpoint: str = CHAT, **options: Any) -> Batch:
    tenant = options.get("tenant", "local")
    file = await stage.gateway.files.create(content, tenant=tenant)
    created = await stage.gateway.batches.create(input_file_id=file.id, endpoint=endpoint, **options)
    assert created.is_new
    return created.batch


async def run(stage: JobStage, content: bytes, endpoint: str = CHAT, **options: Any) -> Batch:
    batch = await create(stage, content, endpoint, **options)
    return await stage.gateway.batches.wait(batch.id, tenant=options.get("tenant", "local"))


async def lose(stage: JobStage, batch: Batch) -> None:
    """End its job as nobody can from outside."""
    store = stage.gateway.durable.store
    assert await store.cancel(job_id_of(batch.id), now=stage.epoch) is not None


def codes(batch: Batch) -> list[tuple[str, int | None]]:
    assert batch.errors is not None
    return [(error.code, error.line) for error in batch.errors.data]


@on_each_database
async def test_every_line_is_answered_once(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    batch = await run(stage, jsonl(range(25)), metadata={"for": "test"})
    assert batch.status is BatchState.COMPLETED
    assert (batch.error_file_id, batch.metadata) == (None, {"for": "test"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (25, 25, 0)
    output = await read(stage.gateway, batch.output_file_id)
    assert output.keys() == {f"line {number}" for number in range(25)}
    for name, told in output.items():
        body = told["response"]["body"]
        assert body["object"] == "chat.completion"
        assert f"say {name}" in body["choices"][0]["message"]["content"]
    assert stage.provider.calls == 25
    moments = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert all(moment is not None for moment in moments)


@on_job_stages
async def test_embeddings_are_lines_too(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    batch = await run(stage, jsonl("ab", url=EMBEDDINGS), EMBEDDINGS)
    output = await read(stage.gateway, batch.output_file_id)
    assert {told["response"]["body"]["data"][0]["object"] for told in output.values()} == {"embedding"}


@on_job_stages
async def test_ten_lines_are_over_in_a_moment(stages: JobStages) -> None:
    """Looks are quick at first: a small batch is not made to wait for its job."""
    stage = await stages.open(INSTANT)
    began = stage.now
    await run(stage, jsonl(range(10)))
    assert stage.now - began < 1.0


@on_job_stages
async def test_lines_that_fail_are_in_the_error_file_and_the_others_are_not(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    content = jsonl(range(3)) + line("bad", model="simulated/rejecting")
    batch = await run(stage, content)
    assert batch.status is BatchState.COMPLETED
    errors = await read(stage.gateway, batch.error_file_id)
    assert errors.keys() == {"bad"}
    assert errors["bad"]["response"]["status_code"] == 400
    assert (await read(stage.gateway, batch.output_file_id)).keys() == {"line 0", "line 1", "line 2"}
    assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 1)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", [("empty_file", None)]),
        (b"\n \n", [("empty_file", None)]),
        (line("a") + b"{oops\n\n" + line("a"), [("invalid_json_line", 2), ("duplicate_custom_id", 4)]),
        (b"\n" * 50_001 + line("a"), [("too_many_tasks", None)]),
        (line("a", url="/v1/embeddings"), [("url_mismatch", 1)]),
        (line("a") + line("b", model="nobody"), [("model_not_found", 2)]),
        (line("a") + line("b", model="simulated"), [("model_not_allowed", 2)]),
        (
            b'{"custom_id": "' + b"x" * 4_300_000 + b'"}\n' + line("a", method="GET"),
            [("line_too_long", 1), ("invalid_method", 2)],
        ),
    ],
)
def test_bad_lines_fail_the_batch_before_any_line_runs(
    content: bytes, found: list[tuple[str, int | None]], tmp_path: Any
) -> None:
    """Nothing is spent on a file that its owner has to mend and send again."""

    @on_job_stages
    async def scene(stages: JobStages) -> None:
        stage = await stages.open(INSTANT)
        batch = await run(stage, content, models=("m", "nobody"))
        assert batch.status is BatchState.FAILED
        assert codes(batch) == found
        assert batch.failed_at is not None
        assert stage.provider.calls == 0
        assert sum((await stage.gateway.jobs.count()).values()) == 1

    scene(tmp_path)


@on_job_stages
async def test_more_lines_than_a_batch_may_have_fail_it(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    batch = await run(stage, jsonl(range(50_001)))
    assert codes(batch) == [("too_many_tasks", None)]


@on_job_stages
async def test_blank_lines_are_passed_over(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    batch = await run(stage, b"\n" * 25_000 + line("a") + b" \r\n" * 25_000 + line("b"))
    assert (await read(stage.gateway, batch.output_file_id)).keys() == {"a", "b"}


@on_job_stages
async def test_a_worker_s_place_is_free_while_lines_run(stages: JobStages) -> None:
    """A batch of an hour must not hold what its own lines need."""
    stage = await stages.open({"latency_s": 60.0, "slots": 1}, jobs={"workers": 1})
    batch = await run(stage, jsonl(range(5)))
    assert batch.request_counts.completed == 5


@on_job_stages
async def test_a_full_backlog_makes_a_batch_wait_and_go_on(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 1.0, "slots": 2}, jobs={"max_pending_per_tenant": 7})
    batch = await run(stage, jsonl(range(40)))
    assert batch.status is BatchState.COMPLETED
    assert batch.request_counts.completed == 40
    assert stage.provider.calls == 40


@on_each_database
async def test_a_cancelled_batch_keeps_what_was_done_and_names_the_rest(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 10.0, "slots": 2})
    batch = await create(stage, jsonl(range(30)))
    await stage.world.clock.sleep(25.0)
    told = await stage.gateway.batches.cancel(batch.id)
    assert told.status is BatchState.CANCELLING
    assert (await stage.gateway.batches.cancel(batch.id)).cancelling_at == told.cancelling_at
    over = await stage.gateway.batches.wait(batch.id)
    assert over.status is BatchState.CANCELLED
    output = await read(stage.gateway, over.output_file_id)
    errors = await read(stage.gateway, over.error_file_id)
    assert output
    assert output.keys() | errors.keys() == {f"line {number}" for number in range(30)}
    assert not output.keys() & errors.keys()
    assert {told["error"]["code"] for told in errors.values()} == {"batch_cancelled"}
    with pytest.raises(StateConflict):
        await stage.gateway.batches.cancel(batch.id)
    assert await stage.gateway.records.list("batch_ends") == []


@on_job_stages
async def test_a_batch_that_nobody_works_on_is_cancelled_when_somebody_does(stages: JobStages) -> None:
    """The wish is kept in the store; lines that were never submitted are named all the same."""
    idle = await stages.open(INSTANT, work=False)
    batch = await create(idle, jsonl(range(3)))
    assert (await idle.gateway.batches.cancel(batch.id)).status is BatchState.CANCELLING
    busy = await stages.open(INSTANT)
    over = await busy.gateway.batches.wait(batch.id)
    assert over.status is BatchState.CANCELLED
    assert (await read(busy.gateway, over.error_file_id)).keys() == {"line 0", "line 1", "line 2"}
    assert busy.provider.calls == 0


@on_job_stages
async def test_lines_not_done_within_the_window_expire(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 30.0, "slots": 1})
    batch = await run(stage, jsonl(range(10)), completion_window="2m")
    assert batch.status is BatchState.EXPIRED
    assert batch.expired_at is not None
    assert batch.expires_at is not None
    assert 0 <= batch.expired_at - batch.expires_at <= 60
    output = await read(stage.gateway, batch.output_file_id)
    errors = await read(stage.gateway, batch.error_file_id)
    assert (len(output), len(errors)) == (batch.request_counts.completed, batch.request_counts.failed)
    assert len(output) + len(errors) == 10
    assert 3 <= len(output) <= 5
    assert {told["error"]["code"] for told in errors.values()} == {"batch_expired"}


@on_each_database
async def test_a_line_that_was_cancelled_by_its_id_is_told_as_such(stages: JobStages) -> None:
    """Whatever ends the batch later: its owner is not told that it did not make it in time."""
    slow = {"provider": "simulated", "latency_s": 60.0, "slots": 1}
    stage = await stages.open(slow, models={"n": {"upstreams": [slow]}})
    expiring = await create(stage, jsonl(range(30)), completion_window="5m")
    cancelled = await create(stage, jsonl(range(30), model="n"))
    await stage.world.clock.sleep(10.0)
    for model in ("m", "n"):
        *_, line_job = await stage.gateway.jobs.list(task="chat", model=model, state="pending")
        await stage.gateway.jobs.cancel(line_job.id)
    await stage.world.clock.sleep(10.0)
    await stage.gateway.batches.cancel(cancelled.id)
    for batch, code in ((expiring, "batch_expired"), (cancelled, "batch_cancelled")):
        over = await stage.gateway.batches.wait(batch.id)
        errors = await read(stage.gateway, over.error_file_id)
        found = Counter(told["error"]["code"] for told in errors.values())
        assert found["request_cancelled"] == 1
        assert found.keys() == {"request_cancelled", code}


@on_job_stages
async def test_a_window_that_ends_while_nobody_works_is_over(stages: JobStages) -> None:
    """The lines are buried by whoever comes first; the batch still says what became of each."""
    first = await stages.open({"latency_s": 3600.0, "slots": 1})
    batch = await create(first, jsonl(range(4)), completion_window="5m")
    await stages.world.clock.sleep(10.0)
    await first.gateway.aclose(0.0)
    await stages.world.clock.sleep(3600.0)
    second = await stages.open(INSTANT)
    over = await second.gateway.batches.wait(batch.id)
    assert over.status is BatchState.EXPIRED
    assert len(await read(second.gateway, over.error_file_id)) == 4


@on_job_stages
async def test_a_retry_runs_the_failed_lines_and_no_others(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 30.0, "slots": 1})
    first = await run(stage, jsonl(range(6)), completion_window="2m", metadata={"a": "b"})
    failed = await read(stage.gateway, first.error_file_id)
    calls = stage.provider.calls
    created = await stage.gateway.batches.retry(first.id)
    again = await stage.gateway.batches.wait(created.batch.id)
    assert again.metadata == {"a": "b", "retry_of": first.id}
    assert again.request_counts.total == len(failed)
    output = await read(stage.gateway, again.output_file_id)
    errors = await read(stage.gateway, again.error_file_id)
    assert output.keys() | errors.keys() == failed.keys()
    assert stage.provider.calls - calls <= len(failed)


@on_job_stages
async def test_only_failed_lines_of_a_batch_that_ended_can_be_retried(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    done = await run(stage, jsonl(range(2)))
    with pytest.raises(StateConflict, match="no error file"):
        await stage.gateway.batches.retry(done.id)
    idle = await create(stage, jsonl(range(2)))
    with pytest.raises(StateConflict, match="not ended"):
        await stage.gateway.batches.retry(idle.id)


@on_job_stages
async def test_one_key_is_one_batch(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    file = await stage.gateway.files.create(jsonl(range(2)))
    asked: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "idempotency_key": "k"}
    first = await stage.gateway.batches.create(**asked)
    again = await stage.gateway.batches.create(**asked)
    assert (again.batch.id, again.is_new) == (first.batch.id, False)
    with pytest.raises(KeyMismatch):
        await stage.gateway.batches.create(**asked, completion_window="1h")
    other = await stage.gateway.files.create(jsonl(range(2)), tenant="other")
    apart = await stage.gateway.batches.create(**{**asked, "input_file_id": other.id}, tenant="other")
    assert apart.is_new


@on_job_stages
async def test_a_tenant_meets_no_other_s_batches_and_files(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    batch = await run(stage, jsonl(range(2)), tenant="acme")
    batches = stage.gateway.batches
    for look in (batches.get, batches.cancel, batches.retry):
        with pytest.raises(UnknownBatch):
            await look(batch.id, tenant="beta")
    with pytest.raises(UnknownFile):
        await batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, tenant="beta")
    with pytest.raises(UnknownFile):
        await stage.gateway.files.content(batch.output_file_id or "", tenant="beta")
    assert await batches.list(tenant="beta") == []
    assert [one.id for one in await batches.list(tenant="acme")] == [batch.id]


@on_job_stages
async def test_pages_of_batches_go_on_where_the_last_ended(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    made = [(await run(stage, jsonl(range(1)))).id for _ in range(3)]
    first = await stage.gateway.batches.list(limit=2)
    rest = await stage.gateway.batches.list(limit=2, after=first[-1].id)
    assert [one.id for one in (*first, *rest)] == made[::-1]
    with pytest.raises(InvalidRequest):
        await stage.gateway.batches.list(limit=0)
    with pytest.raises(InvalidRequest):
        await stage.gateway.batches.list(after="job_1")


@on_job_stages
async def test_a_job_is_no_batch(stages: JobStages) -> None:
    stage = await stages.open(INSTANT)
    job = await stage.ended("chat", {"model": "m", "messages": [{"role": "user", "content": "x"}]})
    for batch_id in ("batch_" + job.id.removeprefix("job_"), job.id, "batch_x", ""):
        with pytest.raises(UnknownBatch):
            await stage.gateway.batches.get(batch_id)


@on_job_stages
async def test_a_batch_whose_job_is_lost_says_so(stages: JobStages) -> None:
    """Nothing dies silently: its owner sees why there is no output, and what to do."""
    stage = await stages.open(INSTANT, work=False)
    batch = await create(stage, jsonl(range(2)))
    await lose(stage, batch)
    lost = await stage.gateway.batches.get(batch.id)
    assert lost.status is BatchState.FAILED
    assert codes(lost) == [("batch_job_failed", None)]
    with pytest.raises(StateConflict, match="is failed"):
        await stage.gateway.batches.cancel(batch.id)


@on_each_database
async def test_a_batch_s_job_is_not_cancelled_as_a_job(stages: JobStages) -> None:
    """Its lines would run on, and nobody could stop them or read what they came to."""
    stage = await stages.open({"latency_s": 10.0, "slots": 2})
    batch = await create(stage, jsonl(range(6)))
    await stage.world.clock.sleep(5.0)
    with pytest.raises(StateConflict, match=f"is a batch.*/v1/batches/{batch.id}/cancel"):
        await stage.gateway.jobs.cancel(job_id_of(batch.id))
    with pytest.raises(UnknownJob):
        await stage.gateway.jobs.cancel(job_id_of(batch.id), tenant="other")
    over = await stage.gateway.batches.wait(batch.id)
    assert (over.status, over.request_counts.completed) == (BatchState.COMPLETED, 6)


@on_each_database
async def test_the_lines_of_a_batch_whose_job_is_lost_can_be_stopped(stages: JobStages) -> None:
    """Whatever became of the batch, nobody has to pay for lines that nobody will read."""
    stage = await stages.open({"latency_s": 60.0, "slots": 2})
    batch = await create(stage, jsonl(range(20)))
    await stage.world.clock.sleep(10.0)
    await lose(stage, batch)
    await stage.world.clock.sleep(20.0)
    told = await stage.gateway.batches.cancel(batch.id)
    assert told.status is BatchState.FAILED
    await stage.world.clock.sleep(200.0)
    assert stage.provider.calls == 2
    assert open_in(await stage.gateway.jobs.count()) == 0
    with pytest.raises(StateConflict):
        await stage.gateway.batches.cancel(batch.id)


@on_each_database
async def test_no_line_is_handed_to_a_worker_once_a_cancel_is_answered(stages: JobStages) -> None:
    """A batch's job may not look for five seconds: whoever cancels does not wait for that."""
    stage = await stages.open({"latency_s": 2.0, "slots": 2})
    batch = await create(stage, jsonl(range(600)))
    await stage.world.clock.sleep(31.0)
    assert (await stage.gateway.batches.cancel(batch.id)).status is BatchState.CANCELLING
    counts, begun = await stage.gateway.jobs.count(), stage.provider.calls
    # Its own job is the one that still waits.
    assert counts["pending"] == 1
    await stage.gateway.batches.wait(batch.id)
    assert stage.provider.calls <= begun + counts["running"]


@on_job_stages
async def test_a_wish_to_cancel_that_comes_last_changes_nothing(stages: JobStages) -> None:
    """The first mark counts. Whoever was told `cancelling` gets `cancelled`, and nobody else does."""
    stage = await stages.open(INSTANT, work=False)
    batch = await create(stage, jsonl(range(2)))
    mark = RecordWrite(
        collection="batch_ends", id=f"{batch.id}.finish", body=b'{"at": 1}', unique_key=batch.id
    )
    await stage.gateway.durable.store.put_records("local", [mark], now=1.0)
    with pytest.raises(StateConflict):
        await stage.gateway.batches.cancel(batch.id)
    await stage.gateway.work()
    assert (await stage.gateway.batches.wait(batch.id)).status is BatchState.COMPLETED


@on_job_stages
async def test_whoever_polls_sees_legal_states_and_counts_that_never_fall(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 1.0, "slots": 4})
    batch = await create(stage, jsonl(range(40)))
    states, done = [batch.status], [0]
    while not states[-1].final:
        await stage.world.clock.sleep(0.05)
        seen = await stage.gateway.batches.get(batch.id)
        states.append(seen.status)
        done.append(seen.request_counts.completed)
    order = [BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.COMPLETED]
    ranks = [order.index(state) for state in states]
    assert ranks == sorted(ranks)
    assert done == sorted(done)
    assert len(set(done)) > 5


@on_job_stages
async def test_a_batch_outlives_any_number_of_dead_workers(stages: JobStages) -> None:
    """Three crashes make a job poison; a batch's job is not the killer, only present."""
    first = await stages.open(INSTANT, work=False)
    batch = await create(first, jsonl(range(3)))
    store, job_id = first.gateway.durable.store, job_id_of(batch.id)
    for number in range(5):
        node = f"node_{number}"
        await store.join(node)
        ready = await store.ready(now=first.epoch)
        wants = [Want(model, 10, tenant) for tenant, models in ready.lines.items() for model in models]
        claims = await store.claim(wants, node=node, suspects=1, now=first.epoch)
        assert [claim.id for claim in claims] == [job_id]
        await store.bury_dead([node])
        upkeep = first.gateway.durable._upkeep
        await first.gateway.durable.join()
        assert await upkeep.rescue() == 1
    await first.gateway.work()
    assert (await first.gateway.batches.wait(batch.id)).status is BatchState.COMPLETED


@on_each_database
async def test_a_batch_goes_on_wherever_its_gateway_was_stopped(stages: JobStages) -> None:
    """While lines are looked at, submitted, run and written down: what was begun is finished by the next."""
    slow = {"latency_s": 0.5, "slots": 8}
    first = await stages.open(slow, work=False)
    batch = await create(first, jsonl(range(60)))
    for number in range(12):
        stage = await stages.open(slow)
        await stages.world.clock.sleep(0.07 * number)
        await stage.gateway.aclose(0.0)
    last = await stages.open(slow)
    over = await last.gateway.batches.wait(batch.id)
    assert over.status is BatchState.COMPLETED
    output = await read(last.gateway, over.output_file_id)
    assert output.keys() == {f"line {number}" for number in range(60)}
    jobs = await last.gateway.jobs.list(task="chat", limit=1000)
    assert Counter(job.metadata["custom_id"] for job in jobs) == Counter(output.keys())


@on_job_stages
async def test_files_that_were_half_written_are_written_anew(stages: JobStages) -> None:
    """Killed in the middle of its files: the next run writes the same files again, whole, and every line is in them."""
    stage = await stages.open(INSTANT, work=False)
    batch = await create(stage, jsonl(range(5)))
    store, now = stage.gateway.durable.store, stage.epoch
    await store.join("dead")
    await store.ready(now=now)
    (claim,) = await store.claim([Want("", 1)], node="dead", suspects=0, now=now)
    closing = Closing(at=now, output_file_id="file-000000000001a", error_file_id="file-000000000002b")
    steps = {VALIDATE: Checked(at=now, total=5, chunk_lines=5), FINALIZE: closing}
    for name, step in steps.items():
        await store.save_step(claim.id, claim.lease, name=name, result=msgspec.json.encode(step), now=now)
    await store.bury_dead(["dead"])
    stage.gateway.files.path("file-000000000002b").write_bytes(b"half a li")
    await stage.gateway.work()
    over = await stage.gateway.batches.wait(batch.id)
    assert (over.output_file_id, over.error_file_id) == (None, "file-000000000002b")
    assert len(await read(stage.gateway, over.error_file_id)) == 5
