"""Keys for callers over HTTP, on PostgreSQL."""

from collections.abc import Hashable

from headgate.core.access import KeptKey
from headgate.stores.access_rows import access_row, read_access_row
from headgate.stores.postgres.base import SQL, Verbs, sayable, sayable_or_none


class AccessVerbs(Verbs):
    """`core.ports.access.AccessKeys`."""

    async def add_access_key(self, kept: KeptKey) -> None:
        row = access_row(kept)
        await self._database.write("add_access_key", SQL.add_access_key, *row, again=True)

    async def access_keys(self, *, tenant: str | None = None) -> list[KeptKey]:
        found = await self._database.read(SQL.access_keys, sayable_or_none(tenant))
        return [read_access_row(row) for row in found]

    async def revoke_access_key(self, key_id: str, *, now: float, tenant: str | None = None) -> bool:
        named = (sayable(key_id), now, sayable_or_none(tenant))
        return bool(
            await self._database.write("revoke_access_key", SQL.revoke_access_key, *named, again=True)
        )

    async def access_marker(self) -> Hashable:
        (marker,) = await self._database.read(SQL.access_marker)
        return tuple(marker)
