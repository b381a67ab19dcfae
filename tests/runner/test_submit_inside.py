"""Lists that headgate's own rooms submit: tasks nobody else can name, jobs of a batch, keys of their own."""

from typing import Any

import pytest
from jobstage import JobStages, on_job_stages

import headgate
from headgate import Context, InvalidRequest, KeyMismatch, Submission
from headgate.core.errors import RecordExists, UnknownTask
from headgate.core.events import KeyUsed
from headgate.core.ports.jobs import JobFilter
from headgate.runner.tasks import Task


@headgate.task("echo")
async def echo(ctx: Context, given: Any) -> Any:
    return given


@headgate.task("fails")
async def fails(ctx: Context, given: Any) -> None:
    raise RuntimeError("always")


async def run_hidden(ctx: Context, given: Any) -> Any:
    return given


HIDDEN: Task[Any, Any] = Task("hidden", run_hidden, inside=True)
ENDPOINT = "POST /v1/batches"


def some(count: int, task: str = "hidden") -> list[Submission]:
    return [Submission(task=task, input=number) for number in range(count)]


@on_job_stages
async def test_a_task_of_headgates_own_is_submitted_from_inside_only(stages: JobStages) -> None:
    stage = await stages.open(tasks=[HIDDEN])
    handles = await stage.gateway.jobs.submit_inside(some(3), tenant="acme")

    assert [await handle.result() for handle in handles] == [0, 1, 2]
    with pytest.raises(UnknownTask):
        await stage.gateway.jobs.submit_inside(some(1), tenant="acme", inside=False)
    with pytest.raises(UnknownTask):
        await stage.submit("hidden", 1)


@on_job_stages
async def test_its_jobs_belong_to_the_batch(stages: JobStages) -> None:
    stage = await stages.open(tasks=[HIDDEN], work=False)
    handles = await stage.gateway.jobs.submit_inside(some(3), tenant="acme", batch_id="b")

    jobs = await stage.gateway._durable.store.batch_jobs("b", tenant="acme", limit=9)
    assert {job.id for job in jobs} == {handle.id for handle in handles}
    assert (await handles[0].job()).batch_id == "b"


@on_job_stages
async def test_a_key_belongs_to_the_endpoint_it_came_by(stages: JobStages) -> None:
    """The same words in two places of the API are two keys; in one place they are one."""
    stage = await stages.open(tasks=[HIDDEN, echo], work=False)
    submit = stage.gateway.jobs.submit_inside
    named: dict[str, Any] = {"tenant": "local", "idempotency_key": "k"}
    first = await submit(some(2), **named, endpoint=ENDPOINT)
    again = await submit(some(2), **named, endpoint=ENDPOINT)
    elsewhere = await stage.gateway.jobs.submit_many(some(2, "echo"), idempotency_key="k")

    assert [handle.id for handle in again] == [handle.id for handle in first]
    assert [handle.created for handle in (*first, *again, *elsewhere)] == [True] * 2 + [False] * 2 + [
        True
    ] * 2
    with pytest.raises(KeyMismatch):
        await submit(some(3), **named, endpoint=ENDPOINT)
    assert [event.endpoint for event in stage.told(KeyUsed)] == [
        ENDPOINT,
        ENDPOINT,
        "POST /v1/jobs",
        ENDPOINT,
    ]


@on_job_stages
async def test_all_of_a_list_or_none(stages: JobStages) -> None:
    """Its records too: they come with the first job, and one that collides keeps the others out."""
    stage = await stages.open(tasks=[HIDDEN], work=False)
    jobs, records = stage.gateway.jobs, stage.gateway.records
    kept = headgate.record("pages", "1", {"n": 1}, unique_key="u")
    (first, _) = await jobs.submit_inside(some(2), tenant="local", records=[kept])
    record = await records.get("pages", "1")
    assert record is not None
    assert record.job_id == first.id

    with pytest.raises(RecordExists):
        await jobs.submit_inside(
            some(2), tenant="local", records=[headgate.record("pages", "2", {}, unique_key="u")]
        )
    with pytest.raises(InvalidRequest, match=r"jobs\[1\]: "):
        await jobs.submit_inside([*some(1), Submission(task="hidden", priority=99)], tenant="local")
    with pytest.raises(InvalidRequest, match="submit 1 to 1,000 jobs"):
        await jobs.submit_inside([], tenant="local")
    assert sum((await jobs.count()).values()) == 2


@pytest.mark.parametrize("revivable", [True, False])
@on_job_stages
async def test_who_is_not_to_come_back_does_not(stages: JobStages, revivable: bool) -> None:
    """A line of a batch that gave up is in the output already: it must not run again behind its back."""
    stage = await stages.open(tasks=[fails])
    asked = [Submission(task="fails", max_attempts=1)]
    (handle,) = await stage.gateway.jobs.submit_inside(asked, tenant="local", revivable=revivable)
    await handle.wait()

    store = stage.gateway._durable.store
    later = stage.epoch + 1e6
    assert [job_id for job_id, _ in await store.revivable(now=later, limit=9)] == [handle.id] * revivable
    assert len(await store.select(JobFilter(), limit=9)) == 1


@on_job_stages
async def test_a_single_submission_may_name_its_endpoint_too(stages: JobStages) -> None:
    """An application's keys must not collide with those of `POST /v1/jobs`."""
    stage = await stages.open(work=False)
    given = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    first = await stage.submit("chat", given, idempotency_key="k")
    other = await stage.submit("chat", given, idempotency_key="k", endpoint="POST /v1/wishes")
    again = await stage.submit("chat", given, idempotency_key="k", endpoint="POST /v1/wishes")
    assert (first.id != other.id, other.id == again.id) == (True, True)
