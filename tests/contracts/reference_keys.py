"""The reference's other half: keys, records and nodes in plain dictionaries."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from headgate.core.errors import RecordExists
from headgate.core.idempotency import HeldKey, KeyClaim, KeyRow, KeyState, Run, Unknown, Verdict, decide
from headgate.core.record import RecordWrite


class Node(NamedTuple):
    beat: int = 0
    gone: str | None = None


class KeysAndRecords:
    """`core.ports.keys` and `core.ports.records`, without `async`."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.keys: dict[tuple[str, str, str], KeyRow] = {}
        self.records: dict[tuple[str, str, str], RecordWrite] = {}

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        before = self.snapshot()
        try:
            yield
        except Exception:
            self.__dict__.update(before)
            raise

    def snapshot(self) -> dict[str, Any]:
        return {"nodes": {**self.nodes}, "keys": {**self.keys}, "records": {**self.records}}

    def lives(self, node: str | None) -> bool:
        return node in self.nodes and self.nodes[node].gone is None

    # ---- Keys -------------------------------------------------------------------------------------------

    def reserve(self, tenant: str, claim: KeyClaim, *, node: str, unknown: Unknown, now: float) -> Verdict:
        row = self.keys.get((tenant, claim.endpoint, claim.key))
        lives = row is not None and row.owner != node and self.lives(row.owner)
        verdict = self.judge(tenant, claim, lives=lives, unknown=unknown, now=now)
        if isinstance(verdict, Run):
            self.keep(tenant, claim, KeyState.RESERVED, verdict.lease, owner=node)
        return verdict

    def judge(self, tenant: str, claim: KeyClaim, *, lives: bool, unknown: Unknown, now: float) -> Verdict:
        row = self.keys.get((tenant, claim.endpoint, claim.key))
        return decide(row, claim.request_hash, owner_lives=lives, unknown=unknown, now=now)

    def keep(self, tenant: str, claim: KeyClaim, state: KeyState, lease: int, **rest: Any) -> None:
        usual: dict[str, Any] = {
            "owner": None,
            "request_hash": claim.request_hash,
            "expires_at": claim.expires_at,
        }
        self.keys[tenant, claim.endpoint, claim.key] = KeyRow(state=state, lease=lease, **{**usual, **rest})

    def _change(self, tenant: str, claim: KeyClaim, lease: int, states: set[KeyState], **new: Any) -> bool:
        name = (tenant, claim.endpoint, claim.key)
        row = self.keys.get(name)
        if row is None or row.lease != lease or row.state not in states:
            return False
        self.keys[name] = msgspec.structs.replace(row, **new)
        return True

    def mark_sent(self, tenant: str, claim: KeyClaim, lease: int) -> bool:
        return self._change(tenant, claim, lease, {KeyState.RESERVED, KeyState.SENT}, state=KeyState.SENT)

    def finish(self, tenant: str, claim: KeyClaim, lease: int, *, status: int, body: bytes) -> bool:
        done = {"state": KeyState.DONE, "owner": None, "response_status": status, "response_body": body}
        first = self._change(tenant, claim, lease, {KeyState.RESERVED, KeyState.SENT}, **done)
        return first or self._change(tenant, claim, lease, {KeyState.DONE})

    def keep_answer(self, tenant: str, claim: KeyClaim, *, status: int, body: bytes, now: float) -> Verdict:
        verdict = self.judge(tenant, claim, lives=True, unknown=Unknown.RERUN, now=now)
        if isinstance(verdict, Run):
            answer = {"response_status": status, "response_body": body}
            self.keep(tenant, claim, KeyState.DONE, verdict.lease, **answer)
        return verdict

    def free(self, tenant: str, claim: KeyClaim, lease: int) -> bool:
        free = self._change(tenant, claim, lease, {KeyState.RESERVED, KeyState.SENT})
        if free:
            del self.keys[tenant, claim.endpoint, claim.key]
        return free

    def held_keys(self, node: str) -> list[HeldKey]:
        return [
            HeldKey(
                tenant=tenant,
                claim=KeyClaim(
                    endpoint=endpoint, key=key, request_hash=row.request_hash, expires_at=row.expires_at
                ),
                lease=row.lease,
            )
            for (tenant, endpoint, key), row in self.keys.items()
            if row.owner == node
        ]

    # ---- Records ----------------------------------------------------------------------------------------

    def put_records(self, tenant: str, writes: Sequence[RecordWrite], *, now: float) -> None:
        with self.all_or_nothing():
            for write in writes:
                for (owner, collection, name), other in self.records.items():
                    same = (owner, collection, other.unique_key) == (
                        tenant,
                        write.collection,
                        write.unique_key,
                    )
                    if same and write.unique_key is not None and name != write.id:
                        raise RecordExists(collection, str(write.unique_key), name)
                self.records[tenant, write.collection, write.id] = write

    def delete_record(self, tenant: str, collection: str, record_id: str) -> bool:
        return self.records.pop((tenant, collection, record_id), None) is not None
