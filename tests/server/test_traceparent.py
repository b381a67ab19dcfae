"""`traceparent` over HTTP: the caller's trace goes on through the gateway to the provider, and nowhere else."""

import asyncio

import pytest
from observe.tracing_stage import said, span_id, trace_id, traced
from opentelemetry.trace import SpanKind
from providers.stubs.openai import OpenAIStub, completion, error, events, stream, words
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import CHAT, EMBEDDINGS, ask, one_model, openai_upstream

from headgate.core.events import Event

CALLER = "0af7651916cd43dd8448eb211c80319c"
STEP = "b7ad6b7169203331"
SAMPLED = f"traceparent: 00-{CALLER}-{STEP}-01"


def test_the_caller_s_trace_goes_on_to_the_provider_with_each_attempt_s_own_span(play: Play) -> None:
    found = traced()

    async def scene() -> None:
        async with (
            OpenAIStub(error(503), completion()) as stub,
            opened(one_model(openai_upstream(stub)), tracing=found.tracing) as house,
        ):
            answer = await ask(house, CHAT, SAMPLED)
            assert answer.status == 200
            request = found.request
            assert said(request)["headgate.request.id"] == answer.headers["x-request-id"]
            assert (trace_id(request), request.kind) == (CALLER, SpanKind.SERVER)
            assert request.parent is not None
            assert f"{request.parent.span_id:016x}" == STEP
            attempts = found.children(request)
            assert [span.name for span in attempts] == ["chat upstream-model"] * 2
            assert [seen.headers["traceparent"] for seen in stub.requests] == [
                f"00-{CALLER}-{span_id(span)}-01" for span in attempts
            ]

    play(scene)


@pytest.mark.parametrize("streamed", [False, True])
def test_without_a_caller_s_trace_one_begins_here(play: Play, *, streamed: bool) -> None:
    found = traced()

    async def scene() -> None:
        reply = stream(events(*words())) if streamed else completion()
        async with (
            OpenAIStub(reply) as stub,
            opened(one_model(openai_upstream(stub)), tracing=found.tracing) as house,
        ):
            await asyncio.gather(*(ask(house, CHAT, stream=streamed) for _ in range(3)))
            sent = {seen.headers["traceparent"] for seen in stub.requests}
            attempts = [span for request in found.requests for span in found.children(request)]
            assert sent == {f"00-{trace_id(span)}-{span_id(span)}-01" for span in attempts}
            assert len({trace_id(request) for request in found.requests}) == 3

    play(scene)


def test_a_caller_that_does_not_sample_is_obeyed_and_passed_on(play: Play) -> None:
    found = traced()

    async def scene() -> None:
        async with (
            OpenAIStub(completion()) as stub,
            opened(one_model(openai_upstream(stub)), tracing=found.tracing) as house,
        ):
            await ask(house, CHAT, f"traceparent: 00-{CALLER}-{STEP}-00")
            assert found.spans == ()
            version, passed_on, _, flags = stub.requests[0].headers["traceparent"].split("-")
            assert (version, passed_on, flags) == ("00", CALLER, "00")

    play(scene)


@pytest.mark.parametrize("told", ["nonsense", "", f"00-{'0' * 32}-{STEP}-01", "\xff" * 8, "00-" + "a" * 4000])
def test_a_traceparent_that_makes_no_sense_is_left_aside(play: Play, told: str) -> None:
    """No trace is worth a refused request."""
    found = traced()

    async def scene() -> None:
        async with (
            OpenAIStub(completion()) as stub,
            opened(one_model(openai_upstream(stub)), tracing=found.tracing) as house,
        ):
            assert (await ask(house, CHAT, f"traceparent: {told}", f"traceparent: {told}")).status == 200
            assert found.request.parent is None
            assert stub.requests[0].headers["traceparent"].split("-")[1] == trace_id(found.request)

    play(scene)


def test_without_tracing_a_provider_is_told_nothing(play: Play) -> None:
    """A trace id is the caller's business, not that of whoever serves the model."""

    async def scene() -> None:
        async with OpenAIStub(completion()) as stub, opened(one_model(openai_upstream(stub))) as house:
            assert (await ask(house, CHAT, SAMPLED)).status == 200
            assert "traceparent" not in stub.requests[0].headers

    play(scene)


def test_embeddings_are_told_as_such(play: Play) -> None:
    found = traced()

    async def scene() -> None:
        simulated = {"provider": "simulated", "latency_s": 0}
        async with opened(one_model(simulated), tracing=found.tracing) as house:
            assert (await ask(house, EMBEDDINGS)).status == 200
            assert found.request.name == "embeddings m"

    play(scene)


def test_listeners_that_break_hurt_no_request(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """Tracing and the ring of events fail at every event; the answers are as ever."""
    found = traced()

    class Broken(Exception):
        pass

    def broken(*_: Event) -> None:
        raise Broken

    async def scene() -> None:
        async with opened(
            one_model({"provider": "simulated", "latency_s": 0}), tracing=found.tracing
        ) as house:
            found.tracing._utc = house.serving._ring._utc = broken  # type: ignore[assignment]
            for streamed in (False, True):
                assert (await ask(house, CHAT, stream=streamed)).status == 200
            assert found.spans == ()
            assert house.serving._ring.last == 0
        blamed = [record for record in caplog.records if "event listener" in record.message]
        assert len(blamed) == 2
        caplog.clear()

    play(scene)
