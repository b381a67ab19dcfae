"""New settings in a running gateway: what did not change goes on as if nothing had happened."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from stage import USER
from weathers.kinds import Crowd
from weathers.virtual import WeatherProvider

from headgate import wiring
from headgate.core.errors import UnknownModel, UpstreamMisconfigured
from headgate.core.events import Event, UpstreamHeld
from headgate.core.hold import Condition
from headgate.core.intake import Intake
from headgate.core.limit import Limit, Measure
from headgate.gateway import Gateway
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.settings import Settings
from headgate.wiring.providers import ProviderKind, Surroundings

SLOW = {"upstreams": [{"provider": "simulated", "latency_s": 10, "slots": 1}]}
QUICK = {"upstreams": [{"provider": "simulated", "latency_s": 1, "slots": 1}]}


def read(**models: Any) -> Settings:
    return wiring.read_settings({"models": models}, env={})


def build(world: World, **models: Any) -> Gateway:
    return wiring.build(read(**models), clock=world.clock, chance=world.chance)


def test_an_unchanged_model_keeps_its_gate_and_those_who_wait_at_it() -> None:
    async def main(world: World) -> None:
        gateway = build(world, a=SLOW, b=SLOW)
        waiting = [asyncio.create_task(gateway.complete(model="a", messages=USER)) for _ in range(2)]
        await world.clock.sleep(1)
        gate = gateway.routes.find("a").upstreams[0].gate
        gateway.reload(read(a=SLOW, b=QUICK))
        assert gateway.routes.find("a").upstreams[0].gate is gate
        assert gate.status("local").rt_queue == 1
        await asyncio.gather(*waiting)
        assert world.clock.now() == pytest.approx(20)

    virtual.run(main)


def test_a_changed_model_takes_new_calls_while_old_ones_end() -> None:
    async def main(world: World) -> None:
        gateway = build(world, a=SLOW)
        old = asyncio.create_task(gateway.complete(model="a", messages=USER))
        await world.clock.sleep(1)
        gateway.reload(read(a=QUICK))
        await gateway.complete(model="a", messages=USER)
        assert world.clock.now() == pytest.approx(2)
        await old
        assert world.clock.now() == pytest.approx(10)

    virtual.run(main)


def test_models_come_and_go() -> None:
    async def main(world: World) -> None:
        gateway = build(world, a=QUICK)
        await gateway.complete(model="simulated/instant", messages=USER)
        gateway.reload(read(b=QUICK))
        await gateway.complete(model="b", messages=USER)
        await gateway.complete(model="simulated/instant", messages=USER)
        with pytest.raises(UnknownModel):
            await gateway.complete(model="a", messages=USER)
        assert "b" in gateway.routes.names()

    virtual.run(main)


def test_a_reload_lifts_the_hold_of_an_upstream_whose_settings_are_unchanged() -> None:
    """The key was fixed at the provider: nothing in the settings changed."""
    upstream = {"provider": "simulated", "latency_s": 1, "script": [{"status": 401}] * 3}

    async def main(world: World) -> None:
        gateway = build(world, a={"upstreams": [upstream]})
        events: list[Event] = []
        gateway.listen(events.append)
        for _ in range(4):
            with pytest.raises(UpstreamMisconfigured):
                await gateway.complete(model="a", messages=USER)
        held = gateway.routes.find("a").upstreams[0]
        assert (held.condition, held.calls_made) == (Condition.HELD, 3)
        gateway.reload(read(a={"upstreams": [upstream]}))
        assert gateway.routes.find("a").upstreams[0] is held
        assert held.condition is Condition.OK
        began_at = world.clock.now()
        await gateway.complete(model="a", messages=USER)
        assert world.clock.now() == pytest.approx(began_at + 1)
        assert [event.held for event in events if isinstance(event, UpstreamHeld)] == [True, False]

    virtual.run(main)


def test_a_reload_lifts_the_holds_of_a_family_s_members() -> None:
    upstream = {"provider": "simulated", "latency_s": 0, "script": [{"status": 401}] * 3}

    async def main(world: World) -> None:
        gateway = build(world, **{"family/*": {"upstreams": [upstream]}})
        for _ in range(3):
            with pytest.raises(UpstreamMisconfigured):
                await gateway.complete(model="family/instant", messages=USER)
        gateway.reload(read(**{"family/*": {"upstreams": [upstream]}}))
        await gateway.complete(model="family/instant", messages=USER)

    virtual.run(main)


# ---- What was learned ---------------------------------------------------------------------------------------------

ROOM = 4
"""Calls in flight that the crowded upstream answers; it refuses more with 429."""
CROWDED = {"provider": "crowded", "slots": 32, "depth": 0}


class _Account:
    """A provider with limited room, whatever gateway or model calls it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._crowd = Crowd(most=ROOM, hint_s=None, answer_s=0.4)
        self._providers = {
            **wiring.PROVIDERS,
            "crowded": ProviderKind(self._provider, lambda _model, _options: None),
        }

    def _provider(
        self, _model: str | None, _options: Mapping[str, Any], _given: Surroundings
    ) -> WeatherProvider:
        return WeatherProvider(self._crowd, self._world)

    def read(self, **model: Any) -> Settings:
        settings = {"upstreams": [CROWDED], "timeouts": {"total_s": 600}, **model}
        return wiring.read_settings({"models": {"a": settings}}, env={}, providers=self._providers)

    def build(self) -> Gateway:
        return wiring.build(
            self.read(), clock=self._world.clock, chance=self._world.chance, providers=self._providers
        )

    async def flood(self, gateway: Gateway, calls: int) -> float:
        """Many calls at once; returns the share of calls at the provider that were refused."""
        before = len(self._crowd.log)
        asked = [{"role": "user", "content": "size=1"}]
        await asyncio.gather(*(gateway.complete(model="a", messages=asked) for _ in range(calls)))
        statuses = [status for _, status in self._crowd.log[before:]]
        return statuses.count(429) / len(statuses)


