"""The database as a backend: a gateway opened in this process, without a worker."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headgate.cli.backend import Made, Verb
from headgate.cli.filters import Filter
from headgate.cli.running import user_name
from headgate.core.batch import Batch
from headgate.core.job import Job, JobState
from headgate.gateway import Gateway
from headgate.runner.jobs import MOST_LISTED


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Listed = TypeVar("Listed", bound=_Named)


class StoreBackend:
    def __init__(self, gateway: Gateway, tenant: str) -> None:
        self._gateway = gateway
        self._tenant = tenant

    async def now(self) -> datetime:
        await self._gateway.durable.start()
        return self._gateway.durable.clock.utc()

    # ---- Jobs --------------------------------------------------------------------------------------------

    async def submit(self, task: str, asked: Mapping[str, Any], *, key: str | None) -> Made:
        handle = await self._gateway.jobs.submit(task, **asked, idempotency_key=key, tenant=self._tenant)
        return Made(handle.id, was_there=not handle.created)

    async def job(self, job_id: str) -> Job:
        return await self._gateway.jobs.get(job_id, tenant=self._tenant)

    async def jobs(
        self, *, state: JobState | None, task: str | None, model: str | None, limit: int, after: str | None
    ) -> tuple[Sequence[Job], bool]:
        look = partial(self._gateway.jobs.list, state=state, task=task, model=model, tenant=self._tenant)
        return await page_of(look, limit, after)

    async def wait(self, job_id: str, patience_s: float | None) -> Job | None:
        try:
            return await self._gateway.jobs.wait(job_id, timeout=patience_s, tenant=self._tenant)
        except TimeoutError:
            return None

    async def cancel(self, job_id: str) -> JobState:
        return await self._gateway.jobs.cancel(job_id, tenant=self._tenant)

    # ---- Dead letters ------------------------------------------------------------------------------------

    async def dead(self, which: Filter, *, limit: int, after: str | None) -> tuple[Sequence[Job], bool]:
        look = partial(self._gateway.dead_letters.list, **which.arguments(), tenant=self._tenant)
        return await page_of(look, limit, after)

    async def all_dead(self, which: Filter) -> AsyncGenerator[Job, None]:
        more, after = True, None
        while more:
            found, more = await self.dead(which, limit=MOST_LISTED, after=after)
            for job in found:
                yield job
            after = found[-1].id if found else None

    async def replay(self, job_id: str, new_input: Any) -> None:
        await self._gateway.dead_letters.replay(job_id, input=new_input, by=user_name(), tenant=self._tenant)

    async def discard(self, job_id: str) -> None:
        await self._gateway.dead_letters.discard(job_id, by=user_name(), tenant=self._tenant)

    async def act_on_all(self, verb: Verb, which: Filter, per_second: float) -> AsyncGenerator[int, None]:
        dead = self._gateway.dead_letters
        act = dead.replay_many if verb is Verb.REPLAY else dead.discard_many
        asked = which.arguments()
        async for done in act(**asked, by=user_name(), per_second=per_second, tenant=self._tenant):
            yield done

    # ---- Batches -----------------------------------------------------------------------------------------

    async def create_batch(
        self, file: Path, *, endpoint: str, window: str, metadata: Mapping[str, Any] | None
    ) -> Batch:
        kept = await self._gateway.files.create(file, tenant=self._tenant)
        created = await self._gateway.batches.create(
            input_file_id=kept.id,
            endpoint=endpoint,
            completion_window=window,
            metadata=metadata,
            tenant=self._tenant,
        )
        return created.batch

    async def batch(self, batch_id: str) -> Batch:
        return await self._gateway.batches.get(batch_id, tenant=self._tenant)

    async def batches(self, *, limit: int, after: str | None) -> tuple[Sequence[Batch], bool]:
        return await page_of(partial(self._gateway.batches.list, tenant=self._tenant), limit, after)

    async def wait_for_batch(self, batch_id: str, patience_s: float | None) -> Batch | None:
        try:
            return await self._gateway.batches.wait(batch_id, timeout=patience_s, tenant=self._tenant)
        except TimeoutError:
            return None

    async def cancel_batch(self, batch_id: str) -> Batch:
        return await self._gateway.batches.cancel(batch_id, tenant=self._tenant)

    async def retry_batch(self, batch_id: str, *, key: str | None) -> Made:
        created = await self._gateway.batches.retry(batch_id, idempotency_key=key, tenant=self._tenant)
        return Made(created.batch.id, was_there=not created.is_new)


async def page_of(
    look: Callable[..., Awaitable[Sequence[Listed]]], limit: int, after: str | None
) -> tuple[Sequence[Listed], bool]:
    """So many at most, and whether there are more."""
    found = await look(limit=limit, after=after)
    more = len(found) == limit and await look(limit=1, after=found[-1].id)
    return found, bool(more)
