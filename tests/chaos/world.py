"""A small world to disturb: gateways, workers, a provider, clients, and a watcher that writes the books."""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import apsw
import postgres
from chaos.books import Books, Disturbance, Kind
from chaos.clients import Clients, Wish, jobs
from chaos.job_points import LIVE
from chaos.key_points import complete
from chaos.nodes import Node, settings_of, write_settings
from chaos.provider import Provider
from chaos.watch import PostgresWatch, Sampler, SqliteWatch, Watched
from crash.harness import Clocks, Family
from wire import Wire

KEEP_EVERY_S: Final = 0.1
PATIENCE_S: Final = 20.0
"""Beyond two leases: for clients and jobs that wait for their turn on a busy machine."""


@dataclass
class World:
    """What a scenario can reach."""

    family: Family
    books: Books
    provider: Provider
    clients: Clients
    watched: Watched
    nodes: list[Node]
    chance: random.Random
    server: postgres.Server | None
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    store: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whatever takes PostgreSQL away."""

    @property
    def gateways(self) -> list[Node]:
        return [node for node in self.nodes if node.is_gateway]

    @property
    def workers(self) -> list[Node]:
        return [node for node in self.nodes if not node.is_gateway]

    @property
    def lease_s(self) -> float:
        return self.books.lease_s

    def crowd(self, size: int, list_size: int) -> None:
        """Let so many clients begin."""
        for number in range(size):
            self.tasks.append(asyncio.create_task(self.clients.crowd(f"c{number}", list_size)))

    async def submit(self, name: str, count: int) -> None:
        """So many jobs, each of which is being called before this returns."""
        wish = jobs(name, count)
        self.clients.wishes.append(wish)
        answer = await self.clients.insist(wish)
        assert answer is not None
        self.clients.job_ids += answer.job_ids
        await asyncio.gather(*(self.provider.arrival(prompt) for prompt in wish.prompts))

    def ask(self, wish: Wish, first: Node, *others: Node) -> "asyncio.Task[None]":
        """A client that asks the first gateway once, and then the others (or all) until it is answered."""
        self.clients.wishes.append(wish)

        async def ask() -> None:
            answer = await self.clients.ask(wish, first)
            if answer is None or not complete(answer):
                await self.clients.insist(wish, *others[:1], within_s=2 * self.lease_s + PATIENCE_S)

        self.tasks.append(asyncio.create_task(ask()))
        return self.tasks[-1]

    # ---- Disturbances of the store and of all clocks ----------------------------------------------------

    @contextmanager
    def _noting(self, kind: Kind, note: str) -> Iterator[None]:
        one = Disturbance(kind, None, time.time(), note=note)
        self.books.disturbances.append(one)
        yield
        one.ended = time.time()

    async def outage(self, seconds: float, how: signal.Signals = signal.SIGINT) -> None:
        """No process can write: PostgreSQL is stopped, or SQLite's file is locked."""
        await (self.lock_file(seconds) if self.server is None else self.stop_postgres(seconds, how))

    async def stop_postgres(self, seconds: float, how: signal.Signals = signal.SIGINT) -> None:
        assert self.server is not None
        async with self.store:
            with self._noting(Kind.STORE, f"PostgreSQL stopped by {how.name} for {seconds:.1f} s"):
                await asyncio.to_thread(self.server.stop, how)
                await asyncio.sleep(seconds)
                await asyncio.to_thread(self.server.start)

    async def freeze_postgres(self, seconds: float) -> None:
        assert self.server is not None
        async with self.store:
            with self._noting(Kind.STORE, f"PostgreSQL frozen for {seconds:.1f} s"), self.server.frozen():
                await asyncio.sleep(seconds)

    async def lock_file(self, seconds: float) -> None:
        """Another process holds SQLite's write lock."""
        file = self.family.site.folder / "headgate.db"
        with contextlib.closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
            connection.set_busy_timeout(10_000)
            await asyncio.to_thread(connection.execute, "begin immediate")
            with self._noting(Kind.STORE, f"the file locked for {seconds:.1f} s"):
                await asyncio.sleep(seconds)
                connection.execute("rollback")

    def suspend(self, seconds: float) -> None:
        """As a laptop that was asleep: all clocks but the monotonic one have gone on."""
        with self._noting(Kind.CLOCK, f"the machine slept for {seconds:g} s"):
            for node in self.nodes:
                node.clocks.set(seconds, seconds)

    # ---- The end ------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Heal all, let the clients come to their ends, wait until nothing is due, and ask for everything once more."""
        for node in self.nodes:
            if node.wire is not None:
                node.wire.heal()
        self.clients.stopped = True
        self.books.healed_at = time.time()
        self.clients.give_up_at = time.time() + 2 * self.lease_s + PATIENCE_S
        await asyncio.gather(*self.tasks)
        await self._until_nothing_is_due()
        # What a node owns and does not work on is settled at its next renewal.
        await asyncio.sleep(self.lease_s / 3 + 1)
        self.books.healed_at = time.time()
        await self.clients.ask_everywhere()
        await self.watched.read(self.books)
        self.books.read_at = time.time()

    async def _until_nothing_is_due(self) -> None:
        deadline = time.monotonic() + 2 * self.lease_s + PATIENCE_S
        while time.monotonic() < deadline:
            await self.watched.read(self.books)
            if not any(job.state in LIVE for job in self.books.jobs):
                return
            await asyncio.sleep(0.2)

    async def keep(self) -> None:
        """A process manager: what ends by itself is started again."""
        while True:
            for node in self.nodes:
                await node.keep()
            await asyncio.sleep(KEEP_EVERY_S)


