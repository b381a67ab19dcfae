"""What a client is told when it is not served: the same shape, headers and codes on every route, streams included."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from contracts.provider_stage import Part
from providers.stubs.openai import OpenAIStub, error
from server.http.front_stage import Answer, Play, post
from server.keyed_stage import keyed_door
from server.stage import House, opened
from server.upstreams import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ask,
    asking,
    connected,
    look,
    one_model,
    openai_upstream,
    sent,
    stub_of,
    until,
    upstream_of,
)

from headgate.core.call import Lane
from headgate.core.events import RequestRefused, Responded
from headgate.server.http import HttpLimits

WAYS: Final = ((CHAT, False), (CHAT, True), (COMPLETIONS, False), (COMPLETIONS, True), (EMBEDDINGS, False))
JSON: Final = "Content-Type: application/json"
SIMULATED: Final = {"provider": "simulated", "latency_s": 0}
OPEN_ROUTES: Final = (
    "/v1/models",
    "/v1/models/m",
    "/queue/status",
    "/metrics",
    "/health",
    "/health/live",
    "/api/v1/health",
    "/health/ready",
    "/openapi.json",
)


def told(answer: Answer, status: int, code: str, *, final: bool = False) -> Mapping[str, Any]:
    """The error of an answer that has everything an error must have."""
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json"), answer
    said = json.loads(answer.body)
    assert set(said) == {"error"}
    assert set(said["error"]) == {"message", "type", "param", "code"}
    assert said["error"]["code"] == code, said
    assert said["error"]["message"]
    assert answer.headers["x-request-id"].startswith("req_")
    if status in {429, 503}:
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert 1000 <= int(answer.headers["retry-after-ms"]) <= 60_000
        assert answer.headers.get("x-should-retry") == ("false" if final else None)
    elif status != 408:
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
    error: Mapping[str, Any] = said["error"]
    return error


@asynccontextmanager
async def full_house() -> AsyncIterator[House]:
    """One slot, taken; one place to wait, taken."""
    async with stub_of("openai", Part.SILENT) as stub:
        settings = one_model(upstream_of("openai", stub, Part.SILENT, slots=1, depth=1))
        async with opened(settings) as house:
            wires = [await connected(house) for _ in range(2)]
            for wire in wires:
                await wire.send(asking(CHAT))
            await until(lambda: house.gateway.status().rt_queue == 1)
            yield house
            assert stub.calls == 1
            for wire in wires:
                wire.reset()


def test_a_full_queue_refuses_alike_on_every_route(play: Play) -> None:
    """A stream is refused with a status, before any byte of it: nobody has to parse events to learn of a 429."""

    async def scene() -> None:
        async with full_house() as house:
            answers = [await ask(house, path, stream=streamed) for path, streamed in WAYS]
            for answer in answers:
                error = told(answer, 429, "queue_full")
                assert error["type"] == "rate_limit_error"
                assert answer.headers["x-headgate-attempts"] == "0"
            assert len({frozenset(answer.headers) for answer in answers}) == 1
            refused = [event for event in house.events if isinstance(event, RequestRefused)]
            assert len(refused) == len(WAYS)

    play(scene)


def test_waits_are_spread(play: Play) -> None:
    """Whoever is refused together must not come back together."""

    async def scene() -> None:
        async with full_house() as house:
            waits = {(await ask(house)).headers["retry-after-ms"] for _ in range(20)}
            assert len(waits) > 10
            house.serving._closing.set()
            waits = {(await ask(house)).headers["retry-after-ms"] for _ in range(20)}
            assert len(waits) > 10
            assert all(1000 <= int(wait) <= 3000 for wait in waits)

    play(scene)


@pytest.mark.parametrize(("retry_after", "shown"), [("0", 1), ("7", 7), ("3600", 60), ("0.2", 1)], ids=str)
def test_a_provider_that_throttles_is_passed_on_within_bounds(
    play: Play, retry_after: str, shown: int
) -> None:
    """Above two minutes the official client gives up at once; below a second everybody would be back too soon."""

    async def scene() -> None:
        async with OpenAIStub(error(429, headers={"Retry-After": retry_after})) as stub:
            settings = one_model(openai_upstream(stub), retry={"max_attempts": 1, "count_throttles": True})
            async with opened(settings) as house:
                for path, streamed in WAYS:
                    answer = await ask(house, path, stream=streamed)
                    told(answer, 429, "upstream_throttled", final=True)
                    assert shown <= int(answer.headers["retry-after"]) <= max(shown * 1.25 + 1, 2)

    play(scene)


# ---- Draining -----------------------------------------------------------------------------------------------


def test_a_process_that_goes_refuses_alike_on_every_route(play: Play) -> None:
    """From the headers alone: not one of these bodies is read."""

    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            house.serving._closing.set()
            for path, streamed in WAYS:
                told(await ask(house, path, stream=streamed), 503, "draining")
            told(await sent(house, post(b"no JSON at all", CHAT)), 503, "draining")

    play(scene)


def test_who_is_served_may_finish_and_who_waits_is_dismissed(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model({**SIMULATED, "latency_s": 0.3, "slots": 2})) as house:
            wires = [await connected(house) for _ in range(4)]
            for number, wire in enumerate(wires):
                await wire.send(asking(CHAT, stream=bool(number % 2)))
            await until(lambda: house.gateway.status().rt_queue == 2)
            stopping = asyncio.create_task(house.serving.stop(5.0))
            answers = [await wire.answer() for wire in wires]
            assert [answer.status for answer in answers[:2]] == [200, 200]
            assert answers[1].body.endswith(b"data: [DONE]\n\n")
            for answer in answers[2:]:
                told(answer, 503, "draining")
            await stopping
            for wire in wires:
                wire.writer.close()

    play(scene)


def test_ready_says_draining(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            assert (await look(house, "/health/ready")).status == 200
            house.serving._closing.set()
            answer = await look(house, "/health/ready")
            assert (answer.status, json.loads(answer.body)["status"]) == (503, "draining")
            assert (await look(house, "/health/live")).status == 200

    play(scene)


# ---- Deadlines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["X-Headgate-Timeout: 0.15", "x-stainless-read-timeout: 0.15"])
@pytest.mark.parametrize(("path", "streamed"), WAYS)
def test_a_deadline_is_504_wherever_the_call_is(play: Play, header: str, path: str, streamed: bool) -> None:
    """With the provider, and in the queue."""

    async def scene() -> None:
        async with (
            stub_of("openai", Part.SILENT) as stub,
            opened(one_model(upstream_of("openai", stub, Part.SILENT, slots=1))) as house,
        ):
            for _ in range(2):
                answer = await ask(house, path, header, stream=streamed)
                told(answer, 504, "deadline_exceeded")
                assert answer.headers["x-headgate-attempts"] == "1"
            holder = await connected(house)
            await holder.send(asking(CHAT))
            await until(lambda: stub.calls == 3)
            answer = await ask(house, path, header, stream=streamed)
            told(answer, 504, "deadline_exceeded")
            assert answer.headers["x-headgate-attempts"] == "0"
            # All of its time went into waiting, and next to nothing into us.
            assert int(answer.headers["x-headgate-queue-ms"]) > 0
            assert float(answer.headers["x-headgate-overhead-ms"]) < int(
                answer.headers["x-headgate-queue-ms"]
            )
            assert stub.calls == 3
            holder.reset()

    play(scene)


def test_our_deadline_header_beats_the_clients_own(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model({**SIMULATED, "latency_s": 0.2})) as house:
            headers = ("X-Headgate-Timeout: 5", "x-stainless-read-timeout: 0.01")
            assert (await ask(house, CHAT, *headers)).status == 200
            # One that says nothing sensible is no reason to fail: the client does not know of us.
            assert (await ask(house, CHAT, "x-stainless-read-timeout: NOT_GIVEN")).status == 200

    play(scene)


@pytest.mark.parametrize(
    "header",
    [
        "X-Headgate-Timeout: 0",
        "X-Headgate-Timeout: -1",
        "X-Headgate-Timeout: nan",
        "X-Headgate-Timeout: inf",
        "X-Headgate-Timeout: soon",
        "X-Headgate-Timeout: ",
        "X-Headgate-Lane: fast",
        "X-Headgate-Agent: " + "a" * 256,
        "X-Headgate-Agent: a\tb",
        "Idempotency-Key: " + "k" * 256,
        "Idempotency-Key: ",
        'Idempotency-Key: ""',
        "Idempotency-Key: a\tb",
    ],
)
@pytest.mark.parametrize(("path", "streamed"), WAYS)
def test_a_header_that_makes_no_sense_is_named(play: Play, header: str, path: str, streamed: bool) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            assert told(await ask(house, path, header, stream=streamed), 400, "invalid_request")["param"]

    play(scene)


# ---- Lanes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "fields", "lane"),
    [
        ((), {}, Lane.INTERACTIVE),
        (("X-Headgate-Lane: batch",), {}, Lane.BATCH),
        (("x-headgate-lane: interactive",), {"service_tier": "flex"}, Lane.INTERACTIVE),
        ((), {"service_tier": "flex"}, Lane.BATCH),
        ((), {"service_tier": "priority"}, Lane.INTERACTIVE),
        ((), {"service_tier": None}, Lane.INTERACTIVE),
    ],
)
def test_the_lane_is_by_header_then_by_tier(
    play: Play, headers: tuple[str, ...], fields: Mapping[str, Any], lane: Lane
) -> None:
    """`flex` is ours and stays here; every other tier is the provider's and passes."""

    async def scene() -> None:
        async with stub_of("openai", Part.ANSWER) as stub:
            assert isinstance(stub, OpenAIStub)
            async with opened(one_model(openai_upstream(stub))) as house:
                assert (await ask(house, CHAT, *headers, **fields)).status == 200
                assert {event.lane for event in house.events if hasattr(event, "lane")} == {lane}
                passed = stub.requests[0].body.get("service_tier", "nothing")
                assert passed == fields.get("service_tier", "nothing") or passed == "nothing"
                assert passed != "flex"

    play(scene)


