"""One hostile tenant beside nine good ones, before the real gates and dispatcher, in virtual time.

The measure is a run in which the tenth tenant is good and makes the same number of calls.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from conftest import Figure
from stage import percentile

from headgate import wiring
from headgate.core.answer import Answer, Usage
from headgate.core.call import Call, Format
from headgate.core.errors import HeadgateError, ProviderFailure
from headgate.core.failures import from_answer
from headgate.formats import chat
from headgate.gateway import Gateway
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.wiring.providers import ProviderKind, Surroundings

SECONDS: Final = 60.0
GOOD: Final = tuple(f"good-{number}" for number in range(9))
GOOD_PER_S: Final = 1.0
"""Of each good tenant."""
BAD: Final = "bad"
DEADLINE_S: Final = 30.0
SEEDS: Final = (1, 2, 3)


class Judging:
    """An upstream that answers, but for requests that say how they want to be refused."""

    formats = frozenset({Format.CHAT})
    reads = True

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._services = random.Random(f"{seed} services")

    async def send(self, call: Call) -> Answer:
        wish = str(chat.read_request(call).messages[0]["content"])
        took_s = 0.4 * self._services.lognormvariate(0, 0.4)
        if wish.isdigit():
            await self._world.clock.sleep(0.02)
            headers = {"retry-after": "20"} if wish == "429" else {}
            raise ProviderFailure(from_answer(int(wish), headers, now=self._world.clock.utc()))
        await self._world.clock.sleep(30.0 if wish == "slow" else took_s)
        return chat.write_answer(call, content="An answer.", finish_reason="stop", usage=Usage(100, 10))

    async def aclose(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    tenant: str
    wish: str = "hello"
    params: Mapping[str, Any] = field(default_factory=dict)


Attack = Callable[[random.Random], Iterator[Arrival]]


def _evenly(per_s: float, wish: str, **params: Any) -> Attack:
    def calls(rng: random.Random) -> Iterator[Arrival]:
        at = 0.0
        while (at := at + rng.expovariate(per_s)) < SECONDS:
            yield Arrival(at, BAD, wish, params)

    return calls


def _volleys(size: int, every_s: float) -> Attack:
    def calls(rng: random.Random) -> Iterator[Arrival]:
        for start in range(0, int(SECONDS), int(every_s)):
            for _ in range(size):
                yield Arrival(start + rng.random() * 0.1, BAD)

    return calls


def _together(*attacks: Attack) -> Attack:
    def calls(rng: random.Random) -> Iterator[Arrival]:
        for attack in attacks:
            yield from attack(rng)

    return calls


OPEN: Final[Mapping[str, Any]] = {"slots": 16}
SMALL: Final[Mapping[str, Any]] = {"slots": 8, "depth": 30}
TOKENS: Final[Mapping[str, Any]] = {"slots": 16, "tokens_per_minute": 200_000}

ATTACKS: Final[Mapping[str, tuple[Mapping[str, Any], Attack]]] = {
    "a model that its endpoint does not serve (404)": (OPEN, _evenly(3.0, "404")),
    "a request that is not permitted (403)": (OPEN, _evenly(3.0, "403")),
    "a key that is wrong for its request (401)": (OPEN, _evenly(3.0, "401")),
    "a method that is not implemented (501)": (OPEN, _evenly(3.0, "501")),
    "requests that make the upstream fail (500)": (OPEN, _evenly(3.0, "500")),
    "requests that are throttled for their size (429)": (OPEN, _evenly(3.0, "429")),
    "ten million tokens asked for": (TOKENS, _evenly(0.2, "hello", max_tokens=10_000_000)),
    "a token window that slow calls reserve": (TOKENS, _evenly(1.0, "slow", max_tokens=60_000)),
    "a queue that is filled": (SMALL, _volleys(60, 5.0)),
    "answers of half a minute": (OPEN, _evenly(1.0, "slow")),
}
ATTACKS_AT_ONCE: Final = _together(
    *(_evenly(0.7, wish) for wish in ("404", "403", "401", "501", "500", "429")),
    _evenly(0.1, "hello", max_tokens=10_000_000),
    _evenly(0.3, "slow"),
    _volleys(40, 10.0),
)


@dataclass(slots=True)
class Seen:
    """What the good tenants got."""

    offered: int = 0
    took_s: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def add(self, other: "Seen") -> None:
        self.offered += other.offered
        self.took_s += other.took_s
        self.refused += other.refused

    @property
    def p99_s(self) -> float:
        return percentile([*self.took_s, *[DEADLINE_S] * (self.offered - len(self.took_s))], 0.99)


def _good_calls(seed: int, per_s: float) -> Iterator[Arrival]:
    for tenant in GOOD:
        rng, at = random.Random(f"{seed} {tenant}"), 0.0
        while (at := at + rng.expovariate(per_s)) < SECONDS:
            yield Arrival(at, tenant)


def _play(settings: Mapping[str, Any], bad: Sequence[Arrival], seed: int, per_s: float) -> Seen:
    async def main(world: World) -> Seen:
        gateway = _gateway(settings, world, seed)
        seen = Seen()

        async def visit(call: Arrival) -> None:
            begin = world.clock.now()
            good = call.tenant != BAD
            seen.offered += good
            try:
                await gateway.complete(
                    model="m",
                    messages=[{"role": "user", "content": call.wish}],
                    deadline_s=DEADLINE_S,
                    tenant=call.tenant,
                    **call.params,
                )
            except HeadgateError as error:
                error.__traceback__ = None
                if good:
                    seen.refused.append(error.code)
                return
            if good:
                seen.took_s.append(world.clock.now() - begin)

        async with asyncio.TaskGroup() as group:
            for call in sorted([*_good_calls(seed, per_s), *bad], key=lambda call: call.at):
                if (ahead_s := call.at - world.clock.now()) > 0:
                    await world.clock.sleep(ahead_s)
                group.create_task(visit(call))
        await gateway.aclose()
        return seen

    return virtual.run(main, seed=seed)


def _gateway(options: Mapping[str, Any], world: World, seed: int) -> Gateway:
    def build(_model: str | None, _options: Mapping[str, Any], _given: Surroundings) -> Any:
        return Judging(world, seed)

    providers = {**wiring.PROVIDERS, "openai": ProviderKind(build, lambda _model, _options: None)}
    upstream = {"provider": "openai", "model": "m", **options}
    settings = wiring.read_settings({"models": {"m": {"upstreams": [upstream]}}}, env={}, providers=providers)
    numbers = iter(range(1_000_000))
    return wiring.build(
        settings,
        clock=world.clock,
        chance=world.chance,
        new_id=lambda: f"request-{next(numbers)}",
        providers=providers,
    )


def _compared(
    settings: Mapping[str, Any], attack: Attack, per_s: float = GOOD_PER_S
) -> tuple[float, float, list[str]]:
    """(answered, p99) of the nine as ratios to the run with a good tenth tenant, and how they were refused."""
    under, peaceful = Seen(), Seen()
    for seed in SEEDS:
        bad = list(attack(random.Random(f"{seed} attack")))
        rng = random.Random(f"{seed} peace")
        good = [Arrival(rng.uniform(0, SECONDS), BAD) for _ in bad]
        under.add(_play(settings, bad, seed, per_s))
        peaceful.add(_play(settings, good, seed, per_s))
    return len(under.took_s) / len(peaceful.took_s), under.p99_s / peaceful.p99_s, under.refused


@pytest.mark.parametrize("name", ATTACKS)
def test_what_one_tenant_does_is_hardly_noticed_by_the_others(name: str, figure: Figure) -> None:
    answered, p99, refused = _compared(*ATTACKS[name])

    figure(
        f"nine tenants beside {name}",
        f"{answered:.1%} of their throughput (≥ 95 %), p99 {p99:.2f} × (≤ 1.2)",
    )
    assert answered >= 0.95, refused[:5]
    assert p99 <= 1.2, refused[:5]


@pytest.mark.parametrize("name", ATTACKS)
def test_tenants_that_call_rarely_notice_it_as_little(name: str) -> None:
    """Nothing of theirs succeeds between two attacks, so that the refusals follow each other without a gap."""
    answered, _, refused = _compared(*ATTACKS[name], per_s=0.03)

    assert answered >= 0.95, refused[:5]


@pytest.mark.parametrize("settings", [OPEN, SMALL, TOKENS], ids=["open", "small", "tokens"])
def test_all_attacks_at_once_are_hardly_noticed_either(settings: Mapping[str, Any], figure: Figure) -> None:
    answered, p99, refused = _compared(settings, ATTACKS_AT_ONCE)

    figure(
        f"nine tenants beside all attacks at once, {dict(settings)}",
        f"{answered:.1%} (≥ 95 %), p99 {p99:.2f} × (≤ 1.2)",
    )
    assert answered >= 0.95, refused[:5]
    assert p99 <= 1.2, refused[:5]
