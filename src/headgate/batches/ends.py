"""Who ends a batch: whoever asks to cancel it, or its job because all lines have ended. The first one counts.

Both write a record under one unique key, so the store lets only one of them through.
"""

from typing import Final

from headgate.core.errors import RecordExists
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store
from headgate.runner.payloads import record

COLLECTION: Final = "batch_ends"
_CANCEL: Final = "cancel"
_FINISH: Final = "finish"


class Ends:
    """One mark per batch, until its job has taken note of it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def cancel(self, batch_id: str, tenant: str) -> bool:
        """False when its lines have ended already."""
        return await self._mark(batch_id, tenant, _CANCEL)

    async def finish(self, batch_id: str, tenant: str) -> bool:
        """False when somebody asked to cancel it before."""
        return await self._mark(batch_id, tenant, _FINISH)

    async def cancelled_at(self, batch_id: str, tenant: str) -> float | None:
        found = await self._store.get_record(tenant, COLLECTION, f"{batch_id}.{_CANCEL}")
        return None if found is None else float(found.body["at"])

    async def forget(self, batch_id: str, tenant: str) -> None:
        for mark in (_CANCEL, _FINISH):
            await self._store.delete_record(tenant, COLLECTION, f"{batch_id}.{mark}")

    async def _mark(self, batch_id: str, tenant: str, mark: str) -> bool:
        now = self._clock.utc().timestamp()
        write = record(COLLECTION, f"{batch_id}.{mark}", {"at": now}, unique_key=batch_id)
        try:
            await self._store.put_records(tenant, [write], now=now)
        except RecordExists:
            return False
        return True
