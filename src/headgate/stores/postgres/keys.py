"""Idempotency keys of direct calls, on PostgreSQL."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from headgate.core.idempotency import HeldKey, KeyClaim, KeyRow, KeyState, Run, Unknown, Verdict, decide
from headgate.stores.postgres.base import SQL, Verbs, refuse_over
from headgate.stores.postgres.database import Connection
from headgate.stores.rows import read_held_key

KeyName: TypeAlias = tuple[str, str, str]
"""(tenant, endpoint, key)."""


class KeyVerbs(Verbs):
    """`core.ports.keys.Keys`."""

    secret: bytes

    async def reserve(
        self,
        tenant: str,
        claim: KeyClaim,
        *,
        node: str,
        unknown: Unknown,
        now: float,
        quota: int | None = None,
    ) -> Verdict:
        name = (tenant, claim.endpoint, claim.key)
        fresh = (claim.request_hash, int(now * 1e6), node, now, claim.expires_at, quota)

        async def look(connection: Connection) -> Verdict | None:
            row = await connection.fetchrow(SQL.lock_key, *name)
            if row is None:
                # Gone meanwhile, or there is no room for one byte: the size of the answer is not known yet.
                await refuse_over(connection, tenant, quota, more=1)
                return None
            known = _key(row)
            # What this node holds but nobody in it works on is free: who does would have shared it.
            lives = row[8] and known.owner != node
            verdict = decide(known, claim.request_hash, owner_lives=lives, unknown=unknown, now=now)
            if isinstance(verdict, Run):
                await refuse_over(connection, tenant, quota, more=1)
                await connection.execute(SQL.retake_key, *name, verdict.lease, node, now, claim.expires_at)
            return verdict

        while True:
            # The usual key is new: one statement. A known one is looked at while it is held; gone meanwhile, anew.
            taken = await self._database.write("reserve", SQL.reserve_key, *name, *fresh)
            if taken:
                return Run(taken[0][0])
            verdict = await self._database.transact("reserve", look)
            if verdict is not None:
                return verdict

    async def mark_sent(self, tenant: str, claim: KeyClaim, lease: int) -> bool:
        fenced = (tenant, claim.endpoint, claim.key, lease)
        return bool(await self._database.write("mark_sent", SQL.mark_sent, *fenced, again=True))

    async def finish(self, tenant: str, claim: KeyClaim, lease: int, *, status: int, body: bytes) -> bool:
        fenced = (tenant, claim.endpoint, claim.key, lease)
        return bool(
            await self._database.write("finish_key", SQL.finish_key, *fenced, status, body, again=True)
        )

    async def keep_answer(
        self, tenant: str, claim: KeyClaim, *, status: int, body: bytes, now: float
    ) -> Verdict:
        name = (tenant, claim.endpoint, claim.key)
        answer = (claim.request_hash, int(now * 1e6), now, claim.expires_at, status, body)
        while True:
            taken = await self._database.write("keep_answer", SQL.keep_answer, *name, *answer)
            if taken:
                return Run(taken[0][0])
            rows = await self._database.read(SQL.find_key, *name)
            known = _key(rows[0]) if rows else None
            verdict = decide(known, claim.request_hash, owner_lives=True, unknown=Unknown.RERUN, now=now)
            if not isinstance(verdict, Run):  # Else it was purged or has expired since.
                return verdict

    async def free(self, tenant: str, claim: KeyClaim, lease: int) -> bool:
        fenced = (tenant, claim.endpoint, claim.key, lease)
        return bool(await self._database.write("free_key", SQL.free_key, *fenced, again=True))

    async def held_keys(self, node: str) -> list[HeldKey]:
        rows = await self._database.read(SQL.held_keys, node)
        return [read_held_key(row) for row in rows]


def _key(row: Sequence[Any]) -> KeyRow:
    return KeyRow(
        state=KeyState(row[0]),
        request_hash=row[1],
        lease=row[2],
        owner=row[3],
        expires_at=row[4],
        job_id=row[5],
        response_status=row[6],
        response_body=row[7],
    )
