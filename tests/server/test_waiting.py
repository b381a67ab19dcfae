"""Callers wait for an upstream that throttles, as long as their deadlines allow, and what was learned of it can be read."""

import asyncio
import json
from typing import Any, Final

import httpx
import pytest
from observe.metrics_stage import Page
from openai import AsyncOpenAI
from providers.stubs.openai import DONE, OpenAIStub, completion, error
from server.http.front_stage import Play
from server.stage import House, opened
from server.upstreams import CHAT, COMPLETIONS, ask, one_model, openai_upstream
from stage import until_closed

from headgate import wiring
from headgate.core.events import Event, LimitChanged
from headgate.wiring.serving import Served, serve

HERE: Final = {"listen": "127.0.0.1:0"}
WAYS: Final = ((CHAT, False), (CHAT, True), (COMPLETIONS, False), (COMPLETIONS, True))
UNITS: Final = {"in_flight": "calls in flight", "starts": "starts/s", "tokens": "tokens/s"}


def _throttling(**upstream: Any) -> dict[str, Any]:
    outcome = {"status": 429, "retry_after_s": 30}
    return one_model({"provider": "simulated", "latency_s": 0, "outcome": outcome, **upstream})


@pytest.mark.parametrize("model", ["simulated", "simulated/throttled"])
def test_a_hundred_parallel_calls_of_a_script_are_all_answered(play: Play, model: str) -> None:
    """On a gateway without settings, by a client that does not retry: also where a third of the calls is refused."""

    async def scene() -> None:
        async with (
            serve(wiring.read_settings(HERE, env={}), work=False) as served,
            AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client,
        ):

            async def answer(number: int) -> str | None:
                question = f"question {number} of 100"
                asked = await client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": question}]
                )
                return asked.choices[0].message.content

            answers = await asyncio.gather(*(answer(number) for number in range(100)))
            for number, content in enumerate(answers):
                assert content is not None
                assert f"question {number} of 100" in content

    play(scene)


@pytest.mark.parametrize(("path", "streamed"), WAYS)
def test_a_throttled_call_is_answered_late_and_not_refused(play: Play, path: str, streamed: bool) -> None:
    """Its retries are ours, and as many as it takes: `max_attempts` bounds other failures."""
    throttled = {"status": 429, "retry_after_s": 0.2}

    async def scene() -> None:
        upstream = {"provider": "simulated", "latency_s": 0, "script": [throttled] * 4}
        async with opened(one_model(upstream, retry={"max_attempts": 2})) as house:
            answer = await ask(house, path, stream=streamed)
            assert (answer.status, answer.headers["x-headgate-attempts"]) == (200, "5")
            assert (DONE in answer.body) is streamed

    play(scene)


@pytest.mark.parametrize(
    ("failure", "status", "code"), [(500, 503, "upstream_unavailable"), (429, 429, "upstream_throttled")]
)
def test_a_closed_upstream_refuses_who_cannot_wait_for_it(
    play: Play, failure: int, status: int, code: str
) -> None:
    """Nothing is sent for those whose deadline comes before the next probe."""

    async def scene() -> None:
        async with (
            OpenAIStub(error(failure, headers={"Retry-After": "30"})) as stub,
            opened(one_model(openai_upstream(stub), retry={"max_attempts": 1})) as house,
        ):
            await until_closed(house.gateway)
            calls = stub.calls
            for path, streamed in WAYS:
                answer = await ask(house, path, "X-Headgate-Timeout: 0.1", stream=streamed)
                assert (answer.status, answer.code) == (status, code)
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                assert "x-should-retry" not in answer.headers, "it was not retried here"
            assert stub.calls == calls

    play(scene)


def test_a_model_that_does_not_wait_refuses_while_it_is_closed(play: Play) -> None:
    async def scene() -> None:
        settings = _throttling()
        settings["models"]["m"]["wait"] = False
        async with opened(settings) as house:
            await until_closed(house.gateway)
            answer = await ask(house)
            assert (answer.status, answer.code) == (429, "upstream_throttled")

    play(scene)


