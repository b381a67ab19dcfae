"""Accepting jobs: checked before anything is stored, once per key, all or none, and only while there is room."""

import asyncio
from typing import Any

import msgspec
import pytest
from jobstage import JobStages, on_job_stages

import headgate
from headgate import BacklogFull, Context, InvalidRequest, JobState, KeyMismatch, PayloadTooLarge, Submission
from headgate.core.events import JobAccepted

HOUR_S = 3600.0


@headgate.task("echo")
async def echo(ctx: Context, given: Any) -> Any:
    return given


@headgate.task("naps")
async def naps(ctx: Context, seconds: float) -> None:
    await asyncio.sleep(seconds)


async def _stored(stage: Any) -> int:
    return sum((await stage.gateway.jobs.count(tenant=None)).values())


# ---- What is refused ------------------------------------------------------------------------------------------


@on_job_stages
async def test_ten_megabytes_are_refused_and_four_mebibytes_are_taken(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo])
    with pytest.raises(PayloadTooLarge, match="10,000,002 bytes; the most is 4,194,304") as caught:
        await stage.submit(echo, "x" * 10_000_000)
    assert caught.value.param == "input"
    assert await _stored(stage) == 0
    most = "x" * (4 * 1024 * 1024 - 2)
    assert (await stage.ended(echo, most)).result == most


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 101),
        ("max_attempts", 2.0),
        ("max_attempts", True),
        ("hold", 1),
        ("hold", None),
        ("metadata", []),
        ("metadata", "text"),
        ("metadata", {"a": "x" * 16_400}),
        ("dedup_key", ""),
        ("dedup_key", 5),
        ("dedup_key", "x" * 300),
        ("webhook", ""),
        ("webhook", 5),
        ("webhook", "ftp://example.com"),
        ("webhook", "example.com/hook"),
        ("webhook", "https://example.com/\n"),
        ("webhook", "https://example.com/" + "x" * 2000),
        ("tenant", ""),
        ("tenant", None),
        ("tenant", "a\nb"),
        ("idempotency_key", ""),
        ("idempotency_key", "k" * 256),
        ("idempotency_key", "a\tb"),
        ("idempotency_key", 5),
    ],
)
@on_job_stages
async def test_an_option_that_makes_no_sense_is_refused_by_its_name(
    stages: JobStages, name: str, value: Any
) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    with pytest.raises(InvalidRequest) as caught:
        await stage.submit(echo, 1, **{name: value})
    assert caught.value.param == name
    assert await _stored(stage) == 0


