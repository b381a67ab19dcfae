"""One run of a batch's job. Whatever killed the run before, this one goes on from what the store and the disk say."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

import msgspec

from headgate.batches.checking import Checking
from headgate.batches.ends import Ends
from headgate.batches.files import COLLECTION, Files
from headgate.batches.lines import ChosenLines, custom_ids
from headgate.batches.output import Output
from headgate.batches.stopping import Stopping
from headgate.core.access import covers
from headgate.core.batch import (
    LONGEST_LOOK_S,
    Batch,
    BatchError,
    Checked,
    Closing,
    Standing,
    begin,
    ended,
    next_look_s,
    open_in,
    under_way,
)
from headgate.core.batch_lines import CANCELLED, EXPIRED, LINE_CANCELLED, Line, Stop
from headgate.core.batch_order import TASKS, BatchOrder, batch_id_of, ends_at_of, window_s
from headgate.core.errors import BacklogFull, QuotaExceeded, UnknownFile, UnknownModel
from headgate.runner.context import Context
from headgate.runner.durable import Durable
from headgate.runner.jobs import Jobs
from headgate.runner.outcomes import RetryLater
from headgate.runner.submission import Submission

CHUNK_LINES: Final = 200
CHUNK_BYTES: Final = 8 * 1024 * 1024
STOPPED_LOOK_S: Final = 0.5
LINES_ENDPOINT: Final = "POST /v1/batches lines"
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class Parts:
    """What all batches share."""

    jobs: Jobs
    files: Files
    durable: Durable
    ends: Ends
    stopping: Stopping
    check_model: Callable[[str], object]
    """Raises when there is no such model."""
    threads: Executor
    """For the lines of batches alone: large files keep nobody else's work waiting."""


