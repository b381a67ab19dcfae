"""What a task returns or raises, and what becomes of its job: the state, the attempts, the words people read."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import msgspec
import pytest
from jobstage import JobStage, JobStages, on_job_stages

import headgate
from headgate import Context, Failure, FailureKind, JobState, Reject, RetryLater, Skip
from headgate.core import errors
from headgate.core.events import JobSettled
from headgate.core.failures import CLOSED

HAPPENS: list[Callable[[], Any]] = []
"""What the task does at its attempts, one after the other; the last one over and over."""


@headgate.task("acts")
async def acts(ctx: Context, given: Any) -> Any:
    return HAPPENS[min(ctx.job.attempt, len(HAPPENS)) - 1]()


def _raise(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


async def _stage(stages: JobStages, *happens: Callable[[], Any], **settings: Any) -> JobStage:
    HAPPENS[:] = happens
    return await stages.open(tasks=[acts], **settings)


class Money(msgspec.Struct):
    amount: int
    of: str = "EUR"


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (None, None),
        (0, 0),
        ("", ""),
        ({"a": [1, 2.5, None, True]}, {"a": [1, 2.5, None, True]}),
        (Money(5), {"amount": 5, "of": "EUR"}),
        (datetime.fromisoformat("2026-02-03T04:05:06+00:00"), "2026-02-03T04:05:06Z"),
        ("nul \0 and ünïcode \u2028", "nul \0 and ünïcode \u2028"),
    ],
)
@on_job_stages
async def test_what_a_task_returns_is_the_result_as_json(stages: JobStages, value: Any, result: Any) -> None:
    stage = await _stage(stages, lambda: value)
    job = await stage.ended("acts")
    assert (job.state, job.attempts, job.result, job.error, job.reason) == (
        JobState.COMPLETED,
        1,
        result,
        None,
        None,
    )
    assert [entry.outcome for entry in job.history] == ["completed"]


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize(
    ("said", "state", "reason", "attempts"),
    [
        (Skip("nothing to do"), JobState.SKIPPED, "nothing to do", 1),
        (Reject("never works"), JobState.DEAD_LETTER, "permanent", 1),
    ],
)
@on_job_stages
async def test_skip_and_reject_end_a_job_raised_or_returned(
    stages: JobStages, how: str, said: Exception, state: JobState, reason: str, attempts: int
) -> None:
    stage = await _stage(stages, _raise(said) if how == "raised" else lambda: said)
    job = await stage.ended("acts", max_attempts=5)
    assert (job.state, job.reason, job.attempts, job.result) == (state, reason, attempts, None)
    if isinstance(said, Reject):
        assert (job.error, job.error_class) == ("rejected: never works", "rejected")


@pytest.mark.parametrize("how", ["raised", "returned"])
@on_job_stages
async def test_retry_later_costs_no_attempt_and_waits_as_long_as_it_says(stages: JobStages, how: str) -> None:
    """As often as it likes: more often than the job has attempts."""
    seen: list[float] = []

    def later() -> Any:
        seen.append(stages.now)
        if len(seen) == 8:
            return "done"
        if how == "raised":
            raise RetryLater(7.0, "the file is not there yet")
        return RetryLater(7.0)

    stage = await _stage(stages, later)
    job = await stage.ended("acts", max_attempts=1)
    assert (job.state, job.attempts, job.deferrals) == (JobState.COMPLETED, 1, 7)
    assert seen == pytest.approx([7.0 * number for number in range(8)], abs=0.01)
    assert len(job.history) == 1, "deferrals are counted, not told"


@on_job_stages
async def test_the_reason_of_a_deferral_is_told_while_it_waits(stages: JobStages) -> None:
    stage = await _stage(stages, _raise(RetryLater(60, "the file is not there yet")))
    handle = await stage.submit("acts")
    await asyncio.sleep(1)
    job = await handle.job()
    assert (job.state, job.attempts, job.error, job.error_class) == (
        JobState.PENDING,
        0,
        "the file is not there yet",
        "deferred",
    )


@pytest.mark.parametrize("seconds", [float("inf"), 1e300])
@on_job_stages
async def test_a_wait_without_end_ends_with_the_job_itself(stages: JobStages, seconds: float) -> None:
    stage = await _stage(stages, _raise(RetryLater(seconds)))
    job = await stage.ended("acts", expires_after_s=100)
    assert (job.state, job.reason, job.attempts) == (JobState.DEAD_LETTER, "expired", 0)
    assert 100 <= stage.now <= 106, "the duty looks every 5 s or so"


@pytest.mark.parametrize(
    "said",
    [
        Skip(5),  # type: ignore[arg-type]
        Reject(None),  # type: ignore[arg-type]
        RetryLater(1, object()),  # type: ignore[arg-type]
        Skip("a\0b\ud800"),
        Reject("x" * 100_000),
    ],
)
@on_job_stages
async def test_a_reason_of_any_kind_is_written_down(stages: JobStages, said: Exception) -> None:
    """A reason that could not be stored left its job running for ever."""
    stage = await _stage(stages, _raise(said), lambda: "done")
    handle = await stage.submit("acts")
    await asyncio.sleep(2)
    job = await handle.job()
    assert job.state is not JobState.RUNNING
    assert len(job.error or job.reason or "") <= 2000


# ---- Results that cannot be kept --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "the result must be JSON"),
        ({1: {2}, "b": object()}, "the result must be JSON"),
        ("\ud800", "the result must be JSON"),
        ({"score": [0.5, float("nan")]}, "the result.score[1] is nan, which JSON has no number for"),
        ("x" * (4 * 1024 * 1024), "the result has 4,194,306 bytes; the most is 4,194,304"),
    ],
)
@on_job_stages
async def test_a_result_that_cannot_be_kept_is_permanent_and_says_why(
    stages: JobStages, value: Any, says: str
) -> None:
    """The call behind it was paid: doing it four more times would be paid again and end the same."""
    stage = await _stage(stages, lambda: value)
    job = await stage.ended("acts", max_attempts=5)
    assert (job.state, job.reason, job.attempts) == (JobState.DEAD_LETTER, "permanent", 1)
    assert says in str(job.error)


@on_job_stages
async def test_a_result_of_just_four_mebibytes_is_kept(stages: JobStages) -> None:
    text = "x" * (4 * 1024 * 1024 - 2)
    stage = await _stage(stages, lambda: text)
    assert (await stage.ended("acts")).result == text


# ---- Errors of our own ----------------------------------------------------------------------------------------


def _failure(kind: FailureKind, **more: Any) -> Failure:
    return Failure(kind=kind, message="words", **more)


def _late(*, attempts: int) -> errors.DeadlineExceeded:
    """A deadline that passed after so many calls; without any the job only waited for its turn."""
    error = errors.DeadlineExceeded("x")
    error.attempts = attempts
    return error


TRANSIENT = _failure(FailureKind.TRANSIENT, status=503)
COUNTED: list[tuple[Exception, str]] = [
    (errors.UpstreamUnavailable("x", failure=TRANSIENT, attempts=1), "transient"),
    (errors.StreamCut("x", failure=TRANSIENT, attempts=1), "transient"),
    (
        errors.OutputInvalid("x", failure=_failure(FailureKind.INVALID_OUTPUT), attempts=3),
        "invalid_output",
    ),
    (errors.UpstreamBroken("x", failure=_failure(FailureKind.BROKEN), attempts=1), "broken"),
    (_late(attempts=1), "transient"),
    (errors.CheckBroken("x"), "broken"),
    (errors.SettingsError("x"), "broken"),
    (errors.HeadgateError("x"), "broken"),
    (ValueError("x"), "broken"),
    (KeyError("x"), "broken"),
    (TimeoutError(), "transient"),
    (ConnectionResetError("x"), "transient"),
    (httpx.ConnectTimeout("x"), "transient"),
    (ExceptionGroup("several", [ValueError("x"), OSError("y")]), "broken"),
    (StopAsyncIteration(), "broken"),
    (RecursionError("x"), "broken"),
    (MemoryError(), "broken"),
]


@pytest.mark.parametrize(("error", "kind"), COUNTED, ids=[type(error).__name__ for error, _ in COUNTED])
@on_job_stages
async def test_a_failure_counts_an_attempt_and_is_tried_again_after_the_policys_wait(
    stages: JobStages, error: Exception, kind: str
) -> None:
    seen: list[float] = []

    def act() -> Any:
        seen.append(stages.now)
        raise error

    stage = await _stage(stages, act)
    job = await stage.ended("acts", max_attempts=3)
    assert (job.state, job.reason, job.attempts, job.error_class) == (
        JobState.DEAD_LETTER,
        "exhausted",
        3,
        kind,
    )
    assert seen == pytest.approx([0.0, 5.0, 15.0], abs=0.01)
    assert [(entry.outcome, entry.attempt, entry.kind) for entry in job.history] == [
        ("failed", number, kind) for number in (1, 2, 3)
    ]
    assert job.deferrals == 0


PERMANENT: list[Exception] = [
    errors.InvalidRequest("x"),
    errors.UnknownModel("x"),
    errors.PayloadTooLarge("x"),
    errors.KeyMismatch("k"),
    errors.UnknownJob("j"),
    errors.StateConflict("x"),
    errors.RecordExists("c", "k", "r"),
    errors.RequestRejected("x", failure=_failure(FailureKind.REJECTED, status=400), attempts=1),
    httpx.HTTPStatusError("x", request=httpx.Request("GET", "http://h"), response=httpx.Response(404)),
]


@pytest.mark.parametrize("error", PERMANENT, ids=[type(error).__name__ for error in PERMANENT])
@on_job_stages
async def test_a_wrong_request_is_permanent_at_once(stages: JobStages, error: Exception) -> None:
    stage = await _stage(stages, _raise(error))
    job = await stage.ended("acts", max_attempts=5)
    assert (job.state, job.reason, job.attempts, job.error_class) == (
        JobState.DEAD_LETTER,
        "permanent",
        1,
        "rejected",
    )
    assert stage.now < 1


UNCOUNTED: list[tuple[Exception, float]] = [
    (errors.QueueFull("x", retry_after_s=12), 12),
    (errors.DeadlineUnreachable("x", retry_after_s=12), 12),
    (errors.UpstreamThrottled("x", retry_after_s=33), 33),
    (errors.RetryBudgetSpent("x", retry_after_s=10), 10),
    (errors.BacklogFull("x", retry_after_s=30), 30),
    (errors.KeyInProgress("x", retry_after_s=1), 1),
    (errors.StoreUnavailable("x"), 5),
    (errors.Draining("x", retry_after_s=5), 0),
    (errors.Preempted("x"), 0),
    (_late(attempts=0), 5),
    (
        errors.UpstreamMisconfigured("x", failure=_failure(FailureKind.MISCONFIGURED), attempts=1),
        30,
    ),
    (errors.UpstreamUnavailable("x", failure=_failure(FailureKind.TRANSIENT, code=CLOSED)), 1),
    (
        httpx.HTTPStatusError(
            "x",
            request=httpx.Request("GET", "http://h"),
            response=httpx.Response(429, headers={"retry-after": "17"}),
        ),
        17,
    ),
]


@pytest.mark.parametrize(("error", "wait_s"), UNCOUNTED, ids=[type(error).__name__ for error, _ in UNCOUNTED])
@on_job_stages
async def test_what_is_not_the_jobs_fault_costs_no_attempt(
    stages: JobStages, error: Exception, wait_s: float
) -> None:
    """Three times, with one attempt to its name: it still completes."""
    seen: list[float] = []

    def act() -> Any:
        seen.append(stages.now)
        if len(seen) < 4:
            raise error
        return "done"

    stage = await _stage(stages, act)
    job = await stage.ended("acts", max_attempts=1)
    assert (job.state, job.attempts, job.deferrals) == (JobState.COMPLETED, 1, 3)
    assert seen == pytest.approx([wait_s * number for number in range(4)], abs=0.01)


@on_job_stages
async def test_a_misconfigured_upstream_is_permanent_for_those_who_do_not_hold(stages: JobStages) -> None:
    error = errors.UpstreamMisconfigured("x", failure=_failure(FailureKind.MISCONFIGURED), attempts=1)
    stage = await _stage(stages, _raise(error))
    job = await stage.ended("acts", hold=False)
    assert (job.reason, job.attempts, job.error_class) == ("permanent", 1, "misconfigured")


@on_job_stages
async def test_a_retry_after_of_the_provider_is_a_floor_for_the_next_attempt(stages: JobStages) -> None:
    failure = _failure(FailureKind.TRANSIENT, status=503, retry_after_s=100)
    error = errors.UpstreamUnavailable("x", failure=failure, attempts=1)
    stage = await _stage(stages, _raise(error), lambda: "done")
    await stage.ended("acts")
    assert stage.now == pytest.approx(100, abs=0.01)


# ---- Errors that fight back -----------------------------------------------------------------------------------


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Abort(BaseException):
    """What some libraries raise to get past `except Exception`."""


@pytest.mark.parametrize(
    "error",
    [
        Wordless(),
        Abort("x"),
        BaseExceptionGroup("g", [Abort("x")]),
        asyncio.CancelledError(),
        ValueError("half a character: \ud800, a NUL: \0, and " + "very long " * 1000),
    ],
    ids=["wordless", "base", "group", "cancelled", "odd words"],
)
@on_job_stages
async def test_no_exception_leaves_a_job_running_or_takes_a_workers_place(
    stages: JobStages, error: BaseException
) -> None:
    """An error that cannot be told used to leave its job running and its place taken until the process ended."""
    stage = await _stage(stages, _raise(error), lambda: "done", jobs={"workers": 1})
    job = await stage.ended("acts")
    assert (job.state, job.attempts) == (JobState.COMPLETED, 2)
    failed = job.history[0]
    assert (failed.outcome, failed.kind) == ("failed", "broken")
    assert 0 < len(failed.message) <= 2000


@on_job_stages
async def test_a_task_that_cancels_itself_has_failed(stages: JobStages) -> None:
    def suicide() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()

    @headgate.task("quits")
    async def quits(ctx: Context, given: Any) -> None:
        suicide()
        await asyncio.sleep(10)

    stage = await stages.open(tasks=[quits], jobs={"workers": 1})
    job = await stage.ended("quits", max_attempts=1)
    assert (job.reason, job.error) == ("exhausted", "broken: the task was cancelled from inside")
    assert (await stage.ended("quits", max_attempts=1)).reason == "exhausted", "its worker lives"


# ---- How many, how long -------------------------------------------------------------------------------------


@on_job_stages
async def test_a_tasks_own_policy_goes_over_the_settings(stages: JobStages) -> None:
    seen: list[float] = []

    @headgate.task("own", retry=headgate.RetryPolicy(max_attempts=4, first_wait_s=1, factor=3, jitter="none"))  # type: ignore[arg-type]
    async def own(ctx: Context, given: Any) -> None:
        seen.append(stages.now)
        raise ValueError("again")

    stage = await stages.open(tasks=[own])
    job = await stage.ended(own)
    assert (job.max_attempts, job.attempts) == (4, 4)
    assert seen == pytest.approx([0, 1, 4, 13], abs=0.01)


class Broken(headgate.RetryPolicy):
    def backoff_s(self, attempt: int, chance: float) -> float:
        raise ZeroDivisionError


@on_job_stages
async def test_a_policy_that_breaks_leaves_no_job_behind(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy may be the user's own: the job waits by the usual one, and the mistake is in the log."""
    broken = headgate.task("broken", retry=Broken(max_attempts=2))(acts.run)
    HAPPENS[:] = [_raise(ValueError("x"))]
    stage = await stages.open(tasks=[broken])
    job = await stage.ended(broken)
    assert (job.reason, job.attempts) == ("exhausted", 2)
    assert "the retry policy of task broken raised" in caplog.text


