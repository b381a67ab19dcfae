"""Nodes that share a folder: a lock that is free tells of a dead process, and nothing stays behind."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from stores_under_test import new_id, nodes_of

import headgate
from headgate.machine.clock import SystemClock
from headgate.runner.node import Node, pids_at_work
from headgate.stores.sqlite import SqliteStore


class Machine:
    """One database, one folder of locks, and the processes that share them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "nodes"
        self.store = SqliteStore(folder / "jobs.db", clock=SystemClock(), new_id=new_id)

    def node(self, lease_s: float = 30.0) -> Node:
        return Node(self.store, folder=self.folder, clock=SystemClock(), new_id=new_id, lease_s=lease_s)

    @property
    def files(self) -> list[str]:
        return sorted(file.name for file in self.folder.iterdir() if file.suffix != ".bell")


def on_a_machine(folder: Path, live: Callable[[Machine], Awaitable[None]]) -> None:
    async def main() -> None:
        machine = Machine(folder)
        await machine.store.open()
        try:
            await live(machine)
        finally:
            await machine.store.aclose()

    asyncio.run(main())


def test_a_node_leaves_nothing_behind(tmp_path: Path) -> None:
    """A folder that grows by a file per start is a leak, and each file a thing to wonder about."""

    async def live(machine: Machine) -> None:
        node = machine.node()
        await node.start()
        assert machine.files == [f"{node.id}.lock"]
        await node.stop()
        assert machine.files == []
        assert await nodes_of(machine.store) == []

    on_a_machine(tmp_path, live)


def test_the_living_are_left_alone_and_the_dead_buried(tmp_path: Path) -> None:
    """Whoever was killed could not unlock its file by itself: the system did. Its lease has long to run."""

    async def live(machine: Machine) -> None:
        living, newcomer = machine.node(), machine.node()
        await living.start()
        await machine.store.join("dead")
        (machine.folder / "dead.lock").touch()
        await newcomer.start()
        try:
            assert list((await machine.store.renew(living.id)).beats) == [newcomer.id]
            assert machine.files == sorted([f"{living.id}.lock", f"{newcomer.id}.lock"])
        finally:
            await newcomer.stop()
            await living.stop()

    on_a_machine(tmp_path, live)


def test_a_node_that_runs_buries_a_neighbour_that_died_since_it_started(tmp_path: Path) -> None:
    """A gateway without a worker has no upkeep, and callers wait for the keys of the dead one."""

    async def live(machine: Machine) -> None:
        living = machine.node(lease_s=1.0)
        await living.start()
        await machine.store.join("dead")
        (machine.folder / "dead.lock").touch()
        try:
            async with asyncio.timeout(30):
                while "dead.lock" in machine.files:  # noqa: ASYNC110 - what it waits for happens on the disk
                    await asyncio.sleep(0.05)
            assert not (await machine.store.renew("dead")).alive
        finally:
            await living.stop()

    on_a_machine(tmp_path, live)


def test_a_lock_of_nobody_is_cleared_away_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease ran out on another machine's watch: there is nothing left to take over."""

    async def live(machine: Machine) -> None:
        machine.folder.mkdir(exist_ok=True)
        (machine.folder / "long_gone.lock").touch()
        node = machine.node()
        await node.start()
        assert machine.files == [f"{node.id}.lock"]
        await node.stop()

    with caplog.at_level("INFO", "headgate"):
        on_a_machine(tmp_path, live)
    assert caplog.messages == []


def test_a_newcomer_names_the_processes_it_shares_the_folder_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two gateways on one folder by mistake double the load on every upstream: somebody should hear of it."""
    program = """
import asyncio, sys
import headgate
async def main():
    async with headgate.open({"data_dir": sys.argv[1]}, env={}, work=True):
        print("ready", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert pids_at_work(tmp_path / "nodes") == [other.pid]

        async def main() -> None:
            async with headgate.open({"data_dir": str(tmp_path)}, env={}, work=True):
                assert pids_at_work(tmp_path / "nodes") == sorted([os.getpid(), other.pid])

        asyncio.run(main())
        assert f"is shared with process {other.pid}" in caplog.text
    finally:
        other.kill()
        other.communicate()
    assert pids_at_work(tmp_path / "nodes") == []
