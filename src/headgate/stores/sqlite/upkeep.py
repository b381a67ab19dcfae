"""Rescue, expire, revive, prune, purge, on SQLite."""

from collections.abc import Sequence
from typing import Any

import apsw

from headgate.core.job import Claim, Ended, Entry, FollowUps, Lost, nothing_follows
from headgate.stores.rows import entry_line, read_claim, read_expired, read_lost
from headgate.stores.sqlite.base import SQL, Verbs, changes, rows
from headgate.stores.sqlite.jobs import accept_job

_COOL_AGAIN_S = 60.0


class UpkeepVerbs(Verbs):
    """`core.ports.upkeep.Upkeep`."""

    async def lost(self, *, limit: int) -> list[Lost]:
        found = await self._read(lambda db: rows(db, SQL.lost, (limit,)))
        return [read_lost(row) for row in found]

    async def forget_nodes(self) -> int:
        return await self._write("forget_nodes", lambda db: changes(db, SQL.forget_nodes))

    async def uncancelled(self, *, before: float, limit: int) -> list[Claim]:
        asked = {"before": before, "limit": limit}
        return [read_claim(row) for row in await self._read(lambda db: rows(db, SQL.uncancelled, asked))]

    async def expire(self, *, now: float, limit: int, follow_ups: FollowUps = nothing_follows) -> list[Ended]:
        entry = entry_line(Entry(outcome="expired", at=now, kind="expired"))
        asked = {"now": now, "limit": limit, "entry": entry}

        def expire(db: apsw.Connection) -> tuple[list[Ended], int]:
            ended = [read_expired(row, now) for row in rows(db, SQL.expire, asked)]
            following = [job for one in ended for job in follow_ups(one)]
            for job in following:
                accept_job(db, job, now)
            return ended, len(following)

        ended, followed = await self._write("expire", expire)
        if followed:
            self._ring()
        return ended

    async def revivable(self, *, now: float, limit: int) -> list[tuple[str, str]]:
        return await self._read(lambda db: rows(db, SQL.revivable, (now, limit)))

    async def revive(self, job_ids: Sequence[str], *, now: float, expires_after_s: float) -> int:
        entry = entry_line(Entry(outcome="revived", at=now))
        asked = {
            "now": now,
            "later": now + _COOL_AGAIN_S,
            "expires_at": now + expires_after_s,
            "entry": entry,
        }
        revived = await self._write(
            "revive", lambda db: sum(_revive(db, {**asked, "id": job_id}) for job_id in job_ids)
        )
        if revived:
            self._ring()
        return revived

    async def cool(self, job_ids: Sequence[str], *, until: float) -> int:
        def cool(db: apsw.Connection) -> int:
            return sum(changes(db, SQL.cool_again, {"later": until, "id": job_id}) for job_id in job_ids)

        return await self._write("cool", cool)

    async def prune(self, *, before: float, limit: int) -> int:
        def prune(db: apsw.Connection) -> int:
            gone = rows(db, SQL.prune_jobs, {"before": before, "limit": limit})
            for seq, job_id in gone:
                db.execute(SQL.drop_input, (seq,))
                db.execute(SQL.drop_steps, (job_id,))
            return len(gone)

        return await self._write("prune", prune)

    async def prune_files(self, *, before: str, limit: int) -> int:
        asked = {"before": before, "limit": limit}
        return await self._write("prune_files", lambda db: changes(db, SQL.prune_files, asked))

    async def purge_keys(self, *, now: float, limit: int) -> int:
        asked = {"now": now, "limit": limit}
        return await self._write("purge_keys", lambda db: changes(db, SQL.purge_keys, asked))


def _revive(db: apsw.Connection, asked: dict[str, Any]) -> int:
    if changes(db, SQL.revive_job, asked):
        return 1
    db.execute(SQL.cool_again, asked)
    return 0