@on_job_stages
async def test_waits_never_reach_past_the_time_the_job_was_given(stages: JobStages) -> None:
    """Two attempts within 12 s; the third would begin after its end."""
    stage = await _stage(stages, _raise(ValueError("again")))
    job = await stage.ended("acts", expires_after_s=12, max_attempts=9)
    assert (job.reason, job.attempts) == ("expired", 2)
    assert stage.now <= 18


@on_job_stages
async def test_every_settlement_is_told_once_with_its_times(stages: JobStages) -> None:
    @headgate.task("slow")
    async def slow(ctx: Context, given: Any) -> None:
        await asyncio.sleep(2)
        if ctx.job.attempt == 1:
            raise ValueError("again")

    stage = await stages.open(tasks=[slow])
    job = await (await stage.submit(slow, tenant="t1")).wait()
    told = stage.told(JobSettled)
    assert [(one.state, one.attempts, one.failure, one.reason) for one in told] == [
        ("pending", 1, "broken", None),
        ("completed", 2, None, None),
    ]
    assert [one.run_ms for one in told] == pytest.approx([2000, 2000], abs=1)
    assert [one.wait_ms for one in told] == pytest.approx([0, 0], abs=1)
    assert {(one.job_id, one.task, one.tenant, one.model) for one in told} == {(job.id, "slow", "t1", None)}
