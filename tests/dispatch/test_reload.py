"""New settings in a running gateway: what did not change goes on as if nothing had happened."""

import asyncio
from typing import Any

import pytest
from stage import USER

from headgate import wiring
from headgate.core.errors import UnknownModel, UpstreamMisconfigured
from headgate.core.events import Event, UpstreamHeld
from headgate.core.health import Condition
from headgate.gateway import Gateway
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.settings import Settings

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
        assert gate.status().rt_queue == 1
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
