"""Batches, as their users see them: create, look, cancel, retry."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from headgate.batches.ends import Ends
from headgate.batches.files import Files, check_limit
from headgate.batches.job import FINALIZE, VALIDATE, batch_task
from headgate.batches.run import Parts
from headgate.batches.stopping import Stopping
from headgate.core.batch import (
    Batch,
    BatchError,
    BatchState,
    Checked,
    Closing,
    Standing,
    begin,
    failed,
    open_in,
    under_way,
)
from headgate.core.batch_order import (
    BATCH_TASK,
    MOST_PAIRS,
    BatchOrder,
    batch_id_of,
    check_endpoint,
    check_metadata,
    is_batch_id,
    job_id_of,
    window_s,
)
from headgate.core.errors import InvalidRequest, StateConflict, UnknownBatch
from headgate.core.job import Job, JobState
from headgate.core.ports.clock import Clock
from headgate.core.ports.jobs import JobFilter
from headgate.runner.durable import Durable
from headgate.runner.jobs import Jobs
from headgate.runner.submission import Submission

ENDPOINT: Final = "POST /v1/batches"
RETRY_ENDPOINT: Final = "POST /v1/batches/{batch_id}/retry"
MOST_LISTED: Final = 100
THREADS: Final = 2
DAY_S: Final = 86_400.0
GRACE_S: Final = 3 * DAY_S
"""How long after its window a batch may still take to write down what came of it."""
STOP_S: Final = 1.0
"""How long whoever cancels waits for lines to be stopped. The batch's job stops the rest."""
RETRY_OF: Final = "retry_of"
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Created:
    """`is_new` is False when an idempotency key led to a batch that was there already."""

    batch: Batch
    is_new: bool