def test_batch_waits_in_its_own_line(play: Play) -> None:
    async def scene() -> None:
        async with (
            stub_of("openai", Part.SILENT) as stub,
            opened(one_model(upstream_of("openai", stub, Part.SILENT, slots=1))) as house,
        ):
            wires = [await connected(house) for _ in range(3)]
            await wires[0].send(asking(CHAT))
            await until(lambda: stub.calls == 1)
            await wires[1].send(asking(CHAT, service_tier="flex"))
            await wires[2].send(asking(EMBEDDINGS, "X-Headgate-Lane: batch"))
            await until(lambda: house.gateway.status().be_queue == 2)
            assert house.gateway.status().rt_queue == 0
            for wire in wires:
                wire.reset()

    play(scene)


# ---- What every answer says of itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "streamed"), WAYS)
@pytest.mark.parametrize("provider", ["simulated", "openai"])
def test_a_served_request_tells_its_story(play: Play, provider: str, path: str, streamed: bool) -> None:
    part = Part.EMBEDDINGS if path == EMBEDDINGS else Part.STREAM if streamed else Part.ANSWER
    if (provider, path) == ("openai", COMPLETIONS):
        path = CHAT  # Its stub has no text completion among its parts.

    async def scene() -> None:
        upstream: dict[str, Any] = dict(SIMULATED)
        async with stub_of("openai", part) as stub:
            if provider == "openai":
                upstream = upstream_of("openai", stub, part)
            async with opened(one_model(upstream)) as house:
                answer = await ask(house, path, stream=streamed)
                assert answer.status == 200, answer
                headers = answer.headers
                assert headers["x-request-id"].startswith("req_")
                assert headers["x-headgate-attempts"] == "1"
                assert headers["x-headgate-upstream"].startswith(provider)
                assert int(headers["x-headgate-queue-ms"]) == 0
                assert 0 <= float(headers["x-headgate-overhead-ms"]) < 1000
                kind = "text/event-stream" if streamed else "application/json"
                assert headers["content-type"] == kind
                [ended] = [event for event in house.events if isinstance(event, Responded)]
                assert ended.request_id == headers["x-request-id"]

    play(scene)


