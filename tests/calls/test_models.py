"""A model that an operator pauses: nobody calls it, here or elsewhere, until it is resumed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from stage import USER

from headgate import wiring
from headgate.calls.models import COLLECTION, TENANT
from headgate.calls.refreshing import REFRESH_S
from headgate.core import events
from headgate.core.errors import ModelPaused, StateConflict, UnknownModel
from headgate.core.operator_pause import pause_over
from headgate.gateway import Gateway
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.settings import Settings

ONE_SLOT = {"upstreams": [{"provider": "simulated", "latency_s": 10, "slots": 1}]}
TWO = {"upstreams": [{"provider": "simulated", "latency_s": 1}, {"provider": "simulated", "latency_s": 1}]}


def read(folder: Path, **models: Any) -> Settings:
    return wiring.read_settings({"data_dir": str(folder), "models": models}, env={})


def build(world: World, folder: Path, **models: Any) -> Gateway:
    return wiring.build(read(folder, **models), clock=world.clock, chance=world.chance)


async def ask(gateway: Gateway, model: str = "m") -> None:
    await gateway.complete(model=model, messages=USER)


def test_a_paused_model_refuses_at_once_and_what_runs_ends(tmp_path: Path) -> None:
    """Who holds a slot finishes; who waits hears of it now, not at its deadline; who comes is turned away."""

    async def main(world: World) -> None:
        gateway = build(world, tmp_path, m=ONE_SLOT)
        running, waiting = (asyncio.create_task(ask(gateway)) for _ in range(2))
        await world.clock.sleep(1)
        pause = await gateway.models.pause("m", by="ann")
        with pytest.raises(ModelPaused, match=f"m was paused by an operator at {pause.since:%Y-%m-%d}") as no:
            await waiting
        assert 22 < no.value.retry_after_s < 38
        with pytest.raises(ModelPaused):
            await ask(gateway)
        assert world.clock.now() == pytest.approx(1)
        assert not gateway.status().accepting
        await running
        assert await gateway.models.resume("m")
        assert gateway.status().accepting
        await ask(gateway)
        await gateway.aclose()

    virtual.run(main)


def test_a_pause_goes_to_no_other_upstream(tmp_path: Path) -> None:
    """The pause is the model's: a call that fell back would reach what the operator wants left alone."""

    async def main(world: World) -> None:
        gateway = build(world, tmp_path, m=TWO)
        heard: list[events.Event] = []
        gateway.listen(heard.append)
        await gateway.models.pause("m", by="ann")
        with pytest.raises(ModelPaused):
            await ask(gateway)
        assert not [event for event in heard if isinstance(event, events.FellBack | events.AttemptEnded)]
        assert events.ModelPauseChanged(model="m", paused=True, by="ann") in heard
        await gateway.aclose()

    virtual.run(main)


def test_all_processes_obey_and_a_new_start_does_too(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        here, there = (build(world, tmp_path, m=TWO) for _ in range(2))
        await there.models.watch()
        await here.models.pause("m", by="ann")
        await world.clock.sleep(REFRESH_S + 0.1)
        with pytest.raises(ModelPaused):
            await ask(there)
        later = build(world, tmp_path, m=TWO)
        await later.models.watch()
        with pytest.raises(ModelPaused):
            await ask(later)
        await here.models.resume("m")
        await world.clock.sleep(REFRESH_S + 0.1)
        await ask(there)
        for gateway in (here, there, later):
            await gateway.aclose()

    virtual.run(main)


def test_a_family_is_paused_with_its_members_the_unborn_too(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = build(world, tmp_path, m=TWO)
        await ask(gateway, "simulated/instant")
        await gateway.models.pause("simulated/*", by="ann")
        for member in ("simulated/instant", "simulated/slow"):
            with pytest.raises(ModelPaused, match=r"simulated/\* was paused"):
                await ask(gateway, member)
        await ask(gateway, "m")
        with pytest.raises(StateConflict, match=r"resume simulated/\*"):
            await gateway.models.resume("simulated/slow")
        await gateway.models.resume("simulated/*")
        await gateway.models.pause("simulated/slow", by="ann")
        await ask(gateway, "simulated/instant")
        with pytest.raises(ModelPaused):
            await ask(gateway, "simulated/slow")
        await gateway.aclose()

    virtual.run(main)


def test_new_settings_do_not_end_a_pause(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = build(world, tmp_path, m=TWO)
        await gateway.models.pause("m", by="ann")
        gateway.reload(read(tmp_path, m=ONE_SLOT))
        with pytest.raises(ModelPaused):
            await ask(gateway)
        await gateway.aclose()

    virtual.run(main)


def test_names_are_checked_and_pausing_twice_changes_nothing(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = build(world, tmp_path, m=TWO)
        for act in (gateway.models.pause("n", by="ann"), gateway.models.resume("n")):
            with pytest.raises(UnknownModel):
                await act
        assert not await gateway.models.resume("m")
        first = await gateway.models.pause("m", by="ann")
        assert await gateway.models.pause("m", by="bob") == first
        listed = {status.model: status for status in await gateway.models.list()}
        assert listed["m"].paused == first
        assert [gate.stopped for gate in listed["m"].upstreams] == [True, True]
        assert listed["simulated/*"].paused is None
        await gateway.aclose()

    virtual.run(main)


def test_a_pause_outlives_its_model_and_can_still_be_ended(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        before = build(world, tmp_path, m=TWO)
        await before.models.pause("m", by="ann")
        await before.aclose()
        after = build(world, tmp_path, n=TWO)
        assert "m" in {status.model for status in await after.models.list()}
        assert await after.models.resume("m")
        await after.aclose()

    virtual.run(main)


def test_no_tenant_of_a_key_reaches_the_pauses(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        gateway = build(world, tmp_path, m=TWO)
        await gateway.models.pause("m", by="ann")
        assert await gateway.records.list(COLLECTION) == []
        assert not TENANT.isprintable()
        await gateway.aclose()

    virtual.run(main)


def test_nothing_is_paused_where_nothing_is() -> None:
    assert pause_over({}, "m") is None
