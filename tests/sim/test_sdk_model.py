"""The model of the official SDK beside the SDK itself, both in virtual time: the network is the only double."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import openai
import pytest
from conftest import Figure
from weathers.offer import Outcome, offer
from weathers.real import ask_whole
from weathers.table import COMPARED, WEATHERS, Arrival
from weathers.virtual import Way, play, reach

from headgate.planner import sdk as sdk_model
from headgate.planner import virtual
from headgate.planner.sdk import Response
from headgate.planner.virtual import World

ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}],
}
SCRIPTS: dict[str, list[Response]] = {
    "an answer": [Response(200)],
    "a failure without a hint": [Response(500), Response(503), Response(200)],
    "too many failures": [Response(500), Response(502), Response(500), Response(200)],
    "a hint in seconds": [Response(429, {"retry-after": "7"}), Response(200)],
    "a hint in milliseconds comes first": [
        Response(429, {"retry-after": "7", "retry-after-ms": "1500"}),
        Response(200),
    ],
    "a hint with a fraction": [Response(503, {"retry-after": "0.25"}), Response(200)],
    "a hint that is no number": [Response(429, {"retry-after": "soon"}), Response(200)],
    "a hint of nothing": [Response(429, {"retry-after": "0"}), Response(200)],
    "a hint of two minutes": [Response(429, {"retry-after": "120"}), Response(200)],
    "a hint that is too long": [Response(429, {"retry-after": "121"}), Response(200)],
    "the server forbids a retry": [Response(503, {"x-should-retry": "false"}), Response(200)],
    "the server wants a retry": [Response(400, {"x-should-retry": "true"}), Response(200)],
    "a wrong request": [Response(400), Response(200)],
    "a timeout and a conflict": [Response(408), Response(409), Response(200)],
    "a connection that breaks": [Response(0), Response(0), Response(200)],
    "a connection that stays broken": [Response(0), Response(0), Response(0), Response(200)],
}

Handler = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


async def _client(world: World, handle: Handler) -> openai.AsyncOpenAI:
    """The real SDK, with its defaults but for the network."""
    ready = False

    async def first_loads(request: httpx2.Request) -> httpx2.Response:
        return await handle(request) if ready else httpx2.Response(200, json={"object": "list", "data": []})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(first_loads))
    client = openai.AsyncOpenAI(base_url="http://stub/v1", api_key="sk-0123456789", http_client=http)
    with world.loop.outside():  # Its first call reads the platform in a thread.
        await client.models.list()
    ready = True
    return client


def _respond(request: httpx2.Request, response: Response) -> httpx2.Response:
    if response.status == 0:
        raise httpx2.ReadError("the connection broke", request=request)
    return httpx2.Response(response.status, headers=dict(response.headers), json=ANSWER)


def _sdk_attempts(script: list[Response], max_retries: int, seed: int) -> tuple[list[float], bool]:
    """When the real SDK sends, and whether its caller gets an answer."""

    async def main(world: World) -> tuple[list[float], bool]:
        starts: list[float] = []

        async def handle(request: httpx2.Request) -> httpx2.Response:
            starts.append(world.clock.now())
            return _respond(request, script[len(starts) - 1])

        client = (await _client(world, handle)).with_options(max_retries=max_retries)
        begun = world.clock.now()
        random.seed(seed)  # The SDK draws its jitter from the module.
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
        answered = True
        try:
            await client.chat.completions.create(**body)
        except openai.APIError:
            answered = False
        await client.close()
        return [start - begun for start in starts], answered

    return virtual.run(main)


def _model_attempts(script: list[Response], max_retries: int, seed: int) -> tuple[list[float], bool]:
    async def main(world: World) -> tuple[list[float], bool]:
        starts: list[float] = []

        async def send() -> Response:
            starts.append(world.clock.now())
            return script[len(starts) - 1]

        chance = random.Random(seed).random
        response = await sdk_model.call(send, max_retries=max_retries, sleep=world.clock.sleep, chance=chance)
        return starts, response.status == 200

    return virtual.run(main)


@pytest.mark.parametrize("max_retries", [0, 2])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_the_model_sends_when_the_sdk_sends_and_gives_up_when_it_gives_up(
    script: list[Response], max_retries: int
) -> None:
    sdk_starts, sdk_answered = _sdk_attempts(script, max_retries, seed=7)
    starts, answered = _model_attempts(script, max_retries, seed=7)

    assert answered is sdk_answered
    assert starts == pytest.approx(sdk_starts)


def test_waits_double_from_half_a_second_to_eight_and_shrink_by_a_quarter_at_most() -> None:
    failed = Response(500)

    longest = [sdk_model.wait_s(failed, retry, lambda: 0.0) for retry in range(6)]
    shortest = [sdk_model.wait_s(failed, retry, lambda: 1.0) for retry in range(6)]

    assert longest == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert shortest == [0.75 * wait_s for wait_s in longest]


def test_the_model_has_the_sdks_own_figures() -> None:
    from openai import _constants as sdk  # noqa: PLC0415 - private: read where it is compared

    assert (sdk_model.FIRST_WAIT_S, sdk_model.MAX_WAIT_S) == (sdk.INITIAL_RETRY_DELAY, sdk.MAX_RETRY_DELAY)
    assert (sdk_model.MAX_RETRIES, sdk_model.MAX_HINT_S) == (
        sdk.DEFAULT_MAX_RETRIES,
        sdk.MAX_RETRY_AFTER_DELAY,
    )


def _with_the_real_sdk(name: str, seed: int) -> Outcome:
    async def main(world: World) -> Outcome:
        weather = WEATHERS[name]
        (upstream,) = weather.sky(seed)
        begin = 0.0

        async def handle(request: httpx2.Request) -> httpx2.Response:
            verdict = await reach(upstream, 1.0, world, begin)
            return _respond(request, Response(0 if verdict.cut else verdict.status, verdict.headers))

        client = await _client(world, handle)
        begin = world.clock.now()
        random.seed(seed)
        outcome = await offer(weather.arrivals(seed), ask_whole(client), world.clock)
        outcome.calls = len(upstream.log)
        await client.close()
        return outcome

    return virtual.run(main, seed=seed)


@pytest.mark.parametrize("name", COMPARED)
def test_in_these_weathers_the_model_gets_what_the_real_sdk_gets_within_two_percent(
    name: str, figure: Figure
) -> None:
    model, _ = play(WEATHERS[name], Way.SDK, seed=3)
    real = _with_the_real_sdk(name, seed=3)

    figure(
        f"the SDK in {name}: model / real",
        f"answered {model.answered} / {real.answered}, p50 {model.percentile_s(0.5):.3f} / {real.percentile_s(0.5):.3f} s, "
        f"p99 {model.percentile_s(0.99):.2f} / {real.percentile_s(0.99):.2f} s, calls {model.calls} / {real.calls}",
    )
    assert model.answered == pytest.approx(real.answered, rel=0.02)
    assert model.calls == pytest.approx(real.calls, rel=0.02)
    assert model.percentile_s(0.5) == pytest.approx(real.percentile_s(0.5), rel=0.02)


def test_a_call_that_takes_longer_than_its_caller_waits_is_not_answered() -> None:
    async def main(world: World) -> Outcome:
        async def ask(arrival: Arrival) -> str:
            await asyncio.sleep(arrival.size)
            return ""

        arrivals = [Arrival(0.0, 5.0), Arrival(1.0, 15.0)]
        return await offer(arrivals, ask, world.clock, patience_s=10.0)

    outcome = virtual.run(main)

    assert outcome.took_s == [5.0]
    assert dict(outcome.refused) == {"no answer in time": 1}
    assert outcome.percentile_s(0.99) == 10.0
