"""What tenants share at a gate: its evidence, its queue, its tokens, its memory. None of it is one tenant's to use up."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import pytest
from stage import USER

from headgate import wiring
from headgate.calls.routes import MOST_FAMILY_MEMBERS
from headgate.core.answer import Answer, Usage
from headgate.core.call import Call, Format
from headgate.core.errors import HeadgateError, ProviderFailure, QueueFull, UpstreamMisconfigured
from headgate.core.failures import Failure, FailureKind, from_answer
from headgate.core.ports.provider import Sighting
from headgate.formats import chat
from headgate.gateway import Gateway
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.wiring.providers import ProviderKind, Surroundings

A, B = "a", "b"
THERE: Final = Sighting(has_model=True)
NUMBERS: Final = itertools.count()
BODY: Final = {"messages": msgspec.Raw(msgspec.json.encode(USER))}
WRONG: Final = [{"role": "user", "content": "401"}]


class Upstream:
    """Answers in a second, but for prompts that are a status; asked for free, it says what `sighting` is."""

    formats = frozenset({Format.CHAT})
    reads = True

    def __init__(self, world: World, sighting: Sighting | Failure) -> None:
        self._world = world
        self._sighting = sighting
        self.calls = self.probes = 0

    async def send(self, call: Call) -> Answer:
        self.calls += 1
        wish = str(chat.read_request(call).messages[0]["content"])
        if wish.isdigit():
            raise ProviderFailure(from_answer(int(wish), {}, now=self._world.clock.utc()))
        await self._world.clock.sleep(1.0)
        return chat.write_answer(call, content="An answer.", finish_reason="stop", usage=Usage(10, 10))

    async def probe(self) -> Sighting:
        self.probes += 1
        if isinstance(self._sighting, Failure):
            raise ProviderFailure(self._sighting)
        return self._sighting

    async def aclose(self) -> None:
        """Nothing to close."""


def opened(world: World, sighting: Sighting | Failure = THERE, **settings: Any) -> tuple[Gateway, Upstream]:
    upstream = Upstream(world, sighting)

    def build(_model: str | None, _options: Mapping[str, Any], _given: Surroundings) -> Any:
        return upstream

    providers = {**wiring.PROVIDERS, "openai": ProviderKind(build, lambda _model, _options: None)}
    limits = settings.pop("limits", {})
    one = {"upstreams": [{"provider": "openai", "model": "m", **settings}]}
    family = {"upstreams": [{"provider": "openai", **settings}]}
    read = wiring.read_settings(
        {"models": {"m": one, "any/*": family}, "limits": limits}, env={}, providers=providers
    )
    numbers = iter(range(1_000_000))
    gateway = wiring.build(
        read,
        clock=world.clock,
        chance=world.chance,
        new_id=lambda: f"request-{next(numbers)}",
        providers=providers,
    )
    return gateway, upstream


async def mistakes(gateway: Gateway, tenant: str, count: int) -> None:
    for _ in range(count):
        with pytest.raises(UpstreamMisconfigured):
            await gateway.complete(model="m", messages=WRONG, tenant=tenant)
    await asyncio.sleep(0)


# ---- Our own check -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sighting",
    [
        Failure(kind=FailureKind.MISCONFIGURED, status=401),
        Failure(kind=FailureKind.MISCONFIGURED, status=403),
        Sighting(has_model=False),
    ],
)
def test_a_check_that_fails_holds_the_model_for_all(sighting: Sighting | Failure) -> None:
    """A wrong key is found out with one tenant's calls; the other's need not fail as well."""

    async def main(world: World) -> None:
        gateway, upstream = opened(world, sighting)
        await mistakes(gateway, A, 3)
        await world.clock.sleep(1.0)
        with pytest.raises(UpstreamMisconfigured):
            await gateway.complete(model="m", messages=USER, tenant=B)
        assert (upstream.calls, upstream.probes) == (3, 1)

    virtual.run(main)


@pytest.mark.parametrize(
    "sighting",
    [
        Sighting(has_model=True),
        Sighting(has_model=None),
        Failure(kind=FailureKind.TRANSIENT, status=503),
        Failure(kind=FailureKind.MISCONFIGURED, status=404),
    ],
)
def test_a_check_that_proves_nothing_holds_only_the_tenant_that_caused_it(
    sighting: Sighting | Failure,
) -> None:
    async def main(world: World) -> None:
        gateway, upstream = opened(world, sighting)
        await mistakes(gateway, A, 3)
        await world.clock.sleep(1.0)
        with pytest.raises(UpstreamMisconfigured):
            await gateway.complete(model="m", messages=USER, tenant=A)
        assert upstream.calls == 3, "held for its own calls"
        await gateway.complete(model="m", messages=USER, tenant=B)

    virtual.run(main)


# ---- The queue ------------------------------------------------------------------------------------------------


async def outcomes(asked: Sequence["asyncio.Task[Any]"]) -> list[str]:
    ended = await asyncio.gather(*asked, return_exceptions=True)
    return [one.code if isinstance(one, HeadgateError) else "answered" for one in ended]


def test_a_full_queue_makes_room_for_a_tenant_that_has_less_of_it() -> None:
    async def main(world: World) -> None:
        gateway, _ = opened(world, slots=1, depth=10)
        of_a = [asyncio.create_task(gateway.complete(model="m", messages=USER, tenant=A)) for _ in range(11)]
        await asyncio.sleep(0.1)
        of_b = [asyncio.create_task(gateway.complete(model="m", messages=USER, tenant=B)) for _ in range(8)]
        await asyncio.sleep(0)
        assert (await outcomes(of_b)).count("answered") == 5, "half of the queue"
        displaced = [one.exception() for one in of_a if one.exception() is not None]
        assert (await outcomes(of_a)).count("answered") == 6
        assert len(displaced) == 5
        assert all(isinstance(one, QueueFull) and one.retry_after_s > 0 for one in displaced)

    virtual.run(main)


def test_a_call_that_does_not_fit_is_overtaken_ten_times() -> None:
    async def main(world: World) -> None:
        gateway, _ = opened(world, slots=4, tokens_per_minute=1000)
        for _ in range(3):
            await gateway.complete(model="m", messages=USER, tenant=B, max_tokens=300)
        ended: list[str] = []

        async def ask(name: str, tenant: str, tokens: int) -> None:
            await gateway.complete(model="m", messages=USER, tenant=tenant, max_tokens=tokens)
            ended.append(name)

        large = asyncio.create_task(ask("large", A, 10_000_000))
        await asyncio.sleep(0)
        small = [asyncio.create_task(ask("small", B, 1)) for _ in range(30)]
        await asyncio.gather(large, *small)
        assert ended.index("large") <= 10 + 4

    virtual.run(main)


# ---- Memory ----------------------------------------------------------------------------------------------------


def test_the_bodies_of_waiting_calls_are_bounded_and_one_tenant_has_half_of_the_room() -> None:
    async def main(world: World) -> None:
        gateway, _ = opened(world, slots=1, limits={"waiting_bytes": 1000})

        async def one(tenant: str) -> object:
            request_id = f"{tenant}-{next(NUMBERS)}"
            call = gateway.requests.begin(request_id, "m", BODY, size_bytes=100, tenant=tenant)
            return await gateway.requests.answer(call)

        of_a = [asyncio.create_task(one(A)) for _ in range(12)]
        await asyncio.sleep(0)
        of_b = [asyncio.create_task(one(B)) for _ in range(12)]
        assert sorted(await outcomes(of_a)) == ["answered"] * 6 + ["queue_full"] * 6
        assert sorted(await outcomes(of_b)) == ["answered"] * 5 + ["queue_full"] * 7

    virtual.run(main)


# ---- Members of families ----------------------------------------------------------------------------------------


def test_names_that_are_only_looked_at_build_nothing_and_push_out_nothing() -> None:
    async def main(world: World) -> None:
        gateway, upstream = opened(world, requests_per_minute=5)
        for _ in range(5):
            await gateway.complete(model="any/one", messages=USER)
        before = len(gateway.routes.known())
        for number in range(MOST_FAMILY_MEMBERS + 5):
            gateway.routes.check(f"any/invented-{number}")
        assert len(gateway.routes.known()) == before
        began = world.clock.now()
        await gateway.complete(model="any/one", messages=USER)
        assert world.clock.now() - began > 30, "its window was kept"
        assert upstream.calls == 6

    virtual.run(main)


def test_names_that_were_called_do_not_switch_off_the_limits_of_others() -> None:
    """Each name has a gate of its own; the newest must not be the one that makes room."""

    async def main(world: World) -> None:
        gateway, _ = opened(world, requests_per_minute=5)
        for number in range(MOST_FAMILY_MEMBERS):
            await gateway.complete(model=f"any/invented-{number}", messages=USER)
        for _ in range(5):
            await gateway.complete(model="any/late", messages=USER)
        began = world.clock.now()
        await gateway.complete(model="any/late", messages=USER)
        assert world.clock.now() - began > 30, "its window was kept"
        assert len(gateway.routes.known()) <= MOST_FAMILY_MEMBERS + 2

    virtual.run(main)


def test_members_that_were_called_stay_longer_than_those_that_were_not() -> None:
    async def main(world: World) -> None:
        gateway, _ = opened(world, requests_per_minute=5)
        await gateway.complete(model="any/one", messages=USER)
        route = gateway.routes.find("any/one")
        for number in range(MOST_FAMILY_MEMBERS + 5):
            gateway.routes.find(f"any/invented-{number}")
        assert gateway.routes.find("any/one") is route

    virtual.run(main)
