"""Waiting for a job on behalf of somebody: a spinner that says how it stands, then the result or why there is none.

Exit codes: 0 completed or skipped, 1 a dead letter or cancelled, 3 not over in time.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

from rich.status import Status
from rich.text import Text

from headgate.cli.backend import Backend
from headgate.cli.listing import standing
from headgate.cli.screen import note, show, show_json, stderr
from headgate.cli.words import printable, readable_json
from headgate.core.errors import JobFailed, Refused
from headgate.core.job import Job, JobState

ENDED: Final = 0
FAILED: Final = 1
TIMED_OUT: Final = 3
LOOK_EVERY_S: Final = 1.0


async def wait_for(backend: Backend, job_id: str, *, patience_s: float) -> Job | None:
    """The job once it has ended; None when that took too long."""
    async with _spinner(backend, job_id):
        try:
            return await backend.wait(job_id, None if math.isinf(patience_s) else patience_s)
        except asyncio.CancelledError:
            note(f"The job goes on: headgate jobs wait {job_id}")
            raise


def conclude(job: Job | None, job_id: str, *, patience_s: float, as_json: bool) -> int:
    """Show what came of it; answers with the exit code."""
    if job is None:
        note(f"Job {job_id} has not ended within {patience_s:g} s. It goes on: headgate jobs wait {job_id}")
        return TIMED_OUT
    failed = job.state in {JobState.DEAD_LETTER, JobState.CANCELLED}
    if as_json:
        show_json(job)
    elif failed:
        note(f"{printable(str(JobFailed(job)))}\nMore: headgate jobs show {job.id}")
    elif job.state is JobState.SKIPPED:
        note(printable(f"Job {job.id} was skipped: {job.reason}"))
    else:
        show(readable_json(job.result))
    return FAILED if failed else ENDED


@contextlib.asynccontextmanager
async def _spinner(backend: Backend, job_id: str) -> AsyncIterator[None]:
    """On a terminal, how the job stands while somebody waits for it."""
    screen = stderr()
    if not screen.is_terminal:
        yield
        return
    with screen.status(Text(f"job {job_id}")) as status:
        narrating = asyncio.create_task(_narrate(backend, job_id, status))
        try:
            yield
        finally:
            narrating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await narrating


async def _narrate(backend: Backend, job_id: str, status: Status) -> None:
    while True:
        with contextlib.suppress(Refused):
            status.update(Text(_words(await backend.job(job_id))))
        await asyncio.sleep(LOOK_EVERY_S)


def _words(job: Job) -> str:
    how = standing(job, datetime.now(UTC))
    return (
        f"job {job.id}: {job.state}, {job.attempts} of {job.max_attempts} attempts{', ' if how else ''}{how}"
    )
