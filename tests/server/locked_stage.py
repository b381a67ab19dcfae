"""A served gateway whose door asks for keys, and a client that brings them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from server.http.front_stage import Answer, Wire
from server.stage import House, opened

from headgate.core.access import AccessTerms
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id
from headgate.runner.access_keys import AccessKeys
from headgate.server.access import KeyedAccess
from headgate.stores.postgres import PostgresStore
from headgate.stores.sqlite import SqliteStore

CHAT: Final = "/v1/chat/completions"
BODY: Final = {"model": "simulated/instant", "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Locked:
    """A gateway with keys."""

    house: House
    access: KeyedAccess
    keys: AccessKeys

    async def key(self, **terms: Any) -> str:
        issued = await self.keys.create(AccessTerms(**{"name": "app", **terms}))
        await self.access.refresh()
        return issued.text

    async def get(self, path: str, *headers: str) -> Answer:
        return await self.ask("GET", path, None, *headers)

    async def post(self, path: str, body: Any, *headers: str) -> Answer:
        return await self.ask("POST", path, body, *headers)

    async def chat(self, key: str, *headers: str, **changes: Any) -> Answer:
        return await self.post(CHAT, {**BODY, **changes}, f"Authorization: Bearer {key}", *headers)

    async def ask(self, method: str, path: str, body: Any, *headers: str) -> Answer:
        """A request with this body: as it is if it is bytes, none if it is None, else as JSON."""
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        length = [] if body is None else [f"Content-Length: {len(sent)}"]
        lines = [f"{method} {path} HTTP/1.1", "Host: a", *length, *headers, "", ""]
        return await self._send("\r\n".join(lines).encode() + sent)

    async def _send(self, request: bytes) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.house.port)
        try:
            return await asyncio.wait_for(Wire(reader, writer).ask(request), 10)
        finally:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def locked(**settings: Any) -> AsyncIterator[Locked]:
    """The door reads the keys from the gateway's own database, as another process would.

    `work`, `tasks`, `mount`, `limits` and `alerts` are the house's; everything else is settings, with `bounds` as
    their `limits`.
    """
    house = {
        name: settings.pop(name)
        for name in ("work", "tasks", "mount", "limits", "alerts")
        if name in settings
    }
    if "bounds" in settings:
        settings["limits"] = settings.pop("bounds")
    clock = SystemClock()
    store = _store(str(settings.get("database", "sqlite")), clock)
    await store.open()
    access = KeyedAccess(store, clock)
    await access.start()
    try:
        async with opened({"data_dir": "data", **settings}, access=access, **house) as opened_house:
            yield Locked(opened_house, access, AccessKeys(opened_house.gateway.durable, random_id))
    finally:
        await access.aclose()
        await store.aclose()


def _store(database: str, clock: Clock) -> Store:
    if database == "sqlite":
        return SqliteStore(Path("data/headgate.db"), clock=clock, new_id=random_id)
    return PostgresStore(database, clock=clock, new_id=random_id)


def path_of(route: str, **ids: str) -> tuple[str, str]:
    """The method of a route and a path that leads there."""
    method, path = route.split()
    for name, value in {"name:path": "simulated", **ids}.items():
        path = path.replace(f"{{{name}}}", value)
    return method, path
