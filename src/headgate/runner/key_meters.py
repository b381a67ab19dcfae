"""What access keys have used lately: one meter per key for HTTP requests and for jobs. Keys are read from the store."""

import asyncio
from collections.abc import Hashable

from headgate.core.access import AccessKey
from headgate.core.errors import StoreUnavailable
from headgate.core.metering import Meter
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store

REFRESH_S = 2.0


class KeyMeters:
    """What each access key has used in the last minute in this process: over HTTP, and in the jobs it submitted."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._meters: dict[str, Meter | None] = {}
        """None: the key was revoked."""
        self._marker: Hashable = None
        self._looked_at = -REFRESH_S
        self._looking = asyncio.Lock()

    def of(self, key: AccessKey) -> Meter:
        """The meter of a key that is in force."""
        meter = self._meters.get(key.id)
        if meter is None:
            meter = self._meters[key.id] = _meter(key)
        return meter

    async def find(self, key_id: str) -> Meter | None:
        """A job's, by the id of the key it was submitted with; None when that was revoked: nothing limits its jobs."""
        async with self._looking:
            now = self._clock.now()
            if key_id not in self._meters or now - self._looked_at >= REFRESH_S:
                await self._look()
                self._looked_at = now
                self._meters.setdefault(key_id, None)
        return self._meters[key_id]

    async def _look(self) -> None:
        try:
            marker = await self._store.access_marker()
            if marker == self._marker:
                return
            everyone = await self._store.access_keys()
        except StoreUnavailable:
            # What is known holds. What was never read cannot be told: the job comes back.
            if self._marker is None:
                raise
            return
        for key in (kept.key for kept in everyone):
            if key.revoked_at is not None:
                self._meters[key.id] = None
            else:
                self.of(key)
        self._marker = marker


def _meter(key: AccessKey) -> Meter:
    return Meter(requests=key.requests_per_minute, tokens=key.tokens_per_minute, parallel=key.parallel)
