"""`X-Headgate-Wait: no`, over HTTP: refused at once where a call would have to wait for its upstream, served as usual elsewhere."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, Final

import pytest
from providers.stubs import openai
from providers.stubs.openai import OpenAIStub
from providers.stubs.scripted import Reply
from server.http.front_stage import Answer, Play
from server.stage import House, opened
from server.upstreams import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    QUICK,
    ask,
    look,
    one_model,
    openai_stub,
    openai_upstream,
    until,
)

from headgate.calls.upstream import Upstream
from headgate.core import events

NO: Final = "X-Headgate-Wait: no"
YES: Final = "X-Headgate-Wait: yes"
ONCE: Final = {"max_attempts": 1, "first_wait_s": 0.01, "count_throttles": True}
CLOSED_S: Final = 60.0
THROTTLED: Final = openai.error(429, headers={"Retry-After": "60"})
FAILING: Final = openai.error(503)
KINDS: Final = pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [(THROTTLED, 429, "upstream_throttled"), (FAILING, 503, "upstream_unavailable")],
    ids=["throttled", "failing"],
)
ANSWERS: Final[Mapping[str, Reply]] = {
    CHAT: openai.completion(),
    COMPLETIONS: openai.text_completion(),
    EMBEDDINGS: openai.embeddings(),
}


def _upstream(house: House, place: int = 0) -> Upstream:
    return house.gateway.routes.find("m").upstreams[place]


def _closed_for(house: House, seconds: float, place: int = 0) -> None:
    """As after some probes that failed."""
    gate = _upstream(house, place).gate
    closed = gate.admission.intake.closed
    assert closed is not None
    closed.until = time.monotonic() + seconds
    gate.look_again()


async def _close(house: House) -> None:
    """As many refused calls as close it."""
    while not _upstream(house).closed:
        assert (await ask(house, CHAT, NO)).status in {429, 502, 503}
    _closed_for(house, CLOSED_S)


def _recover(stub: OpenAIStub, path: str = CHAT) -> None:
    """From now on it answers."""
    stub._replies = [ANSWERS[path]]


def _retry_after_s(answer: Answer) -> float:
    return float(answer.headers["retry-after"])


# ---- While the upstream is closed ---------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    ("path", "stream"), [(CHAT, False), (CHAT, True), (COMPLETIONS, False), (EMBEDDINGS, False)]
)
def test_an_impatient_request_is_refused_at_once_with_the_time_to_come_back(
    play: Play, refusal: Reply, status: int, code: str, path: str, stream: bool
) -> None:
    async def scene() -> None:
        async with (
            openai_stub(refusal) as stub,
            opened(one_model(openai_upstream(stub), retry=ONCE)) as house,
        ):
            await _close(house)
            sent = len(stub.requests)
            answer = await ask(house, path, NO, stream=stream)
            assert (answer.status, answer.code) == (status, code)
            assert CLOSED_S - 10 <= _retry_after_s(answer) <= 1.25 * CLOSED_S + 1
            assert len(stub.requests) == sent, "the upstream was left alone"
            refusals = [event.reason for event in house.events if isinstance(event, events.RequestRefused)]
            assert refusals[-1] == code
            assert house.all_free

    play(scene)


@KINDS
@pytest.mark.parametrize("headers", [(), (YES,)], ids=["no header", "yes"])
def test_a_patient_request_waits_until_the_upstream_takes_calls_again(
    play: Play, refusal: Reply, status: int, code: str, headers: tuple[str, ...]
) -> None:
    async def scene() -> None:
        async with (
            openai_stub(refusal) as stub,
            opened(one_model(openai_upstream(stub), retry=ONCE)) as house,
        ):
            await _close(house)
            _recover(stub)
            sent = len(stub.requests)
            waiting = [asyncio.create_task(ask(house, CHAT, *headers)) for _ in range(3)]
            await until(lambda: house.gateway.status().rt_queue == 3)
            assert (await ask(house, CHAT, NO)).code == code
            assert len(stub.requests) == sent
            _closed_for(house, 0.0)
            assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 3
            assert (await ask(house, CHAT, NO)).status == 200
            assert house.all_free

    play(scene)


def test_an_impatient_request_may_be_the_probe(play: Play) -> None:
    """Nobody would ever find out otherwise, where all are impatient."""

    async def scene() -> None:
        async with (
            openai_stub(THROTTLED) as stub,
            opened(one_model(openai_upstream(stub), retry=ONCE)) as house,
        ):
            await _close(house)
            _recover(stub)
            _closed_for(house, 0.0)
            assert (await ask(house, CHAT, NO)).status == 200
            assert not _upstream(house).closed

    play(scene)


def test_those_in_line_are_refused_when_the_upstream_closes(play: Play) -> None:
    async def scene() -> None:
        async with (
            openai_stub(THROTTLED) as stub,
            opened(one_model(openai_upstream(stub, slots=1), retry=ONCE)) as house,
        ):
            answers = await asyncio.gather(*(ask(house, CHAT, NO) for _ in range(20)))
            assert {(answer.status, answer.code) for answer in answers} == {(429, "upstream_throttled")}
            assert all(_retry_after_s(answer) >= 1 for answer in answers)
            assert _upstream(house).closed
            assert len(stub.requests) < 20, "the others were not sent"
            assert house.all_free

    play(scene)


def test_a_model_that_does_not_wait_refuses_everybody(play: Play) -> None:
    async def scene() -> None:
        async with (
            openai_stub(THROTTLED) as stub,
            opened(one_model(openai_upstream(stub), retry=ONCE, wait=False)) as house,
        ):
            await _close(house)
            sent = len(stub.requests)
            for headers in ((), (YES,), (NO,)):
                answer = await ask(house, CHAT, *headers)
                assert (answer.status, answer.code) == (429, "upstream_throttled")
                assert _retry_after_s(answer) >= CLOSED_S - 10
            assert len(stub.requests) == sent

    play(scene)


def test_an_impatient_request_goes_to_another_upstream_and_is_refused_only_if_all_are_closed(
    play: Play,
) -> None:
    async def scene() -> None:
        async with (
            openai_stub(THROTTLED) as first,
            openai_stub(openai.completion(), THROTTLED) as second,
        ):
            upstreams = [openai_upstream(stub, model=name) for stub, name in ((first, "a"), (second, "b"))]
            async with opened(one_model(*upstreams, retry=ONCE, patience_s=0)) as house:
                intakes = [_upstream(house, place).gate.admission.intake for place in (0, 1)]
                now = time.monotonic()
                intakes[0].until = now + CLOSED_S
                answer = await ask(house, CHAT, NO)
                assert (answer.status, answer.headers["x-headgate-upstream"]) == (200, "openai/b")
                intakes[1].until = time.monotonic() + 20.0
                answer = await ask(house, CHAT, NO)
                assert answer.status == 429
                assert 10 <= _retry_after_s(answer) <= 26, "the sooner of both"
                assert (len(first.requests), len(second.requests)) == (0, 1)

    play(scene)


def test_a_request_that_was_refused_has_not_used_its_key(play: Play) -> None:
    async def scene() -> None:
        async with (
            openai_stub(THROTTLED) as stub,
            opened(one_model(openai_upstream(stub), retry=ONCE)) as house,
        ):
            await _close(house)
            for stream in (False, True):
                answer = await ask(house, CHAT, NO, f"Idempotency-Key: k{stream}", stream=stream)
                assert answer.status == 429
            _recover(stub)
            _closed_for(house, 0.0)
            answer = await ask(house, CHAT, NO, "Idempotency-Key: kFalse")
            assert answer.status == 200
            assert "idempotent-replayed" not in answer.headers

    play(scene)


def test_an_impatient_request_to_a_model_that_gathers_is_refused_at_once_too(play: Play) -> None:
    async def scene() -> None:
        throttled = {"status": 429, "retry_after_s": 60}
        upstream = {"provider": "simulated", "latency_s": 0.0, "many_inputs": 10, "outcome": throttled}
        settings = one_model(upstream, retry=ONCE, gather={"size": 10, "wait_ms": 0})
        async with opened(settings) as house:
            await _close(house)
            async with asyncio.timeout(10):
                answer = await ask(house, CHAT, NO)
            assert (answer.status, answer.code) == (429, "upstream_throttled")

    play(scene)


def test_a_job_is_taken_in_whatever_the_header_says(play: Play) -> None:
    """It waits in the database, where it holds up nobody."""

    async def scene() -> None:
        async with (
            openai_stub(THROTTLED) as stub,
            opened(one_model(openai_upstream(stub), retry=ONCE)) as house,
        ):
            await _close(house)
            answer = await ask(house, CHAT, NO, "Prefer: respond-async")
            assert answer.status == 202

    play(scene)


# ---- While it takes calls -----------------------------------------------------------------------------------------


def _saying(remaining: int, limit: int, reset: str) -> Reply:
    allowance = {
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-reset-requests": reset,
    }
    return openai.whole(json.loads(openai.completion().body), headers={**openai.JSON, **allowance})


@pytest.mark.parametrize(
    ("limit", "reset", "status"),
    [(10, "1m0s", 429), (20, "40s", 429), (100, "30s", 200), (1000, "1m0s", 200)],
    ids=["in 6 s", "in 2 s", "in 0.3 s", "in 60 ms"],
)
def test_under_a_limit_it_waits_no_longer_than_a_second(
    play: Play, limit: int, reset: str, status: int
) -> None:
    async def scene() -> None:
        async with (
            openai_stub(_saying(0, limit, reset), openai.completion()) as stub,
            opened(one_model(openai_upstream(stub))) as house,
        ):
            assert (await ask(house, CHAT, NO)).status == 200
            answer = await ask(house, CHAT, NO)
            assert answer.status == status
            assert len(stub.requests) == (2 if status == 200 else 1)
            if status == 429:
                assert answer.code == "upstream_throttled"
                assert 1 <= _retry_after_s(answer) <= 9

    play(scene)


def test_it_waits_in_line_for_a_slot_as_usual(play: Play) -> None:
    async def scene() -> None:
        slow = openai.completion()
        held = Reply(slow.body, headers=slow.headers, end_after_s=0.2)
        async with (
            openai_stub(held, held, held, openai.completion()) as stub,
            opened(one_model(openai_upstream(stub, slots=1))) as house,
        ):
            answers = [asyncio.create_task(ask(house, CHAT, NO)) for _ in range(4)]
            await until(lambda: house.gateway.status().rt_queue == 3)
            assert [answer.status for answer in await asyncio.gather(*answers)] == [200] * 4
            assert house.all_free

    play(scene)


def test_its_own_retries_are_made_as_usual(play: Play) -> None:
    async def scene() -> None:
        async with (
            openai_stub(openai.error(429), openai.error(503), openai.completion()) as stub,
            opened(one_model(openai_upstream(stub), retry={**QUICK, "max_attempts": 3})) as house,
        ):
            answer = await ask(house, CHAT, NO)
            assert (answer.status, answer.headers["x-headgate-attempts"]) == (200, "3")

    play(scene)


# ---- The header itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["maybe", "", "0", "1", "true", "false", "no, no", "\xa0no"])
def test_another_value_is_refused_by_the_header_s_name(play: Play, value: str) -> None:
    async def scene() -> None:
        async with openai_stub(openai.completion()) as stub, _served(stub) as house:
            answer = await ask(house, CHAT, f"X-Headgate-Wait: {value}")
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["param"]) == (400, "X-Headgate-Wait")
            assert "yes or no" in error["message"]
            assert not stub.requests

    play(scene)


def test_said_twice_it_is_refused(play: Play) -> None:
    async def scene() -> None:
        async with openai_stub(openai.completion()) as stub, _served(stub) as house:
            answer = await ask(house, CHAT, NO, YES)
            assert answer.status == 400
            assert json.loads(answer.body)["error"]["param"].lower() == "x-headgate-wait"
            assert not stub.requests

    play(scene)


@pytest.mark.parametrize("line", ["X-HEADGATE-WAIT: NO", "x-headgate-wait:No", "X-Headgate-Wait:  no \t"])
def test_case_and_blanks_do_not_matter(play: Play, line: str) -> None:
    async def scene() -> None:
        async with openai_stub(openai.completion()) as stub, _served(stub) as house:
            intake = _upstream(house).gate.admission.intake
            assert (await ask(house, CHAT, line)).status == 200
            intake.until = time.monotonic() + CLOSED_S
            assert (await ask(house, CHAT, line)).status == 429

    play(scene)


def test_the_description_for_machines_names_it(play: Play) -> None:
    async def scene() -> None:
        async with openai_stub(openai.completion()) as stub, _served(stub) as house:
            paths = json.loads((await look(house, "/openapi.json")).body)["paths"]
            for path in (CHAT, COMPLETIONS, EMBEDDINGS):
                named = [parameter.get("name") for parameter in paths[path]["post"]["parameters"]]
                assert "X-Headgate-Wait" in named, path

    play(scene)


def _served(stub: OpenAIStub) -> Any:
    return opened(one_model(openai_upstream(stub)))
