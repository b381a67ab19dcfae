"""Records, as applications use them: small JSON documents beside the jobs."""

from collections.abc import Mapping
from typing import Any

from headgate.core.errors import InvalidRequest
from headgate.core.messages import check_text
from headgate.core.ports.clock import Clock
from headgate.core.record import Record, RecordWrite
from headgate.runner.durable import Durable
from headgate.runner.jobs import check_limit
from headgate.runner.payloads import encode

LONGEST_UNIQUE_KEY_CHARS = 4096


def record(
    collection: str,
    record_id: str,
    body: Mapping[str, Any],
    *,
    unique_key: str | None = None,
    text: str | None = None,
) -> RecordWrite:
    """A record to hand to `jobs.submit(records=[…])`, written together with the job."""
    check_text("collection", collection)
    check_text("id", record_id)
    if unique_key is not None and not 0 < len(unique_key) <= LONGEST_UNIQUE_KEY_CHARS:
        raise InvalidRequest(
            f"unique_key must have 1–{LONGEST_UNIQUE_KEY_CHARS} characters", param="unique_key"
        )
    encoded = encode(body, what="a record's body")
    return RecordWrite(collection=collection, id=record_id, body=encoded, unique_key=unique_key, text=text)


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
    ) -> None:
        """Write a record, new or over the old one; `RecordExists` when another has its unique key."""
        write = record(collection, record_id, body, unique_key=unique_key, text=text)
        await self._durable.start()
        await self._durable.store.put_records(tenant, [write], now=self._clock.utc().timestamp())

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
