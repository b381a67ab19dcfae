"""Rescue, expire, revive, prune, purge, on PostgreSQL. Bites skip what others hold: two nodes never wait in line."""

from collections.abc import Sequence
from typing import Final

from headgate.core.job import Claim, Ended, Entry, FollowUps, Lost, nothing_follows
from headgate.stores.postgres.accepting import Call, accept_calls
from headgate.stores.postgres.base import SQL, Verbs
from headgate.stores.postgres.database import Connection
from headgate.stores.rows import entry_line, read_claim, read_expired, read_lost

_COOL_AGAIN_S: Final = 60.0


class UpkeepVerbs(Verbs):
    """`core.ports.upkeep.Upkeep`."""

    async def lost(self, *, limit: int) -> list[Lost]:
        return [read_lost(row) for row in await self._database.read(SQL.lost, limit)]

    async def forget_nodes(self) -> int:
        return len(await self._database.write("forget_nodes", SQL.forget_nodes))

    async def uncancelled(self, *, before: float, limit: int) -> list[Claim]:
        rows = await self._database.read(SQL.uncancelled, before, limit)
        return [read_claim(row) for row in rows]

    async def expire(self, *, now: float, limit: int, follow_ups: FollowUps = nothing_follows) -> list[Ended]:
        entry = entry_line(Entry(outcome="expired", at=now, kind="expired"))

        async def expire(connection: Connection) -> tuple[list[Ended], int]:
            ended = [read_expired(row, now) for row in await connection.fetch(SQL.expire, now, limit, entry)]
            following = [job for one in ended for job in follow_ups(one)]
            if following:
                await accept_calls(connection, [Call(following, now)])
            return ended, len(following)

        ended, followed = await self._database.transact("expire", expire)
        if followed:
            self._ring()
        return ended

    async def revivable(self, *, now: float, limit: int) -> list[tuple[str, str]]:
        rows = await self._database.read(SQL.revivable, now, limit)
        return [(row[0], row[1]) for row in rows]

    async def revive(self, job_ids: Sequence[str], *, now: float, expires_after_s: float) -> int:
        entry = entry_line(Entry(outcome="revived", at=now))
        times = (now, now + expires_after_s, now + _COOL_AGAIN_S)
        revived = await self._database.write("revive", SQL.revive_jobs, list(job_ids), *times, entry)
        if revived:
            self._ring()
        return len(revived)

    async def cool(self, job_ids: Sequence[str], *, until: float) -> int:
        cooled = await self._database.write("cool", SQL.cool_jobs, list(job_ids), until)
        return len(cooled)

    async def prune(self, *, before: float, limit: int) -> int:
        rows = await self._database.write("prune", SQL.prune_jobs, before, limit)
        return int(rows[0][0])

    async def prune_files(self, *, before: str, limit: int) -> int:
        return len(await self._database.write("prune_files", SQL.prune_files, before, limit))

    async def purge_keys(self, *, now: float, limit: int) -> int:
        rows = await self._database.write("purge_keys", SQL.purge_keys, now, limit)
        return int(rows[0][0])