@pytest.mark.parametrize(("path", "streamed"), WAYS)
@pytest.mark.parametrize(
    ("part", "status", "code"),
    [
        (Part.REJECTED, 400, "invalid_request"),
        (Part.UNAUTHORISED, 502, "upstream_misconfigured"),
        (Part.OVERLOADED, 502, "upstream_unavailable"),
        (Part.HTML, 502, "upstream_unavailable"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_failed_request_tells_its_story(
    play: Play, path: str, streamed: bool, part: Part, status: int, code: str
) -> None:
    async def scene() -> None:
        async with (
            stub_of("openai", part) as stub,
            opened(one_model(upstream_of("openai", stub, part))) as house,
        ):
            answer = await ask(house, path, stream=streamed)
            told(answer, status, code)
            assert answer.headers["x-headgate-attempts"] == str(stub.calls)
            assert answer.headers["x-headgate-upstream"].startswith("openai")

    play(scene)


def test_a_refusal_does_not_cost_the_connection(play: Play) -> None:
    """Clients that are refused come back; a new connection each time would cost more than the refusal."""

    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            wire = await connected(house)
            for request, status in [
                (asking(CHAT), 200),
                (post(b"no JSON", CHAT), 400),
                (asking(CHAT, model="nobody"), 404),
                (asking(CHAT, stream=True), 200),
                (asking(EMBEDDINGS, "X-Headgate-Lane: fast"), 400),
                (post(b"{}", "/nowhere"), 404),
                (post(b"{}", "/v1/models"), 405),
                (asking(COMPLETIONS), 200),
            ]:
                answer = await wire.ask(request)
                assert answer.status == status
                assert "connection" not in answer.headers
            wire.writer.close()

    play(scene)


def test_every_other_route_names_its_request_too(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            ids = set()
            for path in OPEN_ROUTES:
                answer = await look(house, path)
                assert answer.status == 200, path
                ids.add(answer.headers["x-request-id"])
            assert len(ids) == len(OPEN_ROUTES)

    play(scene)


# ---- Wrong addresses, methods, sizes and kinds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/chat/completions/",
        "/v1/models/nobody",
        "/v2/chat",
        "/%2e%2e/etc",
        "//",
        "/health/",
        "/queue/status/",
    ],
)
def test_an_unknown_address_is_not_found(play: Play, path: str) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            told(await look(house, path), 404, "not_found")

    play(scene)


def test_no_host_and_no_address_breaks_us(play: Play) -> None:
    """Nothing is built from them but a message; an answer never sends anybody anywhere."""
    hosts = ("[::1", "a/b?x#y", "a:99999999", "", "\xff", "a@b", "a b", "%00", "evil.example")
    paths = (
        "/nothing",
        "/health/",
        "/v1/models/%ff",
        "/v1/models/%00",
        "/v1/models/%0d%0ax",
        "*",
        "http://evil/v1/models",
    )

    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            for host in hosts:
                for path in paths:
                    answer = await sent(
                        house, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")
                    )
                    assert answer.status in {200, 400, 404}, (host, path, answer)
                    assert "location" not in answer.headers

    play(scene)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_a_wrong_method_on_an_inference_route(play: Play, path: str, method: str) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            answer = await look(house, path, method=method)
            told(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == "POST"

    play(scene)


@pytest.mark.parametrize("path", OPEN_ROUTES)
def test_a_wrong_method_on_another_route(play: Play, path: str) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            for method in ("POST", "PUT", "DELETE"):
                answer = await sent(
                    house, f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()
                )
                told(answer, 405, "method_not_allowed")
                assert "GET" in answer.headers["allow"]

    play(scene)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS, "/v1/models"])
def test_what_is_too_large_is_413_before_it_is_read(play: Play, path: str) -> None:
    async def scene() -> None:
        limits = HttpLimits(body_bytes=1000, linger_s=0.05)
        async with opened(one_model(SIMULATED), limits=limits) as house:
            sized = f"POST {path} HTTP/1.1\r\nHost: a\r\n{JSON}\r\nContent-Length: 1001\r\n\r\n".encode()
            told(await sent(house, sized), 413, "payload_too_large")
            chunked = (
                f"POST {path} HTTP/1.1\r\nHost: a\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            )
            if path != "/v1/models":  # That one is answered before anybody has sent a body.
                told(await sent(house, chunked + b"3e9\r\n" + b"x" * 1001), 413, "payload_too_large")

    play(scene)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_a_compressed_body_is_415(play: Play, path: str) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            answer = await sent(house, post(b"{}", path, JSON, "Content-Encoding: gzip"))
            told(answer, 415, "unsupported_media_type")

    play(scene)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"not json", None),
        (b"[]", None),
        (b'"text"', None),
        (b"null", None),
        (b"{}", "model"),
        (b'{"model": null}', "model"),
        (b'{"model": ""}', "model"),
        (b'{"model": 7}', "model"),
        (b'{"model": "m"}', "asked"),
    ],
)
def test_a_body_that_makes_no_sense_is_400(play: Play, path: str, body: bytes, param: str | None) -> None:
    asked = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}[path]

    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            error = told(await sent(house, post(body, path, JSON)), 400, "invalid_request")
            assert error["param"] == (asked if param == "asked" else param)

    play(scene)


