"""The jobs of a batch together, on SQLite."""

from collections.abc import Mapping

import apsw

from headgate.core.job import Entry, Job
from headgate.stores.rows import entry_line, read_counts, read_job
from headgate.stores.sqlite.base import SQL, Verbs, changes, rows


class BatchVerbs(Verbs):
    """`core.ports.batches.Batches`."""

    async def batch_counts(self, batch_id: str, *, tenant: str) -> Mapping[str, int]:
        asked = {"batch_id": batch_id, "tenant": tenant}
        return read_counts(await self._read(lambda db: rows(db, SQL.batch_counts, asked)))

    async def batch_jobs(
        self, batch_id: str, *, tenant: str, limit: int, after: str | None = None
    ) -> list[Job]:
        asked = {"batch_id": batch_id, "tenant": tenant, "limit": limit, "after": after}
        found = await self._read(lambda db: rows(db, SQL.batch_jobs, asked))
        return [read_job(row) for row in found]

    async def cancel_batch(self, batch_id: str, *, tenant: str, now: float, limit: int) -> int:
        entry = entry_line(Entry(outcome="cancelled", at=now, message="cancelled"))
        asked = {"batch_id": batch_id, "tenant": tenant, "now": now}

        def cancel(db: apsw.Connection) -> int:
            ended = changes(db, SQL.cancel_pending_of_batch, {**asked, "entry": entry, "limit": limit})
            return ended + changes(db, SQL.cancel_running_of_batch, {**asked, "limit": limit - ended})

        return await self._write("cancel_batch", cancel)
