"""Applications' records, on SQLite."""

from collections.abc import Sequence
from typing import Any

import apsw

from headgate.core.errors import RecordExists
from headgate.core.record import Record, RecordWrite
from headgate.stores.rows import read_record
from headgate.stores.sqlite.base import SQL, Verbs, changes, refuse_over, rows, value


class RecordVerbs(Verbs):
    """`core.ports.records.Records`."""

    async def put_records(
        self, tenant: str, writes: Sequence[RecordWrite], *, now: float, quota: int | None = None
    ) -> None:
        def put(db: apsw.Connection) -> None:
            for write in writes:
                put_record(db, tenant, write, now)
            refuse_over(db, tenant, quota)

        await self._write("put_records", put)

    async def get_record(self, tenant: str, collection: str, record_id: str) -> Record | None:
        return await self._one(SQL.get_record, (tenant, collection, record_id))

    async def find_record(self, tenant: str, collection: str, unique_key: str) -> Record | None:
        return await self._one(SQL.find_record, (tenant, collection, unique_key))

    async def list_records(
        self,
        tenant: str,
        collection: str,
        *,
        limit: int,
        after: str | None = None,
        text: str | None = None,
    ) -> list[Record]:
        asked = {
            "tenant": tenant,
            "collection": collection,
            "limit": limit,
            "after": after,
            "text": None if text is None else text.casefold(),
        }
        found = await self._read(lambda db: rows(db, SQL.list_records, asked))
        return [read_record(row) for row in found]

    async def delete_record(self, tenant: str, collection: str, record_id: str) -> bool:
        named = (tenant, collection, record_id)
        return await self._write("delete_record", lambda db: changes(db, SQL.delete_record, named) > 0)

    async def _one(self, statement: str, bindings: Any) -> Record | None:
        row = await self._read(lambda db: db.execute(statement, bindings).fetchone())
        return None if row is None else read_record(row)


def put_record(db: apsw.Connection, tenant: str, write: RecordWrite, now: float) -> None:
    """Raises `RecordExists` when another record has the unique key."""
    if write.unique_key is not None:
        holder = value(db, SQL.unique_holder, (tenant, write.collection, write.unique_key, write.id))
        if holder is not None:
            raise RecordExists(write.collection, write.unique_key, holder)
    db.execute(
        SQL.put_record,
        {
            "tenant": tenant,
            "collection": write.collection,
            "id": write.id,
            "body": write.body,
            "unique_key": write.unique_key,
            "text": write.text,
            "folded": None if write.text is None else write.text.casefold(),
            "job_id": write.job_id,
            "now": now,
        },
    )