@on_job_stages
async def test_what_was_asked_is_what_is_kept(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    handle = await stage.submit(
        echo,
        {"a": 1},
        priority=2,
        max_attempts=7,
        timeout_s=9,
        metadata={"who": "me"},
        hold=False,
        dedup_key="d",
    )
    job = await handle.job()
    assert (
        job.input,
        job.priority,
        job.max_attempts,
        job.timeout_s,
        job.metadata,
        job.hold,
        job.dedup_key,
    ) == (
        {"a": 1},
        2,
        7,
        9.0,
        {"who": "me"},
        False,
        "d",
    )
    assert (job.state, job.attempts, job.generation, job.result, job.history) == (
        JobState.PENDING,
        0,
        1,
        None,
        (),
    )
    assert repr(handle) == f"JobHandle('{job.id}')"


# ---- Idempotency keys -----------------------------------------------------------------------------------------


@on_job_stages
async def test_the_same_submission_under_a_key_is_the_same_job_whatever_became_of_it(
    stages: JobStages,
) -> None:
    stage = await stages.open(tasks=[echo])
    first = await stage.submit(echo, {"a": 1}, idempotency_key="k" * 255)
    again = await stage.submit(echo, {"a": 1}, idempotency_key="k" * 255)
    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert await first.result() == {"a": 1}
    after = await stage.submit(echo, {"a": 1}, idempotency_key="k" * 255)
    assert (after.id, await after.result()) == (first.id, {"a": 1})
    assert [event.created for event in stage.told(JobAccepted)] == [True, False, False]


@pytest.mark.parametrize(
    "change",
    [
        {"given": 2},
        {"priority": 1},
        {"model": "m"},
        {"max_attempts": 2},
        {"metadata": {}},
        {"webhook": "https://example.com/hook"},
        {"lane": "interactive"},
        {"run_at": 1.0},
    ],
)
@on_job_stages
async def test_another_submission_under_the_key_is_a_mismatch(
    stages: JobStages, change: dict[str, Any]
) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    first = await stage.submit(echo, 1, idempotency_key="k")
    with pytest.raises(KeyMismatch, match="'k' was used for a different request"):
        await stage.submit(echo, **{"given": 1, **change}, idempotency_key="k")
    assert (await first.job()).input == 1
    assert await _stored(stage) == 1


@on_job_stages
async def test_the_order_of_an_objects_keys_makes_no_other_request(stages: JobStages) -> None:
    """Nor that of a set, which differs from process to process."""
    stage = await stages.open(tasks=[echo], work=False)
    first = await stage.submit(echo, {"a": 1, "b": set(map(str, range(99)))}, idempotency_key="k")
    again = await stage.submit(echo, {"b": set(map(str, range(98, -1, -1))), "a": 1}, idempotency_key="k")
    assert again.id == first.id


@on_job_stages
async def test_the_largest_input_fits_under_a_key_too(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    assert (await stage.submit(echo, "x" * (4 * 1024 * 1024 - 2), idempotency_key="k")).created


@on_job_stages
async def test_a_key_belongs_to_its_tenant(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    one = await stage.submit(echo, 1, idempotency_key="k", tenant="one")
    two = await stage.submit(echo, 2, idempotency_key="k", tenant="two")
    assert one.id != two.id
    assert (one.created, two.created) == (True, True)


@on_job_stages
async def test_a_hundred_clicks_at_once_are_one_job(stages: JobStages) -> None:
    """On two gateways, in one transaction each."""
    desks = [await stages.open(tasks=[echo], work=False) for _ in range(2)]
    handles = await asyncio.gather(
        *(desks[number % 2].submit(echo, 1, idempotency_key="click") for number in range(100))
    )
    assert len({handle.id for handle in handles}) == 1
    assert sum(handle.created for handle in handles) == 1
    assert await _stored(desks[0]) == 1


@on_job_stages
async def test_a_key_is_remembered_for_72_hours(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False, jobs={"lease_s": HOUR_S})
    first = await stage.submit(echo, 1, idempotency_key="k")
    await asyncio.sleep(72 * HOUR_S - 1)
    assert (await stage.submit(echo, 1, idempotency_key="k")).id == first.id
    await asyncio.sleep(1)
    second = await stage.submit(echo, "another", idempotency_key="k")
    assert second.created


@on_job_stages
async def test_a_refused_submission_does_not_take_the_key(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    with pytest.raises(InvalidRequest):
        await stage.submit(echo, 1, priority=99, idempotency_key="k")
    assert (await stage.submit(echo, 1, idempotency_key="k")).created


# ---- Joining a job that is at work --------------------------------------------------------------------------


@on_job_stages
async def test_a_dedup_key_joins_a_job_that_waits_or_runs_and_no_other(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo, naps])
    waits = await stage.submit(naps, 20.0, dedup_key="d", run_at=stage.epoch + 10)
    assert (await stage.submit(naps, 99.0, dedup_key="d")).id == waits.id
    await asyncio.sleep(15)
    running = await stage.submit(naps, 1.0, dedup_key="d")
    assert ((await running.job()).state, running.id, running.created) == (JobState.RUNNING, waits.id, False)
    await running.wait()
    fresh = await stage.submit(naps, 1.0, dedup_key="d")
    assert fresh.created
    assert fresh.id != waits.id


@on_job_stages
async def test_a_dedup_key_belongs_to_its_task_and_tenant(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo, naps], work=False)
    handles = [
        await stage.submit(echo, 1, dedup_key="d"),
        await stage.submit(naps, 1.0, dedup_key="d"),
        await stage.submit(echo, 1, dedup_key="d", tenant="other"),
    ]
    assert len({handle.id for handle in handles}) == 3


@on_job_stages
async def test_fifty_submissions_with_one_dedup_key_run_once(stages: JobStages) -> None:
    desks = [await stages.open(tasks=[naps]) for _ in range(2)]
    handles = await asyncio.gather(
        *(desks[number % 2].submit(naps, 5.0, dedup_key="d") for number in range(50))
    )
    assert len({handle.id for handle in handles}) == 1
    assert sum(handle.created for handle in handles) == 1
    assert (await handles[0].wait()).attempts == 1


@on_job_stages
async def test_a_key_that_met_a_twin_stays_with_it(stages: JobStages) -> None:
    """The submission joined a job by its dedup key; asked again under its key it is led to the same one."""
    stage = await stages.open(tasks=[naps])
    first = await stage.submit(naps, 5.0, dedup_key="d")
    joined = await stage.submit(naps, 6.0, dedup_key="d", idempotency_key="k")
    await first.wait()
    again = await stage.submit(naps, 6.0, dedup_key="d", idempotency_key="k")
    assert {first.id, joined.id, again.id} == {first.id}


# ---- Many at once ---------------------------------------------------------------------------------------------


@on_job_stages
async def test_many_are_taken_in_order_or_not_at_all(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    many: list[Any] = [{"task": "echo", "input": number} for number in range(999)]
    handles = await stage.gateway.jobs.submit_many([*many, Submission(task="echo", input=999)])
    assert len({handle.id for handle in handles}) == 1000
    for wrong, says in (
        ({"task": "ecco"}, r"jobs\[3\]: no task is called 'ecco'; did you mean 'echo'"),
        ({"task": "echo", "priority": 99}, r"jobs\[3\]: priority must be"),
        ({"task": "echo", "model": "n"}, r"jobs\[3\]: .*'n'"),
        ({"task": "echo", "colour": "red"}, r"jobs\[3\]: .*colour"),
        ({"input": 1}, r"jobs\[3\]: .*task"),
        ({"task": "echo", "input": object()}, r"jobs\[3\]: the input must be JSON"),
        ({"task": "echo", "input": "x" * 5_000_000}, r"jobs\[3\]: the input has"),
        (5, r"jobs\[3\]"),
        (Submission(task="echo", max_attempts=0), r"jobs\[3\]: max_attempts"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            await stage.gateway.jobs.submit_many([*many[:3], wrong, *many[:3]])  # type: ignore[list-item]
    assert await _stored(stage) == 1000


@pytest.mark.parametrize("count", [0, 1001])
@on_job_stages
async def test_none_and_more_than_a_thousand_are_refused(stages: JobStages, count: int) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    with pytest.raises(InvalidRequest, match="submit 1 to 1,000 jobs at a time"):
        await stage.gateway.jobs.submit_many([{"task": "echo"}] * count)


@on_job_stages
async def test_jobs_of_one_submission_run_in_their_order(stages: JobStages) -> None:
    order: list[int] = []

    @headgate.task("ordered")
    async def ordered(ctx: Context, number: int) -> None:
        order.append(number)
        await asyncio.sleep(0.1)

    stage = await stages.open(tasks=[ordered], jobs={"workers": 1})
    handles = await stage.gateway.jobs.submit_many([{"task": "ordered", "input": n} for n in range(50)])
    for handle in handles:
        await handle.wait()
    assert order == list(range(50))


@on_job_stages
async def test_one_key_guards_the_whole_list(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    many = [{"task": "echo", "input": number} for number in range(5)]
    submit = stage.gateway.jobs.submit_many
    first = await submit(many, idempotency_key="k")
    again = await submit(many, idempotency_key="k")
    assert [handle.id for handle in first] == [handle.id for handle in again]
    assert [handle.created for handle in again] == [False] * 5
    for other in (many[:3], [*many, many[0]], many[::-1], [{"task": "echo", "input": 99}]):
        with pytest.raises(KeyMismatch):
            await submit(other, idempotency_key="k")
    assert await _stored(stage) == 5


@on_job_stages
async def test_a_list_under_a_key_may_be_as_large_as_one_without(stages: JobStages) -> None:
    """10 MB in a thousand jobs: each fits, and their fingerprint is taken once."""
    stage = await stages.open(tasks=[echo], work=False)
    many = [{"task": "echo", "input": "x" * 10_000} for _ in range(1000)]
    handles = await stage.gateway.jobs.submit_many(many, idempotency_key="k")
    assert len({handle.id for handle in handles}) == 1000


@on_job_stages
async def test_an_error_in_a_list_names_its_index_under_a_key_too(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    with pytest.raises(InvalidRequest, match=r"jobs\[1\]: the input must be JSON"):
        await stage.gateway.jobs.submit_many(
            [{"task": "echo"}, {"task": "echo", "input": object()}], idempotency_key="k"
        )


@on_job_stages
async def test_a_list_may_name_one_dedup_key_twice(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    twins = [{"task": "echo", "input": number, "dedup_key": "d"} for number in range(3)]
    handles = await stage.gateway.jobs.submit_many(twins)
    assert len({handle.id for handle in handles}) == 1
    assert [handle.created for handle in handles] == [True, False, False]


# ---- Room -------------------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_full_backlog_refuses_and_says_when_to_come_back(stages: JobStages) -> None:
    stage = await stages.open(tasks=[naps], work=False, jobs={"max_pending": 10})
    for _ in range(10):
        await stage.submit(naps, 1.0)
    with pytest.raises(BacklogFull, match="11 jobs would wait; the most is 10") as caught:
        await stage.submit(naps, 1.0)
    assert caught.value.retry_after_s == 30
    assert caught.value.code == "queue_full"
    with pytest.raises(BacklogFull):
        await stage.gateway.jobs.submit_many([{"task": "naps", "input": 1.0}] * 2)
    assert await _stored(stage) == 10
    await stage.gateway.work()
    await asyncio.sleep(5)
    assert (await stage.ended(naps, 1.0)).state is JobState.COMPLETED, (
        "once they are done there is room again"
    )


@on_job_stages
async def test_a_repeat_of_a_keyed_submission_needs_no_room(stages: JobStages) -> None:
    """Its job is there already: who asks again after a lost answer must find it, full or not."""
    stage = await stages.open(tasks=[naps], work=False, jobs={"max_pending": 3})
    jobs = stage.gateway.jobs
    one = await stage.submit(naps, 1.0, idempotency_key="one")
    two = await jobs.submit_many([{"task": "naps", "input": 1.0}] * 2, idempotency_key="two")
    again = await stage.submit(naps, 1.0, idempotency_key="one")
    assert (again.id, again.created) == (one.id, False)
    both = await jobs.submit_many([{"task": "naps", "input": 1.0}] * 2, idempotency_key="two")
    assert [handle.id for handle in both] == [handle.id for handle in two]
    with pytest.raises(KeyMismatch):
        await stage.submit(naps, 2.0, idempotency_key="one")
    with pytest.raises(BacklogFull):
        await stage.submit(naps, 1.0, idempotency_key="new")
    with pytest.raises(BacklogFull):
        await stage.submit(naps, 1.0)
    assert await _stored(stage) == 3


@on_job_stages
async def test_one_tenant_cannot_fill_the_backlog_of_the_others(stages: JobStages) -> None:
    stage = await stages.open(
        tasks=[naps], work=False, jobs={"max_pending": 100, "max_pending_per_tenant": 5}
    )
    for _ in range(5):
        await stage.submit(naps, 1.0, tenant="greedy")
    with pytest.raises(BacklogFull, match="jobs of tenant 'greedy'"):
        await stage.submit(naps, 1.0, tenant="greedy")
    assert (await stage.submit(naps, 1.0, tenant="modest")).created


@on_job_stages
async def test_many_at_once_cannot_slip_past_the_bound(stages: JobStages) -> None:
    stage = await stages.open(tasks=[naps], work=False, jobs={"max_pending": 10})
    results = await asyncio.gather(*(stage.submit(naps, 1.0) for _ in range(100)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, BacklogFull)]
    # Who is let in while the store is asked may be counted twice for a moment: that refuses too many, never too few.
    assert len(refused) >= 90
    assert await _stored(stage) == 100 - len(refused)


@on_job_stages
async def test_running_jobs_take_no_room(stages: JobStages) -> None:
    stage = await stages.open(tasks=[naps], jobs={"max_pending": 5, "workers": 5})
    for _ in range(3):
        for _ in range(5):
            await stage.submit(naps, 100.0)
        await asyncio.sleep(2)
        if (await stage.gateway.jobs.count(tenant=None))["pending"] == 5:
            break
    assert (await stage.gateway.jobs.count(tenant=None))["running"] == 5
    with pytest.raises(BacklogFull):
        await stage.submit(naps, 1.0)


# ---- Who hears of it ---------------------------------------------------------------------------------------------


@on_job_stages
async def test_every_acceptance_is_told(stages: JobStages) -> None:
    stage = await stages.open(tasks=[echo], work=False)
    one = await stage.submit(echo, 1, model="m", tenant="t")
    (two,) = await stage.gateway.jobs.submit_many([{"task": "echo"}])
    told = stage.told(JobAccepted)
    assert [(event.job_id, event.task, event.model, event.tenant, event.created) for event in told] == [
        (one.id, "echo", "m", "t", True),
        (two.id, "echo", None, "local", True),
    ]


# ---- What JSON cannot say -------------------------------------------------------------------------------------


class Reading(msgspec.Struct):
    degrees: float
    raw: msgspec.Raw = msgspec.Raw(b"null")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@on_job_stages
async def test_a_number_that_json_cannot_hold_is_refused_by_its_place(
    stages: JobStages, number: float
) -> None:
    """It would become null, and nobody would ever know."""
    stage = await stages.open(tasks=[echo], work=False)
    for given, place in [
        (number, "the input"),
        ({"a": [None, {"b": number}]}, r"the input\.a\[1\]\.b"),
        ([Reading(1.0), Reading(number)], r"the input\[1\]\.degrees"),
    ]:
        with pytest.raises(InvalidRequest, match=f"{place} is {number}, which JSON has no number for"):
            await stage.submit(echo, given)
    with pytest.raises(InvalidRequest, match=r"metadata\.x is"):
        await stage.submit(echo, 1, metadata={"x": number})
    assert await _stored(stage) == 0
    await stage.submit(echo, [None, "null", Reading(1.0), {"a": None}])
