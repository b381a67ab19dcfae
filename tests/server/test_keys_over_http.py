"""Keys at a real port: every route by role and carrier, limits and refusals as clients meet them, tenants apart."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from server.http.front_stage import Answer, Play, Wire
from server.stage import House, opened

from headgate.core.access import AccessTerms, Role
from headgate.core.ports.jobs import JobFilter
from headgate.dispatch.clock import SystemClock
from headgate.dispatch.ids import random_id
from headgate.runner.access_keys import AccessKeys
from headgate.server.access import KeyedAccess
from headgate.stores.sqlite import SqliteStore

BODY = {"model": "simulated/instant", "messages": [{"role": "user", "content": "hello"}]}
INFERENCE = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
OPEN = ("/health", "/health/live", "/health/ready", "/api/v1/health", "/openapi.json")
LOOKING = ("/v1/models", "/v1/models/simulated", "/v1/jobs/{job_id}")
WATCHING = ("/queue/status", "/metrics")
SETTINGS = {"data_dir": "data"}


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
        lines = [f"GET {path} HTTP/1.1", "Host: a", *headers, "", ""]
        return await self._ask("\r\n".join(lines).encode())

    async def post(self, path: str, body: Any, *headers: str) -> Answer:
        sent = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(sent)}", *headers, "", ""]
        return await self._ask("\r\n".join(lines).encode() + sent)

    async def chat(self, key: str, *headers: str, **changes: Any) -> Answer:
        return await self.post(INFERENCE[0], {**BODY, **changes}, f"Authorization: Bearer {key}", *headers)

    async def _ask(self, request: bytes) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.house.port)
        try:
            return await asyncio.wait_for(Wire(reader, writer).ask(request), 10)
        finally:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def locked() -> AsyncIterator[Locked]:
    """The door reads the keys from the gateway's own database, as another process would."""
    clock = SystemClock()
    store = SqliteStore(Path("data/headgate.db"), clock=clock, new_id=random_id)
    await store.open()
    access = KeyedAccess(store, clock)
    await access.start()
    try:
        async with opened(SETTINGS, access=access) as house:
            yield Locked(house, access, AccessKeys(house.gateway.durable, clock, random_id))
    finally:
        await access.aclose()
        await store.aclose()


@pytest.mark.parametrize(
    ("role", "may"),
    [
        (None, {*OPEN}),
        (Role.CALL, {*OPEN, *LOOKING, *INFERENCE}),
        (Role.READ, {*OPEN, *LOOKING, *WATCHING}),
        (Role.OPERATE, {*OPEN, *LOOKING, *WATCHING, *INFERENCE}),
    ],
)
@pytest.mark.parametrize("carrier", ["Authorization: Bearer {}", "x-api-key: {}"])
def test_every_route_asks_for_its_role(play: Play, role: Role | None, may: set[str], carrier: str) -> None:
    """Without a key 401, with the wrong role 403, whichever header brings it; only health and the document are open."""

    async def scene() -> None:
        async with locked() as gateway:
            key = await gateway.key(role=role or Role.OPERATE)
            headers = [] if role is None else [carrier.format(key)]
            refused = 401 if role is None else 403
            job = await gateway.house.gateway.jobs.submit("chat", BODY)
            for path in (*OPEN, *LOOKING, *WATCHING):
                answer = await gateway.get(path.format(job_id=job.id), *headers)
                assert answer.status == (200 if path in may else refused), path
            for path in INFERENCE:
                answer = await gateway.post(path, {**BODY, "prompt": "hello", "input": "hello"}, *headers)
                assert (answer.status == refused) == (path not in may), (path, answer.body)

    play(scene)


def test_every_route_is_in_this_matrix(play: Play) -> None:
    """A new route must say here whom it lets in."""

    async def scene() -> None:
        async with locked() as gateway:
            document = json.loads((await gateway.get("/openapi.json")).body)
            paths = {path.replace("{name}", "simulated") for path in document["paths"]}
            assert paths == {*OPEN, *LOOKING, *WATCHING, *INFERENCE}

    play(scene)


def test_refusals_have_openais_shape_and_their_status(play: Play) -> None:
    async def scene() -> None:
        async with locked() as gateway:
            key = await gateway.key(models=("simulated/*",), requests_per_minute=1)
            wrong = await gateway.chat(key[:-1] + ("a" if key[-1] != "a" else "b"))
            assert (wrong.status, wrong.code) == (401, "unauthorized")
            assert json.loads(wrong.body)["error"]["type"] == "authentication_error"
            twice = await gateway.chat(key, f"x-api-key: {key}")
            assert (twice.status, twice.code) == (400, "invalid_request")
            foreign = await gateway.chat(key, model="gpt-5")
            assert (foreign.status, foreign.code) == (403, "model_not_allowed")
            over = await gateway.chat(key)
            assert (over.status, over.code) == (429, "rate_limited")
            assert 1 <= int(over.headers["retry-after"]) <= 60
            assert not any(b"hg_" in answer.body for answer in (wrong, twice, foreign, over))

    play(scene)


def test_only_the_models_of_the_key_are_listed(play: Play) -> None:
    async def scene() -> None:
        async with locked() as gateway:
            some, none = await gateway.key(models=("simulated",)), await gateway.key(models=("other",))
            listed = await gateway.get("/v1/models", f"x-api-key: {some}")
            assert [model["id"] for model in json.loads(listed.body)["data"]] == ["simulated"]
            assert json.loads((await gateway.get("/v1/models", f"x-api-key: {none}")).body)["data"] == []
            assert (await gateway.get("/v1/models/simulated", f"x-api-key: {none}")).status == 404

    play(scene)


def test_tenants_meet_nothing_of_each_other(play: Play) -> None:
    """The same idempotency key is two keys, and a job is its tenant's; a second key of a tenant finds both."""

    async def scene() -> None:
        async with locked() as gateway:
            mine, theirs = await gateway.key(tenant="mine"), await gateway.key(tenant="theirs")
            also_mine = await gateway.key(tenant="mine", name="rotated")
            once = "Idempotency-Key: order-17"
            first = await gateway.chat(mine, once)
            other = await gateway.chat(theirs, once, temperature=1)
            again = await gateway.chat(also_mine, once)
            assert [first.status, other.status, again.status] == [200, 200, 200]
            assert "idempotent-replayed" not in other.headers
            assert again.headers["idempotent-replayed"] == "true"
            assert again.body == first.body
            job = json.loads((await gateway.chat(mine, "Prefer: respond-async")).body)["id"]
            store = gateway.house.gateway.durable.store
            assert await store.find(job, tenant="theirs") is None
            assert (await gateway.get(f"/v1/jobs/{job}", f"x-api-key: {also_mine}")).status == 200
            assert (await gateway.get(f"/v1/jobs/{job}", f"x-api-key: {theirs}")).status == 404
            assert [found.id for found in await store.select(JobFilter(tenant="mine"), limit=9)] == [job]

    play(scene)


def test_a_request_that_ended_frees_its_place(play: Play) -> None:
    """After answers, refusals by model and bodies that make no sense: `parallel` counts who is inside."""

    async def scene() -> None:
        async with locked() as gateway:
            key = await gateway.key(parallel=1, models=("simulated/*",))
            for changes in ({}, {"model": "gpt-5"}, {"messages": 5}, {"stream": True}, {}):
                answer = await gateway.chat(key, **changes)
                assert answer.status != 429, changes

    play(scene)
