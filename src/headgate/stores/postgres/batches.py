"""The jobs of a batch together, on PostgreSQL."""

from collections.abc import Mapping

from headgate.core.job import Entry, Job
from headgate.stores.postgres.base import SQL, Verbs, sayable
from headgate.stores.postgres.database import Connection
from headgate.stores.rows import entry_line, read_counts, read_job


class BatchVerbs(Verbs):
    """`core.ports.batches.Batches`."""

    async def batch_counts(self, batch_id: str, *, tenant: str) -> Mapping[str, int]:
        return read_counts(await self._database.read(SQL.batch_counts, tenant, sayable(batch_id)))

    async def batch_jobs(
        self, batch_id: str, *, tenant: str, limit: int, after: str | None = None
    ) -> list[Job]:
        rows = await self._database.read(SQL.batch_jobs, tenant, sayable(batch_id), after, limit)
        return [read_job(row) for row in rows]

    async def cancel_batch(self, batch_id: str, *, tenant: str, now: float, limit: int) -> int:
        """Those whom somebody holds just now come last and one at a time: whoever holds nothing else blocks nobody."""
        touched = await self._cancel_some(batch_id, tenant, now, limit, "skip locked")
        return touched or await self._cancel_some(batch_id, tenant, now, min(limit, 1), "")

    async def _cancel_some(self, batch_id: str, tenant: str, now: float, limit: int, patience: str) -> int:
        entry = entry_line(Entry(outcome="cancelled", at=now, message="cancelled"))
        pending = SQL.cancel_pending_of_batch.format(patience=patience)
        running = SQL.cancel_running_of_batch.format(patience=patience)
        batch = (tenant, sayable(batch_id))

        async def cancel(connection: Connection) -> int:
            ended = len(await connection.fetch(pending, *batch, limit, now, entry))
            return ended + len(await connection.fetch(running, *batch, limit - ended, now))

        return await self._database.transact("cancel_batch", cancel)