@asynccontextmanager
async def world(
    family: Family,
    *,
    seed: int,
    lease_s: float,
    server: postgres.Server | None = None,
    gateways: int = 2,
    workers: int = 2,
    delay_s: float = 0.1,
    failing: float = 0.0,
    breaker: bool = True,
) -> AsyncIterator[World]:
    """Start all of it; write the processes' logs into the books at the end."""
    books = Books(lease_s=lease_s, began=time.time())
    chance = random.Random(seed)
    names = [*(f"g{n}" for n in range(1, gateways + 1)), *(f"w{n}" for n in range(1, workers + 1))]
    async with contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(
            Provider(books.calls, random.Random(seed), delay_s=delay_s, failing=failing)
        )
        nodes = []
        for name in names:
            wire = await stack.enter_async_context(Wire(server.url, name)) if server else None
            nodes.append(_node(name, family, books, provider.url(name), wire, breaker=breaker))
        watched: Watched = (
            PostgresWatch(server.url, nodes) if server else SqliteWatch(family.site.folder / "headgate.db")
        )
        living = [node for node in nodes if node.is_gateway]
        clients = Clients(books, living, chance, call_s=delay_s)
        made = World(family, books, provider, clients, watched, nodes, chance, server)
        # The first one makes the schema, which the triggers need.
        await nodes[0].start()
        await watched.install()
        await asyncio.gather(*(node.start() for node in nodes[1:]))
        folders = sorted({node.folder for node in nodes})
        always = [
            asyncio.create_task(Sampler(watched, nodes, folders, books).run(), name="sampler"),
            asyncio.create_task(made.keep(), name="process manager"),
        ]
        try:
            yield made
            _raise_what_broke(always)
        finally:
            for task in (*made.tasks, *always):
                task.cancel()
            await asyncio.gather(*made.tasks, *always, return_exceptions=True)
            await asyncio.gather(*(node.stop() for node in nodes))
            for node in nodes:
                for number in range(1, len(node.children) + 1):
                    books.logs[f"{node.name}#{number}"] = node.log_of(number)


def _raise_what_broke(tasks: list["asyncio.Task[None]"]) -> None:
    """What watches must not have ended: it would have watched nothing."""
    for task in tasks:
        if task.done():
            task.result()
            raise AssertionError(f"the {task.get_name()} has ended")


def _node(
    name: str, family: Family, books: Books, upstream: str, wire: Wire | None, *, breaker: bool
) -> Node:
    """On PostgreSQL each has a folder of its own, as on a machine of its own: no lock file proves its death."""
    site = family.site
    folder: Path = site.folder / name if wire else site.folder
    folder.mkdir(exist_ok=True)
    config = site.folder / "settings" / f"{name}.json"
    database = wire.url if wire else "sqlite"
    settings: dict[str, Any] = settings_of(
        name, folder, database, upstream, lease_s=books.lease_s, breaker=breaker
    )
    write_settings(config, settings)
    words = ["serve", "--no-work"] if name.startswith("g") else ["work", "--drain", "15"]
    clocks = Clocks(site.folder / f"{name}.clocks")
    return Node(name, family, books, [*words, "--config", str(config)], folder, clocks, wire)
