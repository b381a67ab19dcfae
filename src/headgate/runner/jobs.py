"""Jobs, as their users see them: submit, wait, look, cancel."""

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from headgate.core import events
from headgate.core.batch_order import BATCH_TASK, batch_id_of
from headgate.core.call import check_text
from headgate.core.errors import InvalidRequest, JobFailed, StateConflict, UnknownJob
from headgate.core.job import Job, JobState, Submitted
from headgate.core.ports.clock import Clock
from headgate.core.ports.jobs import JobFilter
from headgate.core.record import RecordWrite
from headgate.runner.durable import Durable
from headgate.runner.submission import ENDPOINT, Submission, read_submission
from headgate.runner.submitting import Submitting
from headgate.runner.tasks import Task

MOST_LISTED: Final = 1000
_ID: Final = re.compile(r"job_[0-9a-f]{12}[0-9A-Za-z_-]*")
"""It begins with its time, so that pages can go on after one whose job is gone."""


class JobHandle:
    """A job that was accepted. It will end, whether or not anybody waits."""

    def __init__(
        self,
        jobs: "Jobs",
        job_id: str,
        tenant: str,
        *,
        created: bool = True,
        submitted: Submitted | None = None,
    ) -> None:
        self.id = job_id
        self.created = created
        """False when an idempotency key or a dedup key led to a job that was there already."""
        self._submitted = submitted
        self._jobs = jobs
        self._tenant = tenant

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    async def job(self) -> Job:
        """The job as it is now."""
        return await self._jobs.get(self.id, tenant=self._tenant)

    async def accepted(self) -> Job:
        """The job as it was accepted; one that was there already, as it is now."""
        record = None if self._submitted is None else self._submitted.record()
        return await self.job() if record is None else record

    async def wait(self, timeout: float | None = None) -> Job:  # noqa: ASYNC109 - it is the caller's patience
        """The job once it has ended; `TimeoutError` when it has not within `timeout` seconds."""
        return await self._jobs.wait(self.id, timeout=timeout, tenant=self._tenant)

    async def result(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - as above
        """What the task returned (None when it was skipped); `JobFailed` when it has no result."""
        job = await self.wait(timeout)
        if job.state in {JobState.DEAD_LETTER, JobState.CANCELLED}:
            raise JobFailed(job)
        return job.result

    async def cancel(self) -> JobState:
        return await self._jobs.cancel(self.id, tenant=self._tenant)


class Jobs:
    """`gateway.jobs`."""

    def __init__(self, durable: Durable, clock: Clock, emit: Callable[[events.Event], None]) -> None:
        self._durable = durable
        self._clock = clock
        self._submitting = Submitting(durable, clock, emit)

    async def submit(
        self,
        task: "str | Task[Any, Any]",
        input: Any = None,  # noqa: A002 - its name wherever jobs are spoken of
        *,
        model: str | None = None,
        lane: str = "batch",
        priority: int = 5,
        max_attempts: int | None = None,
        run_at: datetime | float | None = None,
        expires_after_s: float | None = None,
        timeout_s: float | None = None,
        dedup_key: str | None = None,
        hold: bool = True,
        webhook: str | None = None,
        metadata: dict[str, Any] | None = None,
        unkeyed_metadata: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
        endpoint: str = ENDPOINT,
        records: Sequence[RecordWrite] = (),
        tenant: str = "local",
    ) -> JobHandle:
        """Accept a job: when this returns, it is durable and will end. `records` are written with it.

        With an `idempotency_key` the same submission gives the same job for 72 hours, and another one raises
        `KeyMismatch`; only `unkeyed_metadata` may differ. A key belongs to its `endpoint`: an application names its own
        route. A `dedup_key` joins a job of the same task that is still waiting or running.
        """
        asked = Submission(
            task=task.name if isinstance(task, Task) else task,
            input=input,
            model=model,
            lane=lane,
            priority=priority,
            max_attempts=max_attempts,
            run_at=run_at,
            expires_after_s=expires_after_s,
            timeout_s=timeout_s,
            dedup_key=dedup_key,
            hold=hold,
            webhook=webhook,
            metadata=metadata,
        )
        key, more = idempotency_key, unkeyed_metadata
        accepted = await self._submitting.one(
            asked, more, tenant=tenant, idempotency_key=key, endpoint=endpoint, records=records
        )
        return self._handle(accepted, tenant)

    async def submit_many(
        self,
        submissions: Sequence[Submission | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        tenant: str = "local",
    ) -> Sequence[JobHandle]:
        """Accept up to 1,000 jobs, all or none; an error names the index of the one that is wrong."""
        asked = [read_submission(index, one) for index, one in enumerate(submissions)]
        accepted = await self._submitting.many(asked, tenant=tenant, idempotency_key=idempotency_key)
        return [self._handle(one, tenant) for one in accepted]

    async def submit_inside(
        self,
        asked: Sequence[Submission],
        *,
        tenant: str,
        idempotency_key: str | None = None,
        endpoint: str = ENDPOINT,
        records: Sequence[RecordWrite] = (),
        batch_id: str | None = None,
        revivable: bool = True,
        inside: bool = True,
        bounded: bool = True,
    ) -> Sequence[JobHandle]:
        """As `submit_many`, for headgate's own rooms: tasks that cannot be submitted by name, jobs of a batch.

        A key belongs to the `endpoint`; `records` are written with the first of the jobs.
        """
        accepted = await self._submitting.many(
            asked,
            tenant=tenant,
            idempotency_key=idempotency_key,
            endpoint=endpoint,
            records=records,
            batch_id=batch_id,
            revivable=revivable,
            inside=inside,
            bounded=bounded,
        )
        return [self._handle(one, tenant) for one in accepted]

    async def get(self, job_id: str, *, tenant: str | None = "local") -> Job:
        """The job with its whole history; `UnknownJob` when this tenant (None: anybody) has none of that id."""
        check_text("id", job_id)
        await self._durable.start()
        job = await self._durable.store.find(job_id, tenant=tenant)
        if job is None:
            raise UnknownJob(job_id)
        return job

    async def list(
        self,
        *,
        state: JobState | str | None = None,
        task: str | None = None,
        model: str | None = None,
        limit: int = 100,
        after: str | None = None,
        tenant: str | None = "local",
    ) -> Sequence[Job]:
        """Newest first, without input, result and history; `after` is the last id of the page before.

        A `tenant` of None lists everybody's.
        """
        which = JobFilter(tenant=tenant, state=read_state(state), task=task, model=model)
        return await self._select(which, limit, after)

    async def wait(
        self,
        job_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        tenant: str = "local",
    ) -> Job:
        """The job once it has ended."""
        job = await self.get(job_id, tenant=tenant)
        deadline = math.inf if timeout is None else self._clock.now() + timeout
        while not job.state.final:
            left_s = deadline - self._clock.now()
            if left_s <= 0:
                raise TimeoutError(f"job {job_id} is still {job.state}")
            try:
                async with asyncio.timeout(None if timeout is None else left_s):
                    await self._durable.watch.end_of(job_id)
            except TimeoutError:
                raise TimeoutError(f"job {job_id} is still {job.state} after {timeout:g} s") from None
            job = await self.get(job_id, tenant=tenant)
        return job

    async def cancel(self, job_id: str, *, tenant: str = "local") -> JobState:
        """Stop a job: a pending one at once, a running one as soon as its task lets go.

        Returns its state now; `StateConflict` when it has ended otherwise, or is a batch: its lines are stopped with it.
        """
        job = await self.get(job_id, tenant=tenant)
        if job.task == BATCH_TASK:
            batch_id = batch_id_of(job_id)
            raise StateConflict(
                f"job {job_id} is a batch: cancel it as one: POST /v1/batches/{batch_id}/cancel,"
                f" or headgate batches cancel {batch_id}"
            )
        answer = await self._durable.store.cancel(job_id, now=self._now(), tenant=tenant)
        if answer is None:
            raise UnknownJob(job_id)
        if not answer.accepted:
            raise StateConflict(f"job {job_id} is {answer.state} and cannot be cancelled")
        if answer.state is JobState.CANCELLED:
            self._durable.watch.ended(job_id)
        else:
            self._durable.stop_here(job_id)
        return answer.state

    async def make_due(self, job_id: str, *, tenant: str = "local") -> bool:
        """Let a pending job wait no longer for its time; False when it does not wait for one."""
        check_text("id", job_id)
        await self._durable.start()
        return await self._durable.store.make_due(job_id, now=self._now(), tenant=tenant)

    async def count(self, *, tenant: str | None = "local") -> Mapping[str, int]:
        """How many jobs are in each state; None counts everybody's."""
        await self._durable.start()
        return await self._durable.store.count(tenant=tenant)

    async def _select(self, which: JobFilter, limit: int, after: str | None) -> Sequence[Job]:
        check_limit(limit)
        check_after(after)
        await self._durable.start()
        return await self._durable.store.select(which, limit=limit, after=after)

    def _handle(self, submitted: Submitted, tenant: str) -> JobHandle:
        return JobHandle(self, submitted.id, tenant, created=submitted.created, submitted=submitted)

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def read_state(state: JobState | str | None) -> JobState | None:
    try:
        return None if state is None else JobState(state)
    except ValueError:
        known = ", ".join(JobState)
        raise InvalidRequest(f"state must be one of {known}, not {state!r}", param="state") from None


def check_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_LISTED:
        raise InvalidRequest(f"limit must be a whole number from 1 to {MOST_LISTED}", param="limit")


def check_after(after: object) -> None:
    if after is not None and not (isinstance(after, str) and _ID.fullmatch(after)):
        raise InvalidRequest(
            f"after must be a job's id, the last one of the page before, not {after!r:.60}", param="after"
        )
