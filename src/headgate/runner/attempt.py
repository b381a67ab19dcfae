"""One attempt at one job: from the claim to what came of it. Never raises; whoever stops it says why."""

import asyncio
import enum
import logging
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from headgate.core.errors import ProviderFailure, StoreUnavailable, UnknownModel
from headgate.core.failures import Failure, FailureKind
from headgate.core.job import Claim
from headgate.core.job_rules import Cancelled, Completed, Deferred, Expired, Failed, Outcome, Skipped
from headgate.core.ports.calls import Calls
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store
from headgate.machine.context import ACCESS_KEY, JOB_ID
from headgate.runner.context import Context
from headgate.runner.key_meters import KeyMeters
from headgate.runner.outcomes import ClaimLost, Reject, RetryLater, Skip, read_error
from headgate.runner.payloads import encode
from headgate.runner.tasks import Task, TaskTable

logger = logging.getLogger("headgate")
LONGEST_STORY_CHARS = 4000
LEAST_UNKNOWN_S = 1.0
LONGEST_UNKNOWN_S = 10.0
"""How long a job waits whose task this node does not know: at first a moment, for another node that does; then
longer each time, so that a backlog nobody knows does not keep the store busy."""
UNKNOWN_MODEL_S = 30.0
GIVES_WAY_FOR_S = 60.0
"""How long after it passed on a job a worker still lets others go first."""


class Stop(enum.Enum):
    """Why a running attempt was stopped from outside."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LOST = "lost"


class Attempt:
    """A claim in the hands of a worker."""

    __slots__ = ("claim", "context", "over", "started", "stopped", "task", "timer")

    def __init__(self, claim: Claim, started: float) -> None:
        self.claim = claim
        self.started = started
        self.task: asyncio.Task[None] | None = None
        self.context: Context | None = None
        self.stopped: Stop | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.over = False
        """What came of it is known and being written: nothing stops it any more."""

    def stop(self, why: Stop) -> bool:
        """Cancel the task, once; the first reason counts."""
        if self.over or self.stopped is not None or self.task is None or self.task.done():
            return False
        self.stopped = why
        # Not before its first step: a task that is cancelled then never runs, and nobody would settle the job.
        self.task.get_loop().call_soon(self.task.cancel)
        return True

    def finish(self) -> None:
        self.over = True
        if self.context is not None:
            self.context.close()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Attempts:
    """Runs attempts: finds the task, gives it its context, reads what it returns or raises."""

    def __init__(
        self,
        tasks: TaskTable,
        store: Store,
        calls: Calls,
        meters: KeyMeters,
        *,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._calls = calls
        self._meters = meters
        self._clock = clock
        self._new_id = new_id
        self._blamed: set[str] = set()
        self._passed_on: dict[str, float] = {}
        """By model, when a job was last passed on."""

    def gives_way(self, models: Iterable[str]) -> bool:
        """Whether jobs of these models were passed on lately: then others, who may know them all, go first."""
        if not self._passed_on:
            return False
        since = self._clock.now() - GIVES_WAY_FOR_S
        return any(self._passed_on.get(model, since) > since for model in models)

    async def run(self, attempt: Attempt) -> Outcome | None:
        """What came of it; None when the claim is somebody else's by now."""
        before = JOB_ID.set(attempt.claim.id)
        ACCESS_KEY.set(attempt.claim.access_key)
        try:
            return await self._begin(attempt)
        except asyncio.CancelledError:
            return self._read_cancellation(attempt)
        except ClaimLost:
            return None
        except BaseException as error:  # noqa: BLE001 - see below
            # A task is anybody's code: `sys.exit()` in it ends that job, not the worker and the jobs beside it.
            return self._read_error(error, attempt)
        finally:
            JOB_ID.reset(before)

    async def _begin(self, attempt: Attempt) -> Outcome:
        claim = attempt.claim
        task = self._tasks.get(claim.task)
        if task is None:
            return self._pass_on(claim)
        if not self._has_model(claim):
            return Deferred(UNKNOWN_MODEL_S, f"no model is called {claim.model!r} here")
        if claim.started_at >= claim.expires_at:
            return await self._expired(claim)
        return await self._run(task, attempt)

    def _read_cancellation(self, attempt: Attempt) -> Outcome | None:
        """The job is settled before the task ends, so its own cancellation must not reach that."""
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            current.uncancel()
        return read_stop(attempt)

    def _pass_on(self, claim: Claim) -> Outcome:
        """Somebody else may know its task. Claims go by model, not by task: a line per task would cost everybody."""
        self._passed_on[claim.model] = self._clock.now()
        if claim.task not in self._blamed:
            self._blamed.add(claim.task)
            logger.warning(
                "jobs of task %r wait: this worker does not know it; start it with headgate work --tasks"
                " package.module, or hand the task to headgate.open(tasks=[…])",
                claim.task,
            )
        wait_s = min(LONGEST_UNKNOWN_S, LEAST_UNKNOWN_S * 2.0 ** min(claim.deferrals, 10))
        return Deferred(wait_s, f"no task is called {claim.task!r} here")

    async def _expired(self, claim: Claim) -> Outcome:
        """People look for what went wrong: its last failure is told with it."""
        why = "its time was up before it could start"
        try:
            job = await self._store.find(claim.id)
        except StoreUnavailable:
            job = None  # It ends without; its history tells.
        if job is None or job.error is None:
            return Expired(why)
        return Expired(f"{why}; last failure: {job.error}", job.error_class or "expired")

    def _has_model(self, claim: Claim) -> bool:
        """Only a suspect can get here without its model: those are claimed whatever they need."""
        try:
            if claim.model:
                self._calls.check_model(claim.model)
        except UnknownModel:
            return False
        return True

    async def _run(self, task: Task[Any, Any], attempt: Attempt) -> Outcome:
        claim = attempt.claim
        deadline = self._clock.now() + claim.timeout_s
        meter = None if claim.access_key is None else await self._meters.find(claim.access_key)
        llm = self._calls.llm(claim, deadline=deadline, new_id=self._new_id, meter=meter)
        context = attempt.context = Context(claim, llm, self._store, self._clock)
        try:
            return _read_value(await task.run(context, task.read(claim.input)), context)
        except Skip as skip:
            return Skipped(skip.reason, tuple(context.saved))
        finally:
            llm.close()

    def _read_error(self, error: BaseException, attempt: Attempt) -> Outcome | None:
        if attempt.stopped is not None and not isinstance(error, Reject | RetryLater):
            # It was told to stop, and its clean-up raised something else than it was given.
            return read_stop(attempt)
        try:
            if isinstance(error, Exception):
                outcome = read_error(error, attempt.claim, self._clock)
                failed = error if isinstance(error, ProviderFailure) else error.__cause__
                if isinstance(failed, ProviderFailure) and failed.own is not None:
                    # The job is its tenant's to read: addresses are here only.
                    logger.info("job %s failed: %s", attempt.claim.id, failed.own)
                if isinstance(outcome, Failed) and outcome.failure.kind is FailureKind.BROKEN:
                    # Most likely a mistake in the task: whoever mends it needs the line.
                    logger.warning(
                        "job %s (%s) raised\n%s", attempt.claim.id, attempt.claim.task, _story(error)
                    )
                return outcome
        except Exception:
            logger.exception("what job %s raised cannot be read", attempt.claim.id)
        logger.warning("job %s (%s) raised %r", attempt.claim.id, attempt.claim.task, type(error).__name__)
        message = "the task raised what is no error, or an error without words"
        return Failed(Failure(kind=FailureKind.BROKEN, message=message, code=type(error).__name__))


