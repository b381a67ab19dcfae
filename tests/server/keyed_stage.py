"""A door with keys for a served gateway: a real store of its own, in real time."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.core.access import AccessTerms, issue
from headgate.core.key_text import RANDOM_BYTES
from headgate.core.ports.store import Store
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id
from headgate.server.access import KeyedAccess
from headgate.stores.sqlite import SqliteStore


@dataclass
class KeyedDoor:
    access: KeyedAccess
    store: Store

    async def key(self, **terms: Any) -> str:
        """The text of a new key, known at once."""
        issued = issue(
            AccessTerms(**{"name": random_id(), **terms}),
            key_id=f"key_{random_id()}",
            random=os.urandom(RANDOM_BYTES),
            secret=self.store.secret,
            now=SystemClock().utc(),
        )
        await self.store.add_access_key(issued.kept)
        await self.access.refresh()
        return issued.text


@asynccontextmanager
async def keyed_door() -> AsyncIterator[KeyedDoor]:
    """For `opened(settings, access=door.access)`."""
    clock = SystemClock()
    store = SqliteStore(Path("keys.db"), clock=clock, new_id=random_id)
    await store.open()
    access = KeyedAccess(store, clock)
    await access.start()
    try:
        yield KeyedDoor(access, store)
    finally:
        await access.aclose()
        await store.aclose()
