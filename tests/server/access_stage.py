"""A door with keys over a real store, in virtual time."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.core.access import AccessKey, AccessTerms, Action, issue
from headgate.core.key_text import RANDOM_BYTES
from headgate.core.ports.store import Store
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.server.access import Caller, KeyedAccess
from headgate.stores.sqlite import SqliteStore

_numbers = itertools.count(1)


def bearer(text: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + text.encode())]


async def make_key(store: Store, world: World, **terms: Any) -> tuple[str, AccessKey]:
    """A key in the store: its text, and what may be shown of it."""
    number = next(_numbers)
    issued = issue(
        AccessTerms(**{"name": f"app {number}", **terms}),
        key_id=f"key_{number}",
        random=number.to_bytes(RANDOM_BYTES),
        secret=store.secret,
        now=world.clock.utc(),
    )
    await store.add_access_key(issued.kept)
    return issued.text, issued.kept.key


@dataclass
class Door:
    """A gateway's door, and another process on the same database."""

    world: World
    access: KeyedAccess
    store: Store
    elsewhere: Store
    texts: list[str] = field(default_factory=list)

    async def key(self, **terms: Any) -> str:
        """A key that this process knows at once."""
        text, _ = await make_key(self.store, self.world, **terms)
        await self.access.refresh()
        self.texts.append(text)
        return text

    def admit(self, text: str, action: Action = Action.CALL) -> Caller:
        return self.access.admit(bearer(text), action)

    async def revoke_elsewhere(self, text: str) -> None:
        [kept] = [kept for kept in await self.elsewhere.access_keys() if text.endswith(kept.key.last_four)]
        assert await self.elsewhere.revoke_access_key(kept.key.id, now=self.world.clock.utc().timestamp())


Make = Callable[[World], Store]


@asynccontextmanager
async def opened(world: World, make: Make) -> AsyncIterator[Door]:
    store, elsewhere = make(world), make(world)
    await store.open()
    await elsewhere.open()
    access = KeyedAccess(store, world.clock)
    await access.start()
    try:
        yield Door(world, access, store, elsewhere)
    finally:
        await access.aclose()
        await store.aclose()
        await elsewhere.aclose()


def sqlite(folder: Path) -> Make:
    return lambda world: SqliteStore(
        folder / "keys.db", clock=world.clock, new_id=lambda: f"store-{next(_numbers)}"
    )


def at_the_door(make: Make, test: Callable[[Door], Awaitable[None]]) -> None:
    """Run the test in virtual time, at an open door."""

    async def main(world: World) -> None:
        async with opened(world, make) as door:
            await test(door)

    virtual.run(main)