def _story(error: Exception) -> str:
    """Where it was raised, in characters that every log can hold."""
    lines = [*traceback.format_tb(error.__traceback__), *traceback.format_exception_only(error)]
    told = "".join(lines)[-LONGEST_STORY_CHARS:]
    return told.encode("utf-8", "backslashreplace").decode().rstrip()


def _read_value(value: object, context: Context) -> Outcome:
    if isinstance(value, Skip):
        return Skipped(value.reason, tuple(context.saved))
    if isinstance(value, Reject | RetryLater):
        raise value
    result = encode(value, what="the result")
    return Completed(result, context.llm.upstream, records=tuple(context.saved))


def read_stop(attempt: Attempt) -> Outcome | None:
    """What it means for the job that its attempt was stopped."""
    match attempt.stopped:
        case Stop.TIMEOUT:
            message = f"it ran longer than its {attempt.claim.timeout_s:g} s"
            return Failed(
                Failure(kind=FailureKind.TRANSIENT, message=message, code="timeout", timed_out=True)
            )
        case Stop.CANCEL:
            return Cancelled()
        case Stop.SHUTDOWN:
            return Deferred(0.0, "its worker was shutting down")
        case Stop.LOST:
            return None
        case None:
            # The task cancelled itself, or somebody inside it did.
            return Failed(Failure(kind=FailureKind.BROKEN, message="the task was cancelled from inside"))
