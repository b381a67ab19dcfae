"""Stopping the lines of a batch, some at a time: others write to the store in between."""

import math
from typing import Final

from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store

BITE: Final = 500


class Stopping:
    """Lines that wait end at once. Those that run are marked, and told at their worker's next renewal."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def stop_all(self, batch_id: str, tenant: str) -> None:
        await self.stop_some(batch_id, tenant, within_s=math.inf)

    async def stop_some(self, batch_id: str, tenant: str, *, within_s: float) -> None:
        """As many as there is time for."""
        until = self._clock.now() + within_s
        while await self._bite(batch_id, tenant) and self._clock.now() < until:
            pass

    async def _bite(self, batch_id: str, tenant: str) -> int:
        now = self._clock.utc().timestamp()
        return await self._store.cancel_batch(batch_id, tenant=tenant, now=now, limit=BITE)
