"""Prices: right to the cent, unknown where nobody knows, never in the way of an answer."""

import logging
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import genai_prices
import msgspec
import pytest
from genai_prices.data_snapshot import get_snapshot
from stage import USER, set_stage

from headgate.core.answer import Usage
from headgate.core.events import Responded
from headgate.observe.prices import LOOK_AGAIN_S, Prices
from headgate.planner import virtual
from headgate.planner.virtual import World


@pytest.fixture(scope="module")
def prices() -> Prices:
    prices = Prices()
    prices.load().join(30)
    assert prices.loaded
    return prices


@pytest.mark.parametrize(
    ("provider", "model", "theirs"),
    [
        ("openai", "gpt-4o", "openai"),
        ("openai", "gpt-5-mini", "openai"),
        ("openai", "text-embedding-3-small", "openai"),
        ("anthropic", "claude-sonnet-4-5", "anthropic"),
        ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "aws"),
        ("bedrock", "amazon.nova-lite-v1:0", "aws"),
    ],
)
@pytest.mark.parametrize("tokens", [(1, 0), (1_000, 500), (200_000, 1), (200_001, 7), (0, 0)])
def test_a_cost_is_what_the_list_says(
    prices: Prices, provider: str, model: str, theirs: str, tokens: tuple[int, int]
) -> None:
    """Tiers included: above 200,000 tokens some models charge more for all of them."""
    usage = genai_prices.Usage(input_tokens=tokens[0], output_tokens=tokens[1])
    expected = genai_prices.calc_price(usage, model, provider_id=theirs).total_price

    assert prices.of(provider, model)(Usage(*tokens)) == pytest.approx(float(expected))


def test_every_price_of_our_providers_is_read_as_the_list_reads_it(prices: Prices) -> None:
    """What bills by the picture or the minute has no price per token, and so no cost here."""
    differing = []
    for provider in get_snapshot().providers:
        ours = {"openai": "openai", "anthropic": "anthropic", "aws": "bedrock"}.get(provider.id)
        for model in provider.models if ours else ():
            usage = genai_prices.Usage(input_tokens=250_000, output_tokens=100)
            try:
                found = genai_prices.calc_price(usage, model.id, provider_id=provider.id)
            except LookupError:
                continue
            cost = prices.of(str(ours), model.id)(Usage(250_000, 100))
            if found.model_price.input_mtok is None and found.model_price.output_mtok is None:
                assert cost is None
            elif cost != pytest.approx(float(found.total_price)):
                differing.append((model.id, cost, found.total_price))
    assert differing == []


@pytest.mark.parametrize(
    ("provider", "model", "base_url"),
    [
        ("openai", "no-such-model", None),
        ("openai", "gpt-4o", "http://127.0.0.1:8000/v1"),
        ("ollama", "gpt-4o", None),
        ("simulated", "gpt-4o", None),
        ("simulated", None, None),
        ("openai", None, None),
    ],
)
def test_what_nobody_bills_has_no_cost(
    prices: Prices, provider: str, model: str | None, base_url: str | None
) -> None:
    """A server of one's own may call its model gpt-4o; it still sends no bill."""
    assert prices.of(provider, model, base_url)(Usage(1000, 1000)) is None


def test_another_address_says_whose_price_it_is(prices: Prices) -> None:
    usage = Usage(1_000_000, 0)
    own = prices.of("openai", "gpt-4o", "https://api.openai.com/v1")(usage)
    groq = prices.of("openai", "llama-3.3-70b-versatile", "https://api.groq.com/openai/v1")(usage)

    assert own == prices.of("openai", "gpt-4o")(usage) is not None
    assert groq is not None
    assert groq != own


def test_before_the_list_is_there_costs_are_unknown_and_then_known() -> None:
    prices = Prices()
    price = prices.of("openai", "gpt-4o")
    assert price(Usage(1000, 1000)) is None
    loader = prices.load()
    assert prices.load() is loader
    loader.join(30)
    assert price(Usage(1000, 1000)) == pytest.approx(0.0125)


def test_nothing_of_the_list_is_imported_before_it_is_asked_for() -> None:
    """It takes a third of a second and 16 MB, which a start cannot spare."""
    code = "import sys, headgate.observe.prices as p; p.Prices().of('openai', 'x'); print('genai_prices' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def _with_list(find: Any, now: Any = time.monotonic) -> Prices:
    prices = Prices(now=now)
    prices._find = find
    return prices


def test_a_list_that_breaks_costs_the_cost_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    price = _with_list(broken).of("openai", "gpt-4o")
    with caplog.at_level(logging.ERROR, "headgate"):
        assert [price(Usage(1, 1)) for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1


def test_a_constant_price_is_looked_up_once_and_a_changing_one_every_minute() -> None:
    """Some models are cheaper at night."""
    clock, asked = [0.0], []

    def find(model: str, *_: object) -> Any:
        asked.append(model)
        flat = SimpleNamespace(input_mtok=len(asked), output_mtok=None)
        entry = SimpleNamespace(prices=[flat] if model == "changing" else flat)
        return SimpleNamespace(model=entry, model_price=flat)

    prices = _with_list(find, lambda: clock[0])
    constant, changing = prices.of("openai", "constant"), prices.of("openai", "changing")
    for now in (0.0, LOOK_AGAIN_S - 1, LOOK_AGAIN_S, 1e6):
        clock[0] = now
        constant(Usage(1, 1))
        changing(Usage(1, 1))
    assert asked.count("constant") == 1
    assert asked.count("changing") == 3


def test_asking_costs_a_microsecond(prices: Prices) -> None:
    price, usage, rounds, best_s = prices.of("anthropic", "claude-sonnet-4-5"), Usage(1000, 1000), 5_000, 1.0
    for _ in range(20):
        started = time.thread_time()
        for _ in range(rounds):
            price(usage)
        best_s = min(best_s, (time.thread_time() - started) / rounds)
    assert best_s < 3e-6


def test_the_cost_of_an_answer_is_in_its_event(prices: Prices) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"model": "instant"}, keep_events=True)
        stage.gateway.routes.find("m").upstreams[0].price = prices.of("openai", "gpt-4o")
        reply = await stage.gateway.complete(model="m", messages=USER)
        async with stage.gateway.stream(model="m", messages=USER) as stream:
            async for _ in stream:
                pass
        told = [event for event in stage.events if isinstance(event, Responded)]
        expected = reply.usage.input_tokens * 2.5e-6 + reply.usage.output_tokens * 10e-6
        assert [event.cost_usd for event in told] == pytest.approx([expected, expected])
        assert [event.first_token_ms is None for event in told] == [True, False]

    virtual.run(main)


def test_an_upstream_without_a_price_has_no_cost() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"model": "instant"}, keep_events=True)
        await stage.gateway.complete(model="m", messages=USER)
        assert [event.cost_usd for event in stage.events if isinstance(event, Responded)] == [None]

    virtual.run(main)


def test_the_cost_of_an_answer_over_http_is_in_its_reply(prices: Prices) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"model": "instant"}, keep_events=True)
        stage.gateway.routes.find("m").upstreams[0].price = prices.of("openai", "gpt-4o")
        messages = msgspec.Raw(msgspec.json.encode(USER))
        requests = stage.gateway.requests
        call = requests.begin("r", "m", {"messages": messages}, size_bytes=len(bytes(messages)))
        reply = await requests.answer(call)
        told = [event.cost_usd for event in stage.events if isinstance(event, Responded)]
        assert reply.cost_usd is not None
        assert told == [reply.cost_usd]

    virtual.run(main)
