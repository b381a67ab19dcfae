"""Paths in other spellings: a rule of a proxy before us for `/v1/models` must not be walked around by `/v1%2Fmodels`."""

from typing import Final

import openai
import pytest
from server.http.front_stage import Play
from server.locked_stage import locked, path_of
from server.stage import opened

MODELS: Final = {"openai/gpt-5-mini": {"upstreams": [{"provider": "simulated", "latency_s": 0}]}}
HIDDEN: Final = (
    "/v1%2fmodels",
    "/v1%2Fmodels",
    "/v1/jobs%2F{id}",
    "/v1%2fchat%2fcompletions",
    "/v1%2Fchat/completions",
    "/v1/chat%2Fcompletions",
    "/queue%2Fstatus",
    "/health%2Flive",
    "/%2Fmetrics",
    "/v1/dead-letters%2Freplay",
    "/v1/%6dodels",
    "/%76%31/models",
    "/%6detrics",
    "/v1/chat/completion%73",
    "/v1%252fmodels",
)


@pytest.mark.parametrize("path", HIDDEN)
def test_an_encoded_slash_never_separates(play: Play, path: str) -> None:
    async def scene() -> None:
        async with locked(models=MODELS) as gateway:
            key = f"x-api-key: {await gateway.key(role='operate')}"
            for method in ("GET", "POST"):
                answer = await gateway.ask(method, path.format(id="job_1"), b"{}", key)
                assert (answer.status, answer.code) == (404, "not_found"), answer
            assert (await gateway.get("/v1/models", key)).status == 200

    play(scene)


def test_every_route_hides_from_its_other_spellings(play: Play) -> None:
    """Each route of the gateway with each of its slashes encoded, one at a time: none leads to another route."""

    async def scene() -> None:
        async with locked(models=MODELS) as gateway:
            key = f"x-api-key: {await gateway.key(role='operate')}"
            for route in gateway.house.serving.routes:
                pieces = route.path.replace("{name:path}", "x").split("/")[1:]  # type: ignore[attr-defined]
                for at in range(1, len(pieces)):
                    if "{" in "".join(pieces[at - 1 : at + 1]):
                        continue
                    path = "/" + "/".join(pieces[:at]) + "%2F" + "/".join(pieces[at:])
                    _, path = path_of(f"GET {path}")
                    answer = await gateway.get(path, key)
                    known = path.startswith("/v1/models/")  # Its names have slashes.
                    assert answer.status == 404 or known, (path, answer)

    play(scene)


def test_ids_may_be_encoded_as_clients_do_it(play: Play) -> None:
    async def scene() -> None:
        async with (
            opened({"models": MODELS}) as house,
            openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x") as client,
        ):
            # The official client encodes the slash; others do not, or encode more.
            assert (await client.models.retrieve("openai/gpt-5-mini")).id == "openai/gpt-5-mini"
        async with locked(models=MODELS) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            for name in (
                "openai/gpt-5-mini",
                "openai%2Fgpt-5-mini",
                "openai%2fgpt%2D5-mini",
                "%6Fpenai/gpt-5-mini",
            ):
                answer = await gateway.get(f"/v1/models/{name}", key)
                assert answer.status == 200, (name, answer)
                assert b'"id":"openai/gpt-5-mini"' in answer.body
            # Decoded once, not twice.
            assert (await gateway.get("/v1/models/openai%252Fgpt-5-mini", key)).status == 404
            job = await gateway.post("/v1/jobs", {"task": "chat", "input": {"model": "openai/gpt-5-mini", "messages": [{"role": "user", "content": "x"}]}}, key)  # fmt: skip
            job_id = job.headers["location"].rpartition("/")[2]
            encoded = "".join(f"%{ord(letter):02x}" for letter in job_id)
            assert (await gateway.get(f"/v1/jobs/{encoded}", key)).status == 200
            for odd in ("..%2F..%2Fetc%2Fpasswd", "a%2Fcancel", "%00", "%ff", "a%3Fb", "%252e"):
                for kind in ("jobs", "files", "batches", "requests", "dead-letters"):
                    answer = await gateway.get(f"/v1/{kind}/{odd}", key)
                    assert answer.status in {400, 404}, (kind, odd, answer)

    play(scene)


def test_a_page_of_an_id_with_a_slash_is_found_and_stays_fresh(play: Play) -> None:
    async def scene() -> None:
        async with (
            opened({"models": MODELS}) as house,
            openai.AsyncOpenAI(base_url=house.url, api_key="x") as client,
        ):
            found = await client._client.get("/requests/a%2Fb", headers={"accept": "text/html"})
            assert found.status_code in {200, 404}
            assert "There is nothing at" not in found.text
            assert (await client._client.get("/requests%2Fa")).status_code == 404

    play(scene)
