"""A site on loopback, a served gateway with bookmarks mounted, and a client with an opinion about keys."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar

import httpx

import headgate
from headgate import wiring
from headgate.providers.simulated import SimulatedProvider
from headgate.wiring.serving import Served, serve

T = TypeVar("T")
DESCRIPTION: Final = {
    "title": "Gates and their heads",
    "summary": "A headgate lets in as much water as the canal can carry, and no more. The page tells how one is built,"
    " who tends it, and what happens to the fields below when it fails.",
    "category": "tech",
    "tags": ["water", "gates"],
    "language": "en",
}
ANSWER: Final = json.dumps(DESCRIPTION)
TEXT: Final = "A headgate lets in as much water as the canal can carry, and no more.\n" * 10
PATIENCE_S: Final = 20.0
AT_WORK: Final = frozenset({"processing", "retrying"})


def simulated(**options: Any) -> dict[str, Any]:
    """A model that keeps to the contract, unless told otherwise."""
    upstream = {
        "provider": "simulated",
        "latency_s": 0,
        "outcome": {"outcome": "ok", "content": ANSWER},
        **options,
    }
    return {"m": {"upstreams": [upstream]}}


def answer(
    body: bytes, *, status: int = 200, kind: str = "text/plain", headers: Mapping[str, str] | None = None
) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


@dataclass
class Site:
    """Pages by path; every other path is a page of text. Counts what it was asked for."""

    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    port: int = 0

    def url(self, path: str = "/page") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        self.asked.append(path)
        writer.write(self.pages.get(path, answer(TEXT.encode())))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def a_site(**pages: bytes) -> AsyncIterator[Site]:
    site = Site({f"/{name}": page for name, page in pages.items()})
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()
        await server.wait_closed()


@dataclass
class Shop:
    """A served gateway and one who uses it."""

    served: Served
    http: httpx.AsyncClient
    _keys: Any = field(default_factory=lambda: count(1))

    @property
    def gateway(self) -> headgate.Gateway:
        return self.served.gateway

    @property
    def provider(self) -> SimulatedProvider:
        found = self.gateway.routes.find("m").upstreams[0].provider
        assert isinstance(found, SimulatedProvider)
        return found

    async def save(self, url: str, *, key: str | None = None, **fields: Any) -> httpx.Response:
        headers = {"idempotency-key": key or f"key {next(self._keys)}"}
        return await self.http.post("/v1/bookmarks", json={"url": url, **fields}, headers=headers)

    async def get(self, bookmark_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.get(f"/v1/bookmarks/{bookmark_id}")).json()
        return found

    async def list(self, **query: Any) -> dict[str, Any]:
        answered = await self.http.get("/v1/bookmarks", params=query)
        assert answered.status_code == 200, answered.text
        listed: dict[str, Any] = answered.json()
        return listed

    async def settled(self, bookmark_id: str) -> dict[str, Any]:
        """The bookmark once nothing is at work on it."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := await self.get(bookmark_id))["status"] in AT_WORK:
                await self.gateway.jobs.wait(found["job_id"], timeout=PATIENCE_S)
        return found

    async def saved(self, url: str, **fields: Any) -> dict[str, Any]:
        """Save it, and wait until it is described or has failed."""
        response = await self.save(url, **fields)
        assert response.status_code in {200, 201}, response.text
        return await self.settled(response.json()["id"])


@asynccontextmanager
async def a_shop(*, work: bool = True, **settings: Any) -> AsyncIterator[Shop]:
    """`models`, `apps` and everything else as in the settings."""
    file = {
        "data_dir": "data",
        "listen": "127.0.0.1:0",
        "models": simulated(),
        "apps": {"bookmarks": {"model": "m", "allow_private": True}},
        "limits": {"drain_s": 1},
        **settings,
    }
    async with (
        serve(wiring.read_settings(file, env={}), work=work) as served,
        httpx.AsyncClient(base_url=served.url, timeout=PATIENCE_S) as http,
    ):
        yield Shop(served, http)


async def until(reached: Callable[[], Awaitable[T | None]]) -> T:
    """Look again and again, in real time: what is waited for happens in a worker, or on a clock of its own."""
    async with asyncio.timeout(PATIENCE_S):
        while (found := await reached()) is None:  # noqa: ASYNC110 - there is nothing to wait for but time
            await asyncio.sleep(0.01)
    return found


def fetching(text: str = TEXT, *, asked: list[str] | None = None) -> Callable[..., Awaitable[Any]]:
    """A network that always gives this text, for tests in virtual time."""

    async def fetch(url: str, rules: headgate.FetchRules) -> headgate.Fetched:
        if asked is not None:
            asked.append(url)
        headers: Any = {"content-type": "text/plain"}
        return headgate.Fetched(url, 200, headers, text.encode())

    return fetch
