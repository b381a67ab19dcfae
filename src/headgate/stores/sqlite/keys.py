"""Idempotency keys, on SQLite."""

from typing import Any

import apsw

from headgate.core.idempotency import HeldKey, KeyClaim, KeyRow, KeyState, Run, Unknown, Verdict, decide
from headgate.stores.rows import read_held_key
from headgate.stores.sqlite.base import SQL, Verbs, changes, refuse_over, rows, value


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
        def reserve(db: apsw.Connection) -> Verdict:
            row = find_key(db, tenant, claim)
            # What this node holds but nobody in it works on is free: who does would have shared it.
            lives = row is not None and row.owner != node and value(db, SQL.lives, (row.owner,)) is not None
            verdict = decide(row, claim.request_hash, owner_lives=lives, unknown=unknown, now=now)
            if isinstance(verdict, Run):
                # The size of the answer is not known yet: there must be room for one byte.
                refuse_over(db, tenant, quota, more=1)
                take_key(
                    db,
                    tenant,
                    claim,
                    lease=verdict.lease,
                    state=KeyState.RESERVED,
                    owner=node,
                    job_id=None,
                    now=now,
                )
            return verdict

        return await self._write("reserve", reserve)

    async def mark_sent(self, tenant: str, claim: KeyClaim, lease: int) -> bool:
        return await self._mark("mark_sent", SQL.mark_sent, (tenant, claim.endpoint, claim.key, lease))

    async def finish(self, tenant: str, claim: KeyClaim, lease: int, *, status: int, body: bytes) -> bool:
        named = {"tenant": tenant, "endpoint": claim.endpoint, "key": claim.key, "lease": lease}
        return await self._mark("finish_key", SQL.finish_key, {**named, "status": status, "body": body})

    async def keep_answer(
        self, tenant: str, claim: KeyClaim, *, status: int, body: bytes, now: float
    ) -> Verdict:
        def keep(db: apsw.Connection) -> Verdict:
            row = find_key(db, tenant, claim)
            verdict = decide(row, claim.request_hash, owner_lives=True, unknown=Unknown.RERUN, now=now)
            if isinstance(verdict, Run):
                state = KeyState.RESERVED
                take_key(
                    db, tenant, claim, lease=verdict.lease, state=state, owner=None, job_id=None, now=now
                )
                named = {"tenant": tenant, "endpoint": claim.endpoint, "key": claim.key}
                db.execute(SQL.finish_key, {**named, "lease": verdict.lease, "status": status, "body": body})
            return verdict

        return await self._write("keep_answer", keep)

    async def free(self, tenant: str, claim: KeyClaim, lease: int) -> bool:
        return await self._mark("free_key", SQL.free_key, (tenant, claim.endpoint, claim.key, lease))

    async def held_keys(self, node: str) -> list[HeldKey]:
        return await self._read(lambda db: [read_held_key(row) for row in rows(db, SQL.held_keys, (node,))])

    async def _mark(self, verb: str, statement: str, bindings: Any) -> bool:
        return await self._write(verb, lambda db: changes(db, statement, bindings) > 0)


def find_key(db: apsw.Connection, tenant: str, claim: KeyClaim) -> KeyRow | None:
    row = db.execute(SQL.find_key, (tenant, claim.endpoint, claim.key)).fetchone()
    if row is None:
        return None
    state, request_hash, lease, owner, expires_at, job_id, status, body = row
    return KeyRow(
        state=KeyState(state),
        request_hash=request_hash,
        lease=lease,
        owner=owner,
        expires_at=expires_at,
        job_id=job_id,
        response_status=status,
        response_body=body,
    )


def take_key(
    db: apsw.Connection,
    tenant: str,
    claim: KeyClaim,
    *,
    lease: int,
    state: KeyState,
    owner: str | None,
    job_id: str | None,
    now: float,
) -> None:
    db.execute(
        SQL.take_key,
        {
            "tenant": tenant,
            "endpoint": claim.endpoint,
            "key": claim.key,
            "request_hash": claim.request_hash,
            "state": str(state),
            "lease": lease,
            "owner": owner,
            "job_id": job_id,
            "now": now,
            "expires_at": claim.expires_at,
        },
    )
