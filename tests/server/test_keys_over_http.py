"""Keys at a real port: every route by role and carrier, limits and refusals as clients meet them, tenants apart."""

import json

import pytest
from server.error_matrix import MATRIX
from server.http.front_stage import Play
from server.locked_stage import BODY, locked, path_of

from headgate import wiring
from headgate.core.access import Role, may
from headgate.core.ports.jobs import JobFilter


@pytest.mark.parametrize("role", [None, *Role])
@pytest.mark.parametrize("carrier", ["Authorization: Bearer {}", "x-api-key: {}"])
def test_every_route_asks_for_its_role(play: Play, role: Role | None, carrier: str) -> None:
    """Without a key 401, with the wrong role 403, whichever header brings it; only health and the document are open."""

    async def scene() -> None:
        async with locked(apps={name: {} for name in wiring.APPS}) as gateway:
            key = await gateway.key(role=role or Role.OPERATE)
            headers = [] if role is None else [carrier.format(key)]
            refused = 401 if role is None else 403
            job = await gateway.house.gateway.jobs.submit("chat", BODY)
            for name, row in MATRIX.items():
                method, path = path_of(name, job_id=job.id)
                # A query that is wrong is told only to who is let in, and ends what would go on for ever.
                asked = f"{path}?{row.query}" if row.query else path
                answer = await gateway.ask(method, asked, row.body, *headers)
                let_in = row.action is None or (role is not None and may(role, row.action))
                assert (answer.status != refused) == let_in, (name, answer.body)

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