def _learned(gateway: Gateway) -> tuple[Limit | None, float]:
    """What is known of the model's first upstream: its limit, and its usual share of refusals."""
    upstream = gateway.routes.find("a").upstreams[0]
    return upstream.limit, upstream._intake.share


def _what_a_reload_leaves(**changed: Any) -> tuple[tuple[Limit | None, float], tuple[Limit | None, float]]:
    """What was learned before a reload, and what is known after it."""

    async def main(world: World) -> tuple[tuple[Limit | None, float], tuple[Limit | None, float]]:
        account = _Account(world)
        gateway = account.build()
        await account.flood(gateway, 400)
        before = _learned(gateway)
        gateway.reload(account.read(**changed))
        return before, _learned(gateway)

    return virtual.run(main, seed=1)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"retry": {"max_attempts": 5}},
        {"wait": False},
        {"upstreams": [CROWDED, CROWDED | {"slots": 1}]},
    ],
    ids=str,
)
def test_what_was_learned_of_an_upstream_outlives_a_change_of_anything_else(changed: dict[str, Any]) -> None:
    (limit, share), (kept, kept_share) = _what_a_reload_leaves(**changed)
    assert limit is not None
    assert kept is not None
    assert limit.measure is Measure.IN_FLIGHT
    assert (kept.measure, kept.most, kept.proven) == (limit.measure, limit.most, limit.proven)
    assert kept_share == share


@pytest.mark.parametrize(
    "changed",
    [{"slots": 16}, {"adaptive": False}, {"model": "another"}, {"retry_budget": 0.2}],
    ids=str,
)
def test_what_was_learned_of_an_upstream_is_dropped_with_its_settings(changed: dict[str, Any]) -> None:
    """They may lead to another account or machine."""
    (limit, share), (kept, kept_share) = _what_a_reload_leaves(upstreams=[CROWDED | changed])
    assert limit is not None
    assert kept is None
    assert kept_share == Intake(1).share != share


def test_calls_after_a_reload_are_kept_below_the_limit_that_was_learned_before() -> None:
    async def main(world: World) -> tuple[float, float]:
        account = _Account(world)
        gateway = account.build()
        untaught = await account.flood(gateway, 100)
        await account.flood(gateway, 400)
        gateway.reload(account.read(retry={"max_attempts": 5}))
        return untaught, await account.flood(gateway, 100)

    untaught, taught = virtual.run(main, seed=1)
    assert taught < untaught / 2


def test_two_upstreams_with_the_same_settings_each_keep_what_was_learned_of_them() -> None:
    """One limit for both would count the calls of one against the other."""

    async def main(world: World) -> None:
        twin = {"provider": "simulated", "latency_s": 1}
        gateway = build(world, a={"upstreams": [twin, twin]})
        intakes = [upstream.gate.admission.intake for upstream in gateway.routes.find("a").upstreams]
        for intake, most in zip(intakes, (5.0, 9.0), strict=True):
            intake.learning.limit = Limit(0.0, Measure.IN_FLIGHT, most, 0.5)
        gateway.reload(read(a={"upstreams": [twin, twin], "wait": False}))
        limits = [upstream.limit for upstream in gateway.routes.find("a").upstreams]
        assert [None if limit is None else limit.most for limit in limits] == [5.0, 9.0]

    virtual.run(main)
