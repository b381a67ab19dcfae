"""Writing down what came of a batch's lines: each custom id once, in the output file or in the error file.

It is written from the beginning each time. A file gets its name when it is whole and on the disk.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from headgate.batches.files import Files, Upload
from headgate.batches.lines import ChosenLines
from headgate.core.batch import LEAST_LOOK_S, Closing
from headgate.core.batch_lines import Stop, Written, never_run, written
from headgate.core.job import Job
from headgate.core.ports.store import Store
from headgate.runner.outcomes import RetryLater

PAGE: Final = 200
UNBOUNDED: Final = 2**63


class Tally(msgspec.Struct):
    """What the two files hold."""

    completed: int = 0
    failed: int = 0
    any_expired: bool = False
    output_bytes: int = 0
    error_bytes: int = 0


class Output:
    """The files of one batch."""

    def __init__(
        self, store: Store, files: Files, batch_id: str, tenant: str, *, stop: Stop, threads: Executor
    ) -> None:
        self._store = store
        self._files = files
        self._batch_id = batch_id
        self._tenant = tenant
        self._stop = stop
        self._threads = threads
        self._seen: set[int] = set()
        self._tally = Tally()

    async def write(self, closing: Closing, total: int, lines: ChosenLines | None) -> Tally:
        """`lines` are those of the input file, if it is there to name the ones that never became jobs."""
        async with AsyncExitStack() as stack:
            output = await stack.enter_async_context(self._files.upload(most_bytes=UNBOUNDED))
            errors = await stack.enter_async_context(self._files.upload(most_bytes=UNBOUNDED))
            await self._write_jobs(output, errors)
            if lines is not None and len(self._seen) < total:
                await self._write_unseen(errors, lines)
            if self._tally.completed:
                await output.name(closing.output_file_id)
            if self._tally.failed:
                await errors.name(closing.error_file_id)
        self._tally.output_bytes = output.draft.size_bytes
        self._tally.error_bytes = errors.draft.size_bytes
        return self._tally

    async def _write_jobs(self, output: Upload, errors: Upload) -> None:
        after = None
        while page := await self._page(after):
            good, bad = await asyncio.get_running_loop().run_in_executor(self._threads, self._render, page)
            if good:
                await output.write(good)
            if bad:
                await errors.write(bad)
            after = page[-1].id

    async def _page(self, after: str | None) -> list[Job]:
        page = await self._store.batch_jobs(self._batch_id, tenant=self._tenant, limit=PAGE, after=after)
        if not all(job.state.final for job in page):
            # Somebody has just replayed a dead letter: its end is worth waiting for.
            raise RetryLater(LEAST_LOOK_S, "a line runs again")
        return page

    def _render(self, page: list[Job]) -> tuple[bytes, bytes]:
        told = [self._told(job) for job in page]
        good = b"".join(one.data for one in told if one.completed)
        return good, b"".join(one.data for one in told if not one.completed)

    def _told(self, job: Job) -> Written:
        self._seen.add(job.metadata["line"])
        return self._counted(written(job, job.metadata["custom_id"], stop=self._stop))

    def _counted(self, one: Written) -> Written:
        self._tally.completed += one.completed
        self._tally.failed += not one.completed
        self._tally.any_expired |= one.expired
        return one

    async def _write_unseen(self, errors: Upload, lines: ChosenLines) -> None:
        """Lines that never became jobs: the batch was stopped before."""
        loop = asyncio.get_running_loop()
        with lines:
            unseen = self._unseen(lines)
            while piece := await loop.run_in_executor(self._threads, next, unseen, b""):
                await errors.write(piece)

    def _unseen(self, chosen: ChosenLines) -> Iterator[bytes]:
        name = self._batch_id.removeprefix("batch_")
        while taken := chosen.take(1000, UNBOUNDED):
            told = [
                self._counted(never_run(f"{name}_{number}", line.custom_id, self._stop.why)).data
                for number, line in taken
                if number not in self._seen
            ]
            if told:
                yield b"".join(told)
