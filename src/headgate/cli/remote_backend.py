"""A gateway from afar as a backend. The tenant is that of the key."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

from headgate.cli.backend import Made, Verb
from headgate.cli.filters import Filter
from headgate.cli.remote import first, shaped
from headgate.client import AsyncClient
from headgate.client.line import Call
from headgate.core.batch import Batch
from headgate.core.errors import DeadlineExceeded, JobFailed
from headgate.core.job import Job, JobState
from headgate.runner.jobs import MOST_LISTED

LOOK_EVERY_S: Final = 0.5


class RemoteBackend:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def now(self) -> datetime:
        """The Date of an answer, rounded up: what has ended has ended before it. Ours if a proxy has removed it."""
        answer = await self._client.line.ask(Call(method="GET", path="/health/live"))
        try:
            return parsedate_to_datetime(answer.headers["date"]) + timedelta(seconds=1)
        except (KeyError, ValueError):
            return datetime.now(UTC)

    # ---- Jobs --------------------------------------------------------------------------------------------

    async def submit(self, task: str, asked: Mapping[str, Any], *, key: str | None) -> Made:
        return Made((await self._client.submit(task, **asked, idempotency_key=key)).id)

    async def job(self, job_id: str) -> Job:
        return await self._client.job(job_id)

    async def jobs(
        self, *, state: JobState | None, task: str | None, model: str | None, limit: int, after: str | None
    ) -> tuple[Sequence[Job], bool]:
        found = self._client.jobs(state=state, task=task, model=model, page_size=limit, after=after)
        return await first(found, limit)

    async def wait(self, job_id: str, patience_s: float | None) -> Job | None:
        try:
            return await self._client.wait(job_id, timeout=patience_s)
        except DeadlineExceeded:
            return None

    async def cancel(self, job_id: str) -> JobState:
        return (await self._client.cancel(job_id)).state

    # ---- Dead letters ------------------------------------------------------------------------------------

    async def dead(self, which: Filter, *, limit: int, after: str | None) -> tuple[Sequence[Job], bool]:
        found = self._client.dead_letters.list(**which.arguments(), page_size=limit, after=after)
        return await first(found, limit)

    async def all_dead(self, which: Filter) -> AsyncGenerator[Job, None]:
        async for job in self._client.dead_letters.list(**which.arguments(), page_size=MOST_LISTED):
            yield job

    async def replay(self, job_id: str, new_input: Any) -> None:
        await self._client.dead_letters.replay(job_id, input=new_input)

    async def discard(self, job_id: str) -> None:
        await self._client.dead_letters.discard(job_id)

    async def act_on_all(self, verb: Verb, which: Filter, per_second: float) -> AsyncGenerator[int, None]:
        """A job of the gateway's does it: it goes on should we be killed, and is cancelled should we be stopped."""
        dead = self._client.dead_letters
        order = dead.replay_all if verb is Verb.REPLAY else dead.discard_all
        job = await order(per_second=per_second, **which.arguments())
        try:
            while not job.state.final:
                await asyncio.sleep(LOOK_EVERY_S)
                job = await self._client.job(job.id)
                yield _done(job)
        finally:
            if not job.state.final:
                await self._client.cancel(job.id)
        if job.state is not JobState.COMPLETED:
            raise JobFailed(job)

    # ---- Batches -----------------------------------------------------------------------------------------

    async def create_batch(
        self, file: Path, *, endpoint: str, window: str, metadata: Mapping[str, Any] | None
    ) -> Batch:
        return _batch(
            await self._client.batches.create(
                file, endpoint=endpoint, completion_window=window, metadata=metadata
            )
        )

    async def batch(self, batch_id: str) -> Batch:
        return _batch(await self._client.batches.get(batch_id))

    async def batches(self, *, limit: int, after: str | None) -> tuple[Sequence[Batch], bool]:
        found, more = await first(self._client.batches.list(page_size=limit, after=after), limit)
        return [_batch(told) for told in found], more

    async def wait_for_batch(self, batch_id: str, patience_s: float | None) -> Batch | None:
        try:
            return _batch(await self._client.batches.wait(batch_id, timeout=patience_s))
        except DeadlineExceeded:
            return None

    async def cancel_batch(self, batch_id: str) -> Batch:
        return _batch(await self._client.batches.cancel(batch_id))

    async def retry_batch(self, batch_id: str, *, key: str | None) -> Made:
        return Made((await self._client.batches.retry(batch_id, idempotency_key=key))["id"])


def _batch(told: Mapping[str, Any]) -> Batch:
    return shaped(told, Batch)


def _done(job: Job) -> int:
    """Progress and result of a job that acts on many are alike."""
    told = job.result if job.state is JobState.COMPLETED else job.progress
    done = told.get("done") if isinstance(told, dict) else None
    return done if isinstance(done, int) else 0
