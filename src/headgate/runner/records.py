"""Records, as applications use them: small JSON documents beside the jobs."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from headgate.core.ports.clock import Clock
from headgate.core.record import Record
from headgate.runner.durable import Durable
from headgate.runner.jobs import check_limit
from headgate.runner.payloads import record


class Records:
    """`gateway.records`."""

    def __init__(self, durable: Durable, clock: Clock) -> None:
        self._durable = durable
        self._clock = clock

    async def put(
        self,
        collection: str,
        record_id: str,
        body: Mapping[str, Any],
        *,
        unique_key: str | None = None,
        text: str | None = None,
        tenant: str = "local",
        bounded: bool = False,
    ) -> None:
        """Write a record, new or over the old one; `RecordExists` when another has its unique key.

        With `bounded`, `QuotaExceeded` when the tenant would then store more than it may, and `StoreUnavailable` below
        the floor of free disk: for what a tenant makes an application store.
        """
        write = record(collection, record_id, body, unique_key=unique_key, text=text)
        await self._durable.start()
        now = self._clock.utc().timestamp()
        async with self._durable.quota.bound() if bounded else nullcontext() as quota:
            await self._durable.store.put_records(tenant, [write], now=now, quota=quota)

    async def get(self, collection: str, record_id: str, *, tenant: str = "local") -> Record | None:
        await self._durable.start()
        return await self._durable.store.get_record(tenant, collection, record_id)

    async def find(self, collection: str, unique_key: str, *, tenant: str = "local") -> Record | None:
        await self._durable.start()
        return await self._durable.store.find_record(tenant, collection, unique_key)

    async def list(
        self,
        collection: str,
        *,
        limit: int = 100,
        after: str | None = None,
        text: str | None = None,
        tenant: str = "local",
    ) -> "list[Record]":
        """Newest id first; `text` finds a piece of the records' text, whatever its case."""
        check_limit(limit)
        await self._durable.start()
        return await self._durable.store.list_records(tenant, collection, limit=limit, after=after, text=text)

    async def delete(self, collection: str, record_id: str, *, tenant: str = "local") -> bool:
        await self._durable.start()
        return await self._durable.store.delete_record(tenant, collection, record_id)
