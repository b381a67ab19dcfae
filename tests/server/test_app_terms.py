"""What a mounted route is held to: its document, its caller's deadline, its key's tokens per minute."""

import json
from typing import Any

import msgspec
import pytest
from server.http.front_stage import Play
from server.locked_stage import locked

from headgate import AppCall, AppKeyed, AppReply, AppRoute
from headgate.core.access import Role
from headgate.server import openapi

ARTICLE = {"article_id": "a1", "content": "A sentence of the article. " * 10}
SLOW = {"m": {"upstreams": [{"provider": "simulated", "latency_s": 60}]}}
QUICK = {"m": {"upstreams": [{"provider": "simulated", "latency_s": 0}]}}
APPS: dict[str, Any] = {"articles": {"model": "m"}}


async def _nothing(call: AppCall) -> AppReply:
    return AppReply(value=None)


def _route(path: str, **more: Any) -> AppRoute:
    return AppRoute(method="POST", path=path, handle=_nothing, **more)


def test_types_of_two_applications_that_are_called_alike_stay_apart() -> None:
    """`Listing` here and `Listing` there; and an `Error` of an application's own is not the gateway's."""
    one = msgspec.defstruct("Listing", [("first", str)], module="shop.one")
    other = msgspec.defstruct("Listing", [("second", int)], module="shop.other")
    error = msgspec.defstruct("Error", [("third", str)], module="shop.other")
    told = openapi.document(
        "1", [_route("/one", body=one), _route("/other", body=other, answers={200: error})]
    )
    schemas = told["components"]["schemas"]

    def properties(schema: dict[str, Any]) -> set[str]:
        return set(schemas[schema["$ref"].rpartition("/")[2]]["properties"])

    def body(path: str) -> dict[str, Any]:
        return dict(told["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])

    assert (properties(body("/one")), properties(body("/other"))) == ({"first"}, {"second"})
    answered = told["paths"]["/other"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert properties(answered) == {"third"}
    assert set(schemas["Error"]["properties"]) == {"error"}


@pytest.mark.parametrize(
    ("keyed", "wanted"),
    [
        (AppKeyed.IGNORED, []),
        (AppKeyed.REFUSED, []),
        (AppKeyed.OPTIONAL, [False]),
        (AppKeyed.REQUIRED, [True]),
    ],
)
def test_the_document_says_whether_a_key_is_needed(keyed: AppKeyed, wanted: list[bool]) -> None:
    told = openapi.document("1", [_route("/one", keyed=keyed)])["paths"]["/one"]["post"]["parameters"]
    assert [one["required"] for one in told if one["name"] == "Idempotency-Key"] == wanted


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_will_not_wait_longer_is_told_in_time(play: Play, stream: bool) -> None:
    """The model needs a minute; nothing of it is waited for past the caller's deadline."""

    async def scene() -> None:
        async with locked(models=SLOW, apps=APPS) as gateway:
            key = await gateway.key(role=Role.CALL)
            asked = {**ARTICLE, "stream": stream}
            answer = await gateway.post(
                "/api/v1/summarize", asked, f"x-api-key: {key}", "X-Headgate-Timeout: 0.2"
            )
            if stream:
                assert b'"deadline_exceeded"' in answer.body
            else:
                assert (answer.status, answer.code) == (504, "deadline_exceeded")
            wrong = await gateway.post(
                "/api/v1/summarize", asked, f"x-api-key: {key}", "X-Headgate-Timeout: soon"
            )
            assert json.loads(wrong.body)["error"]["param"] == "X-Headgate-Timeout"

    play(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_route_spends_counts_against_its_key(play: Play, stream: bool) -> None:
    """A key of 20 tokens a minute gets one summary, not a hundred."""

    async def scene() -> None:
        async with locked(models=QUICK, apps=APPS) as gateway:
            key = await gateway.key(role=Role.CALL, tokens_per_minute=20)
            asked = {**ARTICLE, "stream": stream}
            first = await gateway.post("/api/v1/summarize", asked, f"x-api-key: {key}")
            assert first.status == 200, first.body
            again = await gateway.post("/api/v1/summarize", asked, f"x-api-key: {key}")
            assert (again.status, again.code) == (429, "rate_limited")

    play(scene)