def test_a_probe_that_passes_lets_those_in_who_waited(play: Play) -> None:
    """Closed for half a second, and a crowd that has time: none of them sees it."""

    async def scene() -> None:
        async with (
            OpenAIStub(*[error(429, headers={"Retry-After": "1"})] * 6, completion()) as stub,
            opened(one_model(openai_upstream(stub))) as house,
        ):
            await until_closed(house.gateway)
            answers = await asyncio.gather(*(ask(house) for _ in range(40)))
            assert {answer.status for answer in answers} == {200}
            assert not _status(house)["closed"]
            assert house.all_free

    play(scene)


def _status(house: House) -> dict[str, Any]:
    [found] = [one for one in house.gateway.status().upstreams if one.model == "m"]
    return {name: getattr(found, name) for name in found.__struct_fields__}


# ---- What was learned -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("quota", [{"requests_per_second": 20}, {"max_in_flight": 4}], ids=str)
def test_a_learned_limit_stands_in_the_status_and_the_metrics_with_its_words(
    play: Play, quota: dict[str, int]
) -> None:
    upstream = {"provider": "simulated", "latency_s": 0.2, "failure_latency_s": 0.01, "slots": 32, **quota}
    settings = wiring.read_settings({**HERE, "models": {"m": {"upstreams": [upstream]}}}, env={})

    async def scene() -> None:
        async with serve(settings, work=False) as served, httpx.AsyncClient(base_url=served.url) as http:
            before = await _gate_of_m(http)
            assert (before["limit"], before["limit_measure"], before["limit_most"]) == ("", None, None)
            told = await _drive_until_proven(served)

            gate = await _gate_of_m(http)
            measure = gate["limit_measure"]
            assert UNITS[measure] in gate["limit"]
            assert "on trial" in told[0]
            assert "on trial" not in gate["limit"]
            assert gate["limit_proven"] is True
            assert gate["limit_most"] > 1
            metrics = Page((await http.get("/metrics")).content)
            at = {"model": "m", "upstream": gate["upstream"]}
            assert metrics("headgate_limit", **at, measure=measure) == gate["limit_most"]
            assert metrics.labels("headgate_limit", "measure") == {measure}
            assert metrics("headgate_refused_share", **at) == gate["refused_share"]

    play(scene)


def test_who_follows_the_events_hears_that_a_limit_is_proven(play: Play) -> None:
    """Else a screen that shows events says for ever that it is on trial."""
    upstream = {"provider": "simulated", "latency_s": 0.2, "failure_latency_s": 0.01, "slots": 32}
    settings = {**HERE, "models": {"m": {"upstreams": [{**upstream, "max_in_flight": 4}]}}}

    async def scene() -> None:
        async with serve(wiring.read_settings(settings, env={}), work=False) as served:
            told = await _drive_until_proven(served)
            [gate] = [one for one in served.gateway.status().upstreams if one.model == "m"]
            assert told[-1] == gate.limit

    play(scene)


async def _gate_of_m(http: httpx.AsyncClient) -> dict[str, Any]:
    status = json.loads((await http.get("/queue/status")).content)
    [gate] = [one for one in status["upstreams"] if one["model"] == "m"]
    return dict(gate)


async def _drive_until_proven(served: Served) -> list[str]:
    """More callers than it takes, each with the next call as soon as it has an answer; what the events told of limits."""
    [upstream] = served.gateway.routes.find("m").upstreams
    told: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, LimitChanged):
            told.append(event.limit)

    served.gateway.listen(hear)

    async def caller() -> None:
        while upstream.limit is None or not upstream.limit.proven:
            await served.gateway.complete(model="m", messages=[{"role": "user", "content": "?"}])

    await asyncio.gather(*(caller() for _ in range(32)))
    return told
