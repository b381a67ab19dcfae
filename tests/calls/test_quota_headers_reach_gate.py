"""What a provider says about its quotas in headers holds back the next call at the gate: real providers, a real server."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from calls.bodies import a_stream, answer, bytes_of
from calls.hedge_stage import hedge
from providers.stubs import anthropic, openai
from providers.stubs.openai import OpenAIStub
from providers.stubs.scripted import CUT, HANG, Reply, ScriptedServer
from stage import USER

from headgate import wiring
from headgate.calls.upstream import Upstream
from headgate.core.errors import HeadgateError, UpstreamThrottled
from headgate.core.retry import RetryPolicy
from headgate.gateway import Gateway
from headgate.machine.clock import SystemClock

ONCE: Final = RetryPolicy(max_attempts=1, count_throttles=True)
RESET_S: Final = 600.0
LIMIT: Final = 100
NEXT_S: Final = RESET_S / LIMIT
"""So long after a call that took the last one the bucket has the next."""
CLOCK: Final = SystemClock()


def _openai_says(what: str = "requests", remaining: int = 0) -> Mapping[str, str]:
    fields = {"limit": str(LIMIT), "remaining": str(remaining), "reset": "10m0s"}
    return {f"x-ratelimit-{name}-{what}": value for name, value in fields.items()}


def _anthropic_says(what: str = "requests", remaining: int = 0) -> Mapping[str, str]:
    full_again = datetime.now(UTC) + timedelta(seconds=RESET_S)
    fields = {"limit": str(LIMIT), "remaining": str(remaining), "reset": full_again.isoformat()}
    return {f"anthropic-ratelimit-{what}-{name}": value for name, value in fields.items()}


SAYS: Final = {"openai": _openai_says, "anthropic": _anthropic_says}
WHOLE: Final = {"openai": openai.completion(), "anthropic": anthropic.said(anthropic.TEXT_BLOCK)}
STREAM: Final = {
    "openai": openai.stream(openai.events(*openai.words())),
    "anthropic": anthropic.events(
        anthropic.START, *anthropic.text_block(0, "Hello", "!"), *anthropic.ending()
    ),
}
BEGUN: Final = {
    "openai": openai.stream(openai.events(*openai.words(1))[:2]),
    "anthropic": anthropic.events(anthropic.START, *anthropic.text_block(0, "Hello")[:-1]),
}
"""A stream up to its first content."""
REFUSED: Final = {"openai": openai.error(429), "anthropic": anthropic.error(429, "rate_limit_error")}
PROVIDERS: Final = pytest.mark.parametrize("provider", ["openai", "anthropic"])


def _with(reply: Reply, *headers: Mapping[str, str], **more: Any) -> Reply:
    return replace(
        reply, headers={**reply.headers, **{k: v for one in headers for k, v in one.items()}}, **more
    )


@asynccontextmanager
async def _opened(provider: str, *scripts: list[Reply], **model: Any) -> AsyncIterator[Gateway]:
    """A gateway whose model `m` has an upstream for each of these scripts."""
    kind = {"openai": OpenAIStub, "anthropic": ScriptedServer}[provider]
    servers = [kind(*script) for script in scripts]
    for server in servers:
        await server.__aenter__()
    upstreams = [
        {"provider": provider, "model": f"m{place}", "base_url": server.url, "api_key": "sk-0123456789"}
        for place, server in enumerate(servers)
    ]
    settings = wiring.read_settings({"models": {"m": {"upstreams": upstreams, **model}}}, env={})
    gateway = wiring.build(settings, clock=CLOCK)
    for upstream in gateway.routes.find("m").upstreams:
        # Calls that test the headers have tests of their own.
        upstream.gate.admission.intake._allowance._test_at = math.inf
    try:
        yield gateway
    finally:
        await gateway.aclose(drain_s=0.0)
        for server in servers:
            await server.__aexit__(None, None, None)


def _upstream(gateway: Gateway, place: int = 0) -> Upstream:
    return gateway.routes.find("m").upstreams[place]


def _opens_at(gateway: Gateway, tokens: float = 0.0, place: int = 0) -> float:
    return _upstream(gateway, place).gate.admission.intake.next_at(CLOCK.now(), tokens, "local")


async def _complete(gateway: Gateway) -> None:
    await gateway.complete(model="m", messages=USER, retry=ONCE)


async def _read(gateway: Gateway) -> None:
    async with gateway.stream(model="m", messages=USER, retry=ONCE) as stream:
        async for _ in stream:
            pass


async def _pass_through(gateway: Gateway) -> None:
    await answer(gateway)


async def _stream_through(gateway: Gateway) -> None:
    await bytes_of(a_stream(gateway))


Way = Callable[[Gateway], Awaitable[None]]
WAYS: Final = pytest.mark.parametrize(
    ("ask", "replies"),
    [(_complete, WHOLE), (_read, STREAM), (_pass_through, WHOLE), (_stream_through, STREAM)],
    ids=["whole", "streamed", "passed through", "stream passed through"],
)


async def _next_start(gateway: Gateway, ask: Way, *, refused: bool = False) -> tuple[float, float, float]:
    """When the gate opens for the next call after this one, and when this one began and ended."""
    began = CLOCK.now()
    if refused:
        with pytest.raises(UpstreamThrottled):
            await ask(gateway)
    else:
        await ask(gateway)
    ended = CLOCK.now()
    return _opens_at(gateway), began, ended


# ---- Answers and refusals -----------------------------------------------------------------------------------------


@PROVIDERS
@WAYS
def test_the_headers_of_an_answer_reach_the_gate(
    provider: str, ask: Way, replies: Mapping[str, Reply]
) -> None:
    async def main() -> None:
        async with _opened(provider, [_with(replies[provider], SAYS[provider]())]) as gateway:
            opens_at, began, ended = await _next_start(gateway, ask)
            # A date instead of a span is a little nearer by the time it is read.
            slack_s = 0.5 if provider == "anthropic" else 0.0
            assert began + NEXT_S - slack_s <= opens_at <= ended + NEXT_S + 0.001

    asyncio.run(main())


@PROVIDERS
@pytest.mark.parametrize("ask", [_complete, _read], ids=["whole", "streamed"])
def test_the_headers_of_a_429_reach_the_gate(provider: str, ask: Way) -> None:
    async def main() -> None:
        async with _opened(provider, [_with(REFUSED[provider], SAYS[provider]())]) as gateway:
            opens_at, began, ended = await _next_start(gateway, ask, refused=True)
            assert not _upstream(gateway).closed
            assert began + NEXT_S - 0.5 <= opens_at <= ended + NEXT_S + 0.001

    asyncio.run(main())


@PROVIDERS
@WAYS
def test_without_such_headers_the_gate_stays_open(
    provider: str, ask: Way, replies: Mapping[str, Reply]
) -> None:
    async def main() -> None:
        for headers in ({}, {"x-ratelimit-limit": "100", "x-ratelimit-remaining-requests": "0"}):
            async with _opened(provider, [_with(replies[provider], headers)]) as gateway:
                await ask(gateway)
                assert _opens_at(gateway) <= CLOCK.now() + 0.5, "at once, but for the spacing of a burst"
                assert not _upstream(gateway).gate.admission.intake._allowance.known

    asyncio.run(main())


@PROVIDERS
@pytest.mark.parametrize("ask", [_complete, _read], ids=["whole", "streamed"])
def test_tokens_hold_back_a_large_call_and_let_a_small_one_pass(provider: str, ask: Way) -> None:
    async def main() -> None:
        replies = WHOLE if ask is _complete else STREAM
        script = [_with(replies[provider], SAYS[provider]("tokens", remaining=50))]
        async with _opened(provider, script) as gateway:
            await ask(gateway)
            assert _opens_at(gateway, 10) <= CLOCK.now() + 0.5
            assert _opens_at(gateway, 90) > CLOCK.now() + 100, (
                "40 of 100 are missing, and 50 come in ten minutes"
            )

    asyncio.run(main())


@PROVIDERS
@pytest.mark.parametrize("ending", [CUT, HANG])
def test_a_stream_s_headers_count_before_its_end_and_whatever_that_is(provider: str, ending: str) -> None:
    async def main() -> None:
        begun = _with(BEGUN[provider], SAYS[provider](), ending=ending)
        async with _opened(provider, [begun]) as gateway:
            async with gateway.stream(model="m", messages=USER, retry=ONCE) as stream:
                await anext(stream)
                assert _opens_at(gateway) > CLOCK.now() + NEXT_S / 2
                if ending == CUT:
                    with pytest.raises(HeadgateError):
                        async for _ in stream:
                            pass
            assert _opens_at(gateway) > CLOCK.now() + NEXT_S / 2

    asyncio.run(main())


def test_the_headers_of_embeddings_reach_the_gate() -> None:
    async def main() -> None:
        async with _opened("openai", [_with(openai.embeddings(), _openai_says())]) as gateway:
            await gateway.embed(model="m", input=["first", "second"])
            assert _opens_at(gateway) > CLOCK.now() + NEXT_S / 2

    asyncio.run(main())


@PROVIDERS
@pytest.mark.parametrize(
    "broken",
    [{"status": 500}, {"status": 400}, {"body": b"{", "status": 200}, {"ending": CUT, "body": b"{"}],
    ids=["500", "400", "no answer", "cut off"],
)
def test_the_headers_of_other_failures_count_as_well(provider: str, broken: dict[str, Any]) -> None:
    async def main() -> None:
        async with _opened(provider, [_with(WHOLE[provider], SAYS[provider](), **broken)]) as gateway:
            with pytest.raises(HeadgateError):
                await _complete(gateway)
            assert _opens_at(gateway) > CLOCK.now() + NEXT_S / 2

    asyncio.run(main())


def test_broken_headers_do_not_break_the_call() -> None:
    async def main() -> None:
        for value in ("", "-1", "nan", "1e999", "soon", "0x10", "ünvalid"):
            reply = _with(openai.completion(), dict.fromkeys(_openai_says(), value))
            async with _opened("openai", [reply]) as gateway:
                await _complete(gateway)
                assert _opens_at(gateway) <= CLOCK.now() + 0.5

    asyncio.run(main())


# ---- Whose headers ------------------------------------------------------------------------------------------------


def test_each_attempt_of_a_call_reads_its_own_headers() -> None:
    """First one upstream, then the next: what the first said is not the second's."""

    async def main() -> None:
        first, second = [_with(openai.error(500), _openai_says())], [openai.completion()]
        async with _opened("openai", first, second) as gateway:
            await _complete(gateway)
            now = CLOCK.now()
            assert _opens_at(gateway, place=0) > now + NEXT_S / 2
            assert not _upstream(gateway, 1).gate.admission.intake._allowance.known

    asyncio.run(main())


def test_two_attempts_at_once_read_their_own_headers() -> None:
    async def main() -> None:
        hanging = [_with(openai.completion(), {}, silent=True)]
        answering = [_with(openai.completion(), _openai_says())]
        async with _opened("openai", hanging, answering) as gateway:
            hedge(gateway, after=0.05)
            await _complete(gateway)
            assert not _upstream(gateway, 0).gate.admission.intake._allowance.known
            assert _opens_at(gateway, place=1) > CLOCK.now() + NEXT_S / 2

    asyncio.run(main())


def test_of_calls_in_flight_together_the_latest_started_counts() -> None:
    async def main() -> None:
        slow = _with(openai.completion(), _openai_says(remaining=99), end_after_s=0.3)
        quick = _with(openai.completion(), _openai_says(remaining=0))
        async with _opened("openai", [slow, quick]) as gateway:
            first = asyncio.create_task(_complete(gateway))
            while not _upstream(gateway).calls_made:  # noqa: ASYNC110 - another task's doing
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            await _complete(gateway)
            await first
            assert _opens_at(gateway) > CLOCK.now() + NEXT_S / 2

    asyncio.run(main())
