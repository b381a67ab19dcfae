"""Keys for callers over HTTP, on SQLite."""

from collections.abc import Hashable

from headgate.core.access import KeptKey
from headgate.stores.access_rows import access_row, read_access_row
from headgate.stores.sqlite.base import SQL, Verbs, changes, rows


class AccessVerbs(Verbs):
    """`core.ports.access.AccessKeys`."""

    async def add_access_key(self, kept: KeptKey) -> None:
        row = access_row(kept)
        await self._write("add_access_key", lambda db: changes(db, SQL.add_access_key, row))

    async def access_keys(self, *, tenant: str | None = None) -> list[KeptKey]:
        found = await self._read(lambda db: rows(db, SQL.access_keys, {"tenant": tenant}))
        return [read_access_row(row) for row in found]

    async def revoke_access_key(self, key_id: str, *, now: float, tenant: str | None = None) -> bool:
        named = {"id": key_id, "now": now, "tenant": tenant}
        return await self._write(
            "revoke_access_key", lambda db: changes(db, SQL.revoke_access_key, named) > 0
        )

    async def access_marker(self) -> Hashable:
        (marker,) = await self._read(lambda db: rows(db, SQL.access_marker))
        return tuple(marker)
