"""An application's records, as its tasks see them: those of the job's tenant and no others."""

from collections.abc import Callable, Mapping
from typing import Any

from headgate.core.ports.records import Records
from headgate.core.record import Record
from headgate.runner.payloads import record


class JobRecords:
    """`ctx.records`. What belongs to the job's end is written with `ctx.save` instead: both or neither."""

    def __init__(self, store: Records, tenant: str, now: Callable[[], float]) -> None:
        self._store = store
        self._tenant = tenant
        self._now = now

    async def get(self, collection: str, record_id: str) -> Record | None:
        """As it was before this run's end writes any."""
        return await self._store.get_record(self._tenant, collection, record_id)

    async def find(self, collection: str, unique_key: str) -> Record | None:
        return await self._store.find_record(self._tenant, collection, unique_key)

    async def list(self, collection: str, *, limit: int = 100, after: str | None = None) -> "list[Record]":
        """Newest id first."""
        return await self._store.list_records(self._tenant, collection, limit=limit, after=after)

    async def put(self, collection: str, record_id: str, body: Mapping[str, Any]) -> None:
        """Write a record now, whatever becomes of the job."""
        write = record(collection, record_id, body)
        await self._store.put_records(self._tenant, [write], now=self._now())
