"""Applications' records, on PostgreSQL."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from headgate.core.errors import RecordExists
from headgate.core.record import Record, RecordWrite
from headgate.stores.postgres.base import SQL, Verbs, refuse_over, sayable, sayable_or_none
from headgate.stores.postgres.columns import columns
from headgate.stores.postgres.database import Connection
from headgate.stores.rows import read_record


class Writing(NamedTuple):
    """A record on its way in. `at` is the database's time."""

    tenant: str
    write: RecordWrite
    at: float


class RecordVerbs(Verbs):
    """`core.ports.records.Records`."""

    async def put_records(
        self, tenant: str, writes: Sequence[RecordWrite], *, now: float, quota: int | None = None
    ) -> None:
        writings = [Writing(tenant, write, now) for write in writes]

        async def put(connection: Connection) -> None:
            await put_records(connection, writings)
            await refuse_over(connection, tenant, quota)

        await self._database.transact("put_records", put)

    async def get_record(self, tenant: str, collection: str, record_id: str) -> Record | None:
        return await self._one(SQL.get_record, tenant, collection, sayable(record_id))

    async def find_record(self, tenant: str, collection: str, unique_key: str) -> Record | None:
        return await self._one(SQL.find_record, tenant, collection, unique_hash(unique_key))

    async def list_records(
        self,
        tenant: str,
        collection: str,
        *,
        limit: int,
        after: str | None = None,
        text: str | None = None,
    ) -> list[Record]:
        folded = None if text is None else sayable(text.casefold())
        rows = await self._database.read(SQL.list_records, tenant, collection, after, folded, limit)
        return [read_record(row) for row in rows]

    async def delete_record(self, tenant: str, collection: str, record_id: str) -> bool:
        asked = (tenant, collection, sayable(record_id))
        return bool(await self._database.write("delete_record", SQL.delete_record, *asked))

    async def _one(self, statement: str, *arguments: object) -> Record | None:
        rows = await self._database.read(statement, *arguments)
        return read_record(rows[0]) if rows else None


def unique_hash(unique_key: str | None) -> bytes | None:
    """What the index knows of a unique key: an address may be longer than an index entry can be."""
    return None if unique_key is None else hashlib.sha256(unique_key.encode()).digest()


# ---- Inside the transaction -----------------------------------------------------------------------------


async def put_records(connection: Connection, writings: Sequence[Writing]) -> None:
    """As if one after the other. Raises `RecordExists` when another record has a unique key."""
    if not writings:
        return
    if _are_apart(writings) and not await _holders(connection, writings):
        await _put(connection, writings)
        return
    # Who holds a key may let go of it just before its next owner comes: only the order tells.
    for writing in writings:
        for holder in (await _holders(connection, [writing])).values():
            raise RecordExists(writing.write.collection, writing.write.unique_key or "", holder)
        await _put(connection, [writing])


def _are_apart(writings: Sequence[Writing]) -> bool:
    ids = {(one.tenant, one.write.collection, one.write.id) for one in writings}
    keyed = [one for one in writings if one.write.unique_key is not None]
    keys = {(one.tenant, one.write.collection, one.write.unique_key) for one in keyed}
    return len(ids) == len(writings) and len(keys) == len(keyed)


async def _holders(connection: Connection, writings: Sequence[Writing]) -> dict[int, str]:
    wanted = [
        (number, one.tenant, one.write.collection, one.write.id, unique_hash(one.write.unique_key))
        for number, one in enumerate(writings)
        if one.write.unique_key is not None
    ]
    return dict(await connection.fetch(SQL.unique_holders, *columns(wanted))) if wanted else {}


async def _put(connection: Connection, writings: Sequence[Writing]) -> None:
    in_order = sorted(writings, key=lambda one: (one.tenant, one.write.collection, one.write.id))
    await connection.execute(SQL.put_records, *columns(map(_row, in_order)))


def _row(writing: Writing) -> tuple[object, ...]:
    """The order of the statement `put_records`."""
    write = writing.write
    return (
        writing.tenant,
        write.collection,
        write.id,
        write.body,
        sayable_or_none(write.unique_key),
        unique_hash(write.unique_key),
        sayable_or_none(write.text),
        None if write.text is None else sayable(write.text.casefold()),
        write.job_id,
        writing.at,
    )
