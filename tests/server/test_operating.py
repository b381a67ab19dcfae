"""What operators do over HTTP: pause and resume models, and see what became of the last calls."""

import json
from typing import Any

import pytest
from server.http.front_stage import Answer, Play, post
from server.keyed_stage import keyed_door
from server.stage import House, opened
from server.upstreams import CHAT, ask, look, one_model, sent

from headgate.core.access import Role

INSTANT = {"provider": "simulated", "latency_s": 0}
FLAKY = {"provider": "simulated", "latency_s": 0, "script": ["transient", "ok"]}


async def tell(house: House, path: str, body: Any, *headers: str) -> Answer:
    return await sent(house, post(json.dumps(body).encode(), path, *headers))


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


def test_a_paused_model_answers_503_on_every_way_in(play: Play) -> None:
    """Whole and streamed look alike, say by whom and since when, and when to come back."""

    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house:
            paused = await tell(house, "/v1/models/pause", {"model": "m"})
            assert (paused.status, json.loads(paused.body)["by"]) == (200, "local")
            for stream in (False, True):
                refused = await ask(house, CHAT, stream=stream)
                assert (refused.status, refused.code) == (503, "upstream_unavailable")
                assert b"was paused by an operator at 20" in refused.body
                assert 22 <= int(refused.headers["retry-after"]) <= 38
                assert refused.headers["x-headgate-attempts"] == "0"
            status = json.loads((await look(house, "/queue/status")).body)
            assert [gate["accepting"] for gate in status["upstreams"] if gate["model"] == "m"] == [False]
            models = json.loads((await look(house, "/v1/models")).body)
            assert "m" in {model["id"] for model in models["data"]}
            resumed = await tell(house, "/v1/models/resume", {"model": "m"})
            assert json.loads(resumed.body) == {"model": "m", "paused": False}
            assert (await ask(house, CHAT)).status == 200

    play(scene)


@pytest.mark.parametrize("body", [None, [], {}, {"model": 3}, {"model": "m", "for": 3}, "m"])
def test_a_body_that_makes_no_sense_is_told(play: Play, body: Any) -> None:
    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house:
            answer = await tell(house, "/v1/models/pause", body)
            assert (answer.status, answer.code) == (400, "invalid_request")

    play(scene)


def test_names_that_nobody_knows_and_roles_that_may_not(play: Play) -> None:
    async def scene() -> None:
        async with keyed_door() as door, opened(one_model(INSTANT), access=door.access) as house:
            boss = bearer(await door.key(role=Role.OPERATE, name="boss"))
            for role in (Role.CALL, Role.READ):
                key = bearer(await door.key(role=role))
                for path in ("/v1/models/pause", "/v1/models/resume"):
                    assert (await tell(house, path, {"model": "m"}, key)).status == 403
            assert (await tell(house, "/v1/models/pause", {"model": "n"}, boss)).status == 404
            paused = await tell(house, "/v1/models/pause", {"model": "simulated/*"}, boss)
            assert json.loads(paused.body)["by"] == "boss"
            conflict = await tell(house, "/v1/models/resume", {"model": "simulated/slow"}, boss)
            assert (conflict.status, conflict.code) == (409, "state_conflict")

    play(scene)


@pytest.mark.parametrize(
    ("model", "status"),
    [
        ("simulated/flaky", 200),
        ("simulated/flakky", 404),
        ("simulated/\0", 400),
        ("simulated/\x1b[2J", 400),
        ("simulated/" + "x" * 10_000, 400),
    ],
)
def test_only_what_a_call_could_name_is_paused(play: Play, database: str, model: str, status: int) -> None:
    """A typing mistake that is accepted leaves the model running that was meant."""

    async def scene() -> None:
        async with opened({**one_model(INSTANT), "database": database}) as house:
            for path in ("/v1/models/pause", "/v1/models/resume"):
                assert (await tell(house, path, {"model": model})).status == status, path

    play(scene)


def test_a_call_can_be_looked_up_by_the_id_its_answer_had(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(FLAKY)) as house:
            answer = await ask(house, CHAT, "X-Headgate-Agent: crew")
            assert answer.status == 200
            told = json.loads((await look(house, f"/v1/requests/{answer.headers['x-request-id']}")).body)
            assert [(one["attempt"], one["error"]) for one in told["attempts"]] == [
                (1, "transient 503"),
                (2, None),
            ]
            assert told["attempts"][0]["wait_ms"] is not None
            assert (told["status"], told["model"], told["agent_id"]) == ("ok", "m", "crew")
            assert told["usage"]["output_tokens"] > 0
            assert "What" not in json.dumps(told)

    play(scene)


def test_tenants_see_their_own_calls_and_operators_all(play: Play) -> None:
    async def scene() -> None:
        async with keyed_door() as door, opened(one_model(INSTANT), access=door.access) as house:
            ann, bob = [bearer(await door.key(tenant=tenant)) for tenant in ("ann", "bob")]
            boss = bearer(await door.key(role=Role.OPERATE))
            mine = (await ask(house, CHAT, ann)).headers["x-request-id"]
            assert (await look(house, f"/v1/requests/{mine}", ann)).status == 200
            foreign = await look(house, f"/v1/requests/{mine}", bob)
            assert (foreign.status, foreign.code) == (404, "not_found")
            assert (await look(house, f"/v1/requests/{mine}", boss)).status == 200
            lists = [json.loads((await look(house, "/v1/requests", key)).body) for key in (ann, bob, boss)]
            assert [[one["id"] for one in told["data"]] for told in lists] == [[mine], [], [mine]]

    play(scene)


def test_lists_are_filtered_and_paged(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house:
            ids = [(await ask(house, CHAT)).headers["x-request-id"] for _ in range(3)]
            first = json.loads((await look(house, "/v1/requests?limit=2&status=ok&model=m")).body)
            assert ([one["id"] for one in first["data"]], first["has_more"]) == ([ids[2], ids[1]], True)
            rest = json.loads((await look(house, f"/v1/requests?after={first['last_id']}")).body)
            assert ([one["id"] for one in rest["data"]], rest["has_more"]) == ([ids[0]], False)
            for wrong in ("limit=0", "limit=x", "limit=1001", "status=fine", "states=ok", "model="):
                assert (await look(house, f"/v1/requests?{wrong}")).status == 400

    play(scene)


def test_keys_with_limits_hear_how_they_stand(play: Play) -> None:
    """On answers, whole and streamed, on errors and on refusals; other keys hear nothing of it."""

    async def scene() -> None:
        async with keyed_door() as door, opened(one_model(INSTANT), access=door.access) as house:
            free = await ask(house, CHAT, bearer(await door.key(parallel=5)))
            assert not [name for name in free.headers if name.startswith("x-ratelimit")]
            key = bearer(await door.key(requests_per_minute=3, tokens_per_minute=100_000))
            answers = [
                await ask(house, CHAT, key),
                await ask(house, CHAT, key, stream=True),
                await ask(house, CHAT, key, model="nobody"),
                await ask(house, CHAT, key),
                await look(house, "/v1/models", key),
            ]
            assert [answer.status for answer in answers] == [200, 200, 404, 429, 429]
            left = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
            assert left == ["2", "1", "0", "0", "0"]
            assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"3"}
            assert 50 < float(answers[3].headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
            tokens = [int(answer.headers["x-ratelimit-remaining-tokens"]) for answer in answers]
            assert 100_000 > tokens[0] > tokens[2]

    play(scene)