class BatchRun:
    """One batch, while its job runs."""

    def __init__(self, parts: Parts, ctx: Context, order: BatchOrder) -> None:
        self._parts = parts
        self._ctx = ctx
        self._order = order
        self._store = parts.durable.store
        self._tenant = ctx.job.tenant
        self._batch_id = batch_id_of(ctx.job.id)
        self._file_ids = [file for file in (order.input_file_id, order.failed_file_id) if file]
        self._ends_at = ends_at_of(self._batch_id, order)
        self.begun = begin(self._batch_id, order)

    async def validate(self) -> Checked:
        """Look at all lines before any of them runs."""
        order, rules = self._order, self._parts.durable.rules
        try:
            for file_id in self._file_ids:
                await self._parts.files.get(file_id, tenant=self._tenant)
        except UnknownFile as error:
            fault = BatchError(code="file_not_found", message=str(error), param="input_file_id")
            return Checked(at=self._ctx.now(), errors=(fault,))
        if await self._cancelled_at() is not None and not await self._are_bytes_here():
            return Checked(at=self._ctx.now())
        task = self._parts.durable.tasks.find(TASKS[order.endpoint])
        only = await self._only()
        checking = Checking(
            order,
            read_body=task.read,
            check_model=self._parts.check_model,
            only=only,
            threads=self._parts.threads,
        )
        total, errors = await checking.look(self._path(order.input_file_id))
        # A chunk must fit among the jobs that may wait, or it would wait for ever.
        chunk_lines = min(CHUNK_LINES, rules.max_pending, rules.max_pending_per_tenant)
        return Checked(at=self._ctx.now(), total=total, chunk_lines=chunk_lines, errors=errors)

    async def close(self, checked: Checked) -> Closing:
        """Submit what is not yet; then, once all lines have ended, make sure that nobody cancels it any more."""
        if not await self._is_stopped():
            await self._submit(checked)
        stopped = await self._is_stopped()
        if stopped:
            await self._parts.stopping.stop_all(self._batch_id, self._tenant)
        await self._leave_while_open(checked, stopped=stopped)
        finished = await self._parts.ends.finish(self._batch_id, self._tenant)
        return Closing(
            at=self._ctx.now(),
            output_file_id=self._parts.files.new_id(),
            error_file_id=self._parts.files.new_id(),
            cancelled_at=None if finished else await self._cancelled_at(),
        )

    async def write_out(self, checked: Checked, closing: Closing) -> Batch:
        """The two files, and the batch as it ends. Their records are written together with the job's end."""
        output = Output(
            self._store,
            self._parts.files,
            self._batch_id,
            self._tenant,
            stop=self._stop(closing),
            threads=self._parts.threads,
        )
        # Who cancels does not wait for bytes that may never come back: lines that never became jobs stay unnamed then.
        lost = closing.cancelled_at is not None and not await self._are_bytes_here()
        tally = await output.write(closing, checked.total, None if lost else await self._lines())
        self._save_file(closing.output_file_id, "output", tally.completed and tally.output_bytes)
        self._save_file(closing.error_file_id, "errors", tally.failed and tally.error_bytes)
        batch = under_way(self.begun, Standing(checked=checked, closing=closing), {})
        return ended(
            batch,
            closing,
            completed=tally.completed,
            failed=tally.failed,
            any_expired=tally.any_expired,
            at=self._ctx.now(),
        )

    async def forget_marks(self) -> None:
        await self._parts.ends.forget(self._batch_id, self._tenant)

    # ---- Lines --------------------------------------------------------------------------------------------

    async def _submit(self, checked: Checked) -> None:
        """Chunk by chunk, in the file's order, each all or nothing: how many there are says which comes next."""
        submitted = sum((await self._counts()).values())
        if submitted >= checked.total:
            return
        with await self._lines() as lines:
            await self._in_thread(lines.skip, submitted)
            while chunk := await self._in_thread(lines.take, checked.chunk_lines, CHUNK_BYTES):
                if await self._is_stopped():
                    return
                await self._submit_chunk(submitted, chunk)
                submitted += len(chunk)

    async def _submit_chunk(self, start: int, chunk: Sequence[tuple[int, Line]]) -> None:
        """Under a key of its own: a run that was thought dead and submits the same chunk submits nothing."""
        task, window = TASKS[self._order.endpoint], window_s(self._order.completion_window)
        asked = [
            Submission(
                task=task,
                input=line.body,
                model=msgspec.json.decode(line.body, type=_Named).model,
                expires_after_s=window,
                metadata={"custom_id": line.custom_id, "line": number},
            )
            for number, line in chunk
        ]
        try:
            await self._parts.jobs.submit_inside(
                asked,
                tenant=self._tenant,
                idempotency_key=f"{self._batch_id}-{start}",
                endpoint=LINES_ENDPOINT,
                batch_id=self._batch_id,
                revivable=False,
            )
        except BacklogFull as error:
            raise RetryLater(min(error.retry_after_s, LONGEST_LOOK_S), str(error)) from error
        except QuotaExceeded as error:
            # Until the batch expires, results may, or its tenant may delete files.
            raise RetryLater(LONGEST_LOOK_S, str(error)) from error
        except UnknownModel as error:
            # The settings have changed since the lines were looked at. They may change back.
            error.narrow(partial(covers, self._order.models))
            raise RetryLater(LONGEST_LOOK_S, str(error)) from error

    async def _leave_while_open(self, checked: Checked, *, stopped: bool) -> None:
        still_open = open_in(await self._counts())
        done = checked.total - still_open
        await self._ctx.progress(done, checked.total)
        if still_open:
            elapsed_s = self._ctx.now() - checked.at
            look_s = next_look_s(elapsed_s=elapsed_s, done=done, total=checked.total)
            raise RetryLater(
                min(look_s, STOPPED_LOOK_S) if stopped else look_s,
                f"{still_open:,} of {checked.total:,} lines have not ended",
            )

    async def _is_stopped(self) -> bool:
        return self._ctx.now() >= self._ends_at or await self._cancelled_at() is not None

    async def _cancelled_at(self) -> float | None:
        return await self._parts.ends.cancelled_at(self._batch_id, self._tenant)

    async def _counts(self) -> dict[str, int]:
        return dict(await self._store.batch_counts(self._batch_id, tenant=self._tenant))

    # ---- Files --------------------------------------------------------------------------------------------

    async def _lines(self) -> ChosenLines:
        return ChosenLines(self._path(self._order.input_file_id), await self._only())

    async def _only(self) -> frozenset[str] | None:
        if self._order.failed_file_id is None:
            return None
        return await self._in_thread(custom_ids, self._path(self._order.failed_file_id))

    async def _are_bytes_here(self) -> bool:
        paths = [self._path(file_id) for file_id in self._file_ids]
        return await self._in_thread(lambda: all(path.exists() for path in paths))

    def _in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._parts.threads, work, *arguments)

    def _path(self, file_id: str) -> Path:
        return self._parts.files.path(file_id)

    def _save_file(self, file_id: str, what: str, size_bytes: int) -> None:
        if size_bytes:
            file = self._parts.files.describe(
                file_id,
                size_bytes=size_bytes,
                filename=f"{self._batch_id}_{what}.jsonl",
                purpose="batch_output",
            )
            self._ctx.save(COLLECTION, file.id, msgspec.to_builtins(file))

    def _stop(self, closing: Closing) -> Stop:
        if closing.cancelled_at is not None:
            return Stop(min(closing.cancelled_at, self._ends_at), CANCELLED)
        return Stop(self._ends_at, EXPIRED if closing.at >= self._ends_at else LINE_CANCELLED)


class _Named(msgspec.Struct):
    model: str