def test_embeddings_are_not_streamed(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            assert (
                told(await ask(house, EMBEDDINGS, stream=True), 400, "invalid_request")["param"] == "stream"
            )

    play(scene)


@pytest.mark.parametrize(("path", "streamed"), WAYS)
def test_an_unknown_model_is_404(play: Play, path: str, streamed: bool) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            error = told(await ask(house, path, stream=streamed, model="nobody"), 404, "not_found")
            assert error["param"] == "model"

    play(scene)


def test_what_is_not_http_is_refused_in_the_same_shape(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            for request in (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n"):
                told(await sent(house, request), 400, "invalid_request")

    play(scene)


def test_keys_refuse_alike_on_every_route(play: Play) -> None:
    async def scene() -> None:
        async with keyed_door() as door:
            text = await door.key(models=("other",))
            async with opened(one_model(SIMULATED), access=door.access) as house:
                for path, streamed in WAYS:
                    told(await ask(house, path, stream=streamed), 401, "unauthorized")
                    both = (f"Authorization: Bearer {text}", f"x-api-key: {text}")
                    told(await ask(house, path, *both, stream=streamed), 400, "invalid_request")
                    forbidden = await ask(house, path, both[0], stream=streamed)
                    told(forbidden, 403, "model_not_allowed")
                for path in ("/v1/models", "/queue/status", "/metrics"):
                    told(await look(house, path), 401, "unauthorized")
                for path in ("/health/live", "/health/ready"):
                    assert (await look(house, path)).status == 200

    play(scene)


def test_where_the_database_is_and_what_ails_it_is_told_to_the_log_alone(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller has no business with the machine's paths and addresses; the operator needs them."""
    caplog.set_level(logging.INFO, logger="headgate")

    async def scene() -> None:
        async with opened(one_model(SIMULATED)) as house:
            await house.gateway.durable.start()
            await house.gateway.durable.store.aclose()
            for answer in (await look(house, "/v1/jobs"), await ask(house, CHAT, "Idempotency-Key: k")):
                error = told(answer, 503, "store_unavailable")
                assert error["message"] == "the database does not answer; try again in a moment"
        refused = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
        assert len(refused) == 2
        assert all("headgate.db is " in line for line in refused), refused

    play(scene)