class Batches:
    """`gateway.batches`."""

    def __init__(
        self,
        jobs: Jobs,
        files: Files,
        durable: Durable,
        *,
        clock: Clock,
        check_model: Callable[[str], object],
    ) -> None:
        self._jobs = jobs
        self._files = files
        self._durable = durable
        self._ends = Ends(durable.store, clock)
        self._stopping = Stopping(durable.store, clock)
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-batches")
        parts = Parts(jobs, files, durable, self._ends, self._stopping, check_model, threads)
        durable.tasks.add(batch_task(parts))

    async def create(
        self,
        *,
        input_file_id: str,
        endpoint: str,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        models: Sequence[str] = (),
        idempotency_key: str | None = None,
        tenant: str = "local",
    ) -> Created:
        """Run the lines of a file. When this returns, the batch is durable and will end.

        `models` bounds what the lines may ask for, as an access key does; none: every model.
        """
        check_endpoint(endpoint)
        check_metadata(metadata)
        self._check_window(completion_window)
        await self._files.quota.disk.check()
        file = await self._files.get(input_file_id, tenant=tenant)
        if file.purpose != "batch":
            raise InvalidRequest(
                f"file {file.id} is a {file.purpose} file; a batch reads one uploaded for the purpose batch",
                param="input_file_id",
            )
        order = BatchOrder(
            input_file_id=file.id,
            endpoint=endpoint,
            completion_window=completion_window,
            metadata=None if metadata is None else dict(metadata),
            models=tuple(models),
        )
        return await self._submit(order, idempotency_key=idempotency_key, endpoint=ENDPOINT, tenant=tenant)

    async def retry(
        self,
        batch_id: str,
        *,
        models: Sequence[str] = (),
        idempotency_key: str | None = None,
        tenant: str = "local",
    ) -> Created:
        """A new batch of the lines that failed. Its metadata names the first: `retry_of`."""
        await self._files.quota.disk.check()
        batch = await self.get(batch_id, tenant=tenant)
        if not batch.status.final:
            raise StateConflict(f"batch {batch_id} is {batch.status}: its lines have not ended yet")
        if batch.error_file_id is None:
            raise StateConflict(f"batch {batch_id} is {batch.status}: it has no error file, nothing to retry")
        for file_id in (batch.input_file_id, batch.error_file_id):
            await self._files.get(file_id, tenant=tenant)
        metadata = {**(batch.metadata or {}), RETRY_OF: batch_id}
        if len(metadata) > MOST_PAIRS:
            metadata = {RETRY_OF: batch_id}
        order = BatchOrder(
            input_file_id=batch.input_file_id,
            endpoint=batch.endpoint,
            completion_window=batch.completion_window,
            metadata=metadata,
            models=tuple(models),
            failed_file_id=batch.error_file_id,
        )
        return await self._submit(
            order, idempotency_key=idempotency_key, endpoint=RETRY_ENDPOINT, tenant=tenant
        )

    async def get(self, batch_id: str, *, tenant: str = "local") -> Batch:
        """How it stands; `UnknownBatch` when this tenant has none of that id."""
        if not is_batch_id(batch_id):
            raise UnknownBatch(str(batch_id))
        await self._durable.start()
        # The marks of an end are gone once its step is there, and steps count only while the job has not ended:
        # read in this order, nothing is missed in between.
        cancelled_at = await self._ends.cancelled_at(batch_id, tenant)
        steps = await self._durable.store.steps(job_id_of(batch_id))
        job = await self._durable.store.find(job_id_of(batch_id), tenant=tenant)
        if job is None or job.task != BATCH_TASK:
            raise UnknownBatch(batch_id)
        if job.state.final:
            return _over(batch_id, job)
        standing = Standing(
            checked=_step(steps, VALIDATE, Checked),
            closing=_step(steps, FINALIZE, Closing),
            cancelled_at=cancelled_at,
        )
        counts = await self._durable.store.batch_counts(batch_id, tenant=tenant)
        return under_way(begin(batch_id, _order(job)), standing, counts)

    async def list(
        self, *, limit: int = 20, after: str | None = None, tenant: str = "local"
    ) -> Sequence[Batch]:
        """Newest first; `after` is the last id of the page before."""
        check_limit(limit, most=MOST_LISTED)
        if after is not None and not is_batch_id(after):
            raise InvalidRequest(f"after must be a batch's id, not {after!r:.60}", param="after")
        await self._durable.start()
        which = JobFilter(tenant=tenant, task=BATCH_TASK)
        after_job = None if after is None else job_id_of(after)
        jobs = await self._durable.store.select(which, limit=limit, after=after_job)
        return [await self.get(batch_id_of(job.id), tenant=tenant) for job in jobs]

    async def cancel(self, batch_id: str, *, tenant: str = "local") -> Batch:
        """Stop it: what has not begun never will. What has ended by then is in its files.

        `StateConflict` when all its lines have ended. One whose job was lost stays `failed`, but its lines are stopped.
        """
        batch = await self.get(batch_id, tenant=tenant)
        if not batch.status.final:
            if batch.cancelling_at is None:
                batch = await self._wish_to_cancel(batch_id, tenant)
            if batch.cancelling_at is not None:
                await self._stopping.stop_some(batch_id, tenant, within_s=STOP_S)
                return await self.get(batch_id, tenant=tenant)
        if batch.status is BatchState.FAILED and await self._has_open_lines(batch_id, tenant):
            await self._stopping.stop_all(batch_id, tenant)
            return batch
        raise StateConflict(f"batch {batch_id} is {batch.status} and cannot be cancelled")

    async def wait(self, batch_id: str, *, timeout: float | None = None, tenant: str = "local") -> Batch:  # noqa: ASYNC109
        """The batch once it has ended; `TimeoutError` when it has not within `timeout` seconds."""
        await self.get(batch_id, tenant=tenant)
        await self._jobs.wait(job_id_of(batch_id), timeout=timeout, tenant=tenant)
        return await self.get(batch_id, tenant=tenant)

    async def _wish_to_cancel(self, batch_id: str, tenant: str) -> Batch:
        """The batch as it stands then: with `cancelling_at`, if the wish came in time."""
        marked = await self._ends.cancel(batch_id, tenant)
        batch = await self.get(batch_id, tenant=tenant)
        if marked and batch.cancelling_at is None:
            await self._ends.forget(batch_id, tenant)
        return batch

    async def _has_open_lines(self, batch_id: str, tenant: str) -> bool:
        return open_in(await self._durable.store.batch_counts(batch_id, tenant=tenant)) > 0

    def _check_window(self, window: str) -> None:
        # Lines that ended are kept for as long as any job: they must outlive the batch.
        if window_s(window) > self._durable.rules.retention_days * DAY_S / 2:
            raise InvalidRequest(
                f"completion_window {window} is more than half of jobs.retention_days",
                param="completion_window",
            )

    async def _submit(
        self, order: BatchOrder, *, idempotency_key: str | None, endpoint: str, tenant: str
    ) -> Created:
        asked = Submission(
            task=BATCH_TASK,
            input=order,
            expires_after_s=window_s(order.completion_window) + GRACE_S,
            metadata={"files": [file for file in (order.input_file_id, order.failed_file_id) if file]},
        )
        handles = await self._jobs.submit_inside(
            [asked], tenant=tenant, idempotency_key=idempotency_key, endpoint=endpoint
        )
        batch = await self.get(batch_id_of(handles[0].id), tenant=tenant)
        return Created(batch, handles[0].created)


def _over(batch_id: str, job: Job) -> Batch:
    if job.state is JobState.COMPLETED:
        return msgspec.convert(job.result, Batch)
    why = f"the batch's job {job.id} ended as {job.state}, {job.reason}: {job.error or 'no error is known'}"
    if job.state is JobState.DEAD_LETTER:
        why += ". A replay of the job goes on where it was"
    error = BatchError(code="batch_job_failed", message=why)
    at = job.created_at if job.finished_at is None else job.finished_at
    return failed(begin(batch_id, _order(job)), error, at=at.timestamp())


def _order(job: Job) -> BatchOrder:
    return msgspec.convert(job.input, BatchOrder)


def _step(steps: Mapping[str, bytes], name: str, kind: type[S]) -> S | None:
    return msgspec.json.decode(steps[name], type=kind) if name in steps else None
