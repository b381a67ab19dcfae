"""The floor of free disk, and with it the bound for new durable work: what a tenant may store, or nothing more."""

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from headgate.core.errors import QuotaExceeded, StoreUnavailable
from headgate.core.ports.clock import Clock

logger = logging.getLogger("headgate")
LOOK_EVERY_S: Final = 2.0
RETRY_AFTER_S: Final = 30.0
_REFUSED: Final = (
    "new jobs, files, batches and calls with an idempotency key are refused. Make room, or lower the limit"
)
_PUBLIC: Final = (
    "the gateway's disk is nearly full: new jobs, files, batches and calls with an idempotency key are refused until"
    " an operator makes room; calls without a key are served"
)


class Disk:
    """A folder's file system: whether less is free than must be. Looked at every few seconds at most."""

    def __init__(self, folder: Path, *, min_free_bytes: int, clock: Clock) -> None:
        """With a floor of 0 it is never looked at."""
        self._folder = folder.absolute()
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._looked_at = -math.inf
        self._free_bytes: int | None = None
        self._looking = asyncio.Lock()
        self._low = False

    async def low(self) -> StoreUnavailable | None:
        """Why nothing new may be stored here; None while there is room."""
        if not self._min_free_bytes:
            return None
        if self._is_old():
            async with self._looking:
                if self._is_old():
                    await self._look()
        if not self._low:
            return None
        error = StoreUnavailable(f"{self._words()}: {_REFUSED}", retry_after_s=RETRY_AFTER_S)
        error.public = _PUBLIC
        return error

    async def check(self) -> None:
        if (low := await self.low()) is not None:
            raise low

    def _is_old(self) -> bool:
        return self._clock.now() - self._looked_at >= LOOK_EVERY_S

    async def _look(self) -> None:
        with self._clock.outside():
            self._free_bytes = await asyncio.to_thread(_free_bytes, self._folder)
        self._looked_at = self._clock.now()
        before, self._low = (
            self._low,
            self._free_bytes is not None and self._free_bytes < self._min_free_bytes,
        )
        if self._low and not before:
            logger.warning("%s: new durable work is refused", self._words())
        elif before and not self._low:
            logger.warning("%s has room again: new durable work is accepted", self._folder)

    def _words(self) -> str:
        return (
            f"{self._folder} has {self._free_bytes or 0:,} bytes free, less than limits.min_free_bytes"
            f" ({self._min_free_bytes:,})"
        )


class Quota:
    """The bytes that a tenant may store, or none more while the disk is nearly full."""

    def __init__(self, tenant_bytes: int, disk: Disk) -> None:
        self.tenant_bytes = tenant_bytes
        self.disk = disk

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[int]:
        """The quota for a verb of the store. Below the floor it is 0: then only repeats of what is stored succeed."""
        low = await self.disk.low()
        try:
            yield self.tenant_bytes if low is None else 0
        except QuotaExceeded:
            if low is None:
                raise
            raise low from None


def _free_bytes(folder: Path) -> int | None:
    """Of the nearest folder that is there; None where the system does not say: then the store will."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        found = os.statvfs(there)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
