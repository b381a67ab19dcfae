"""Two nodes on a real store that goes away for a while: no node is declared dead for it, and all renew when it is back."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from stores_under_test import new_id

from headgate.core.errors import StoreUnavailable
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.runner.node import RENEWALS_PER_LEASE, Node
from headgate.stores.sqlite import SqliteStore

LEASE_S = 30.0
TICK_S = LEASE_S / RENEWALS_PER_LEASE


class Line:
    """A node's way to the store. While it is cut, every verb fails as one does on a database that is away."""

    def __init__(self, store: SqliteStore) -> None:
        self.cut = False
        self._store = store

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(verb):
            return verb

        async def through(*args: Any, **named: Any) -> Any:
            if self.cut:
                raise StoreUnavailable("the line is cut")
            return await verb(*args, **named)

        return through


class Site:
    """Two nodes of two machines on one store, in virtual time."""

    def __init__(self, world: World, folder: Path) -> None:
        self.clock = world.clock
        self.store = SqliteStore(folder / "jobs.db", clock=world.clock, new_id=new_id, lasting=False)
        self.lines = [Line(self.store) for _ in range(2)]
        self.renewals: list[list[float]] = [[], []]
        self.nodes = [
            Node(line, folder=folder / name, clock=world.clock, new_id=new_id, lease_s=LEASE_S)
            for line, name in zip(self.lines, "ab", strict=True)
        ]

    async def start(self) -> None:
        await self.store.open()
        for node, renewals in zip(self.nodes, self.renewals, strict=True):

            async def note(renewals: list[float] = renewals) -> None:
                renewals.append(self.clock.now())

            node.on_renewed.append(note)
            await node.start()
            await self.clock.sleep(3.0)

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()
        await self.store.aclose()

    async def be_away(self, seconds: float) -> None:
        self._cut(away=True)
        await self.clock.sleep(seconds)
        self._cut(away=False)

    def _cut(self, *, away: bool) -> None:
        for line in self.lines:
            line.cut = away
        self.store._listeners.trouble(StoreUnavailable("away") if away else None)


def on_a_site(folder: Path, scene: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    async def main(world: World) -> None:
        site = Site(world, folder)
        await site.start()
        try:
            await scene(site)
        finally:
            await site.stop()

    virtual.run(main)


@pytest.mark.parametrize("leases", [0.3, 0.8, 1.5, 10.0])
@pytest.mark.parametrize("phase_s", [0.5, 5.0, 9.5])
def test_an_outage_kills_no_node_and_ends_with_a_renewal(
    tmp_path: Path, leases: float, phase_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(site: Site) -> None:
        await site.clock.sleep(2 * LEASE_S + phase_s)
        names = [node.id for node in site.nodes]
        await site.be_away(leases * LEASE_S)
        back = site.clock.now()
        assert all(node.lease_left_s() < LEASE_S for node in site.nodes)
        await site.clock.sleep(3 * LEASE_S)

        assert [node.id for node in site.nodes] == names
        assert all(min(at - back for at in renewals if at >= back) < 0.1 for renewals in site.renewals)

    on_a_site(tmp_path, scene)
    assert "declared dead" not in caplog.text


@pytest.mark.parametrize("failed_reads", [0, 1])
def test_a_node_that_is_cut_off_alone_is_silent_after_a_lease_that_was_watched_to_the_end(
    tmp_path: Path, failed_reads: int
) -> None:
    """One failed read of the observer, and it starts again."""

    async def scene(site: Site) -> None:
        await site.clock.sleep(LEASE_S)
        watcher, silent = site.nodes
        site.lines[1].cut = True
        since, name = site.clock.now(), silent.id
        await site.clock.sleep(2 * TICK_S - 1)
        if failed_reads:
            site.lines[0].cut = True
            await site.clock.sleep(TICK_S / 2)
            site.lines[0].cut = False
        while name in (await site.store.renew(watcher.id)).beats:
            await site.clock.sleep(0.5)
        took_s = site.clock.now() - since

        watched_for = LEASE_S + failed_reads * 2 * TICK_S
        assert watched_for - TICK_S <= took_s <= watched_for + 2 * TICK_S
        assert silent.lease_left_s() <= 0, "its own lease has ended before any other node could be sure"

    on_a_site(tmp_path, scene)


def test_a_node_that_cannot_join_again_tries_on_and_says_once_that_it_was_declared_dead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = []

    async def scene(site: Site) -> None:
        node = site.nodes[0]
        node.on_lost = lambda: lost.append(node.id)
        before = node.id
        await site.store.bury_dead([before])
        folder = node._folder
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.write_text("in the way")
        await site.clock.sleep(LEASE_S)
        assert node.lease_left_s() < 0
        folder.unlink()
        await site.clock.sleep(LEASE_S)
        assert node.lease_left_s() > 0
        assert node.id != before

    on_a_site(tmp_path, scene)
    assert len(lost) == 1
    assert caplog.text.count("was declared dead by another node") == 1
