"""What every measurement stands on: a database, a gateway on it, jobs like chat bodies, a process of its own."""

import asyncio
import contextlib
import multiprocessing
import shutil
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import msgspec
import uvloop

import headgate
from headgate.core.ports.store import Store
from headgate.gateway import Gateway
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id
from headgate.runner.context import Context
from headgate.stores.postgres import PostgresStore
from headgate.stores.sqlite import SqliteStore

P = ParamSpec("P")
T = TypeVar("T")
SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"
TENANTS: Final = ("acme", "beta", "coop", "dune")
_PROSE: Final = (
    "Three weeks after the flood the mill stood dry again, and the gate that had held back the river was opened a"
    " hand's breadth, so that the wheel could turn as it had before. "
)


class Line(msgspec.Struct):
    role: str
    content: str


class Chat(msgspec.Struct):
    """A chat body, as a task takes it. It names no model: what a gate lets through is not measured here."""

    messages: list[Line]
    temperature: float
    max_tokens: int


def chat(size_bytes: int) -> dict[str, Any]:
    """About that many bytes as JSON."""
    system = {"role": "system", "content": "You are a careful editor. Answer in one paragraph."}
    user = {"role": "user", "content": (_PROSE * 10)[: size_bytes - 160]}
    return {"messages": [system, user], "temperature": 0.2, "max_tokens": 256}


CHAT: Final = chat(700)
CHAT_JSON: Final = msgspec.json.encode(CHAT)


@headgate.task("bench.noop")
async def noop(_ctx: Context, _body: Chat) -> str:
    return "ok"


class Ground(msgspec.Struct, frozen=True):
    """A database and the folder beside it."""

    kind: str
    folder: str
    url: str = ""

    @property
    def file(self) -> str:
        return f"{self.folder}/headgate.db"

    def _settings(self, workers: int | None) -> dict[str, Any]:
        database = self.url if self.kind == POSTGRES else SQLITE
        return {
            "data_dir": self.folder,
            "database": database,
            "jobs": {} if workers is None else {"workers": workers},
        }

    @contextlib.asynccontextmanager
    async def gateway(
        self, task: headgate.Task[Any, Any] = noop, *, work: bool = False, workers: int | None = None
    ) -> AsyncIterator[Gateway]:
        """As its users open it."""
        async with headgate.open(self._settings(workers), env={}, work=work, tasks=[task]) as gateway:
            yield gateway

    def store(self) -> Store:
        """The store alone, not open yet."""
        if self.kind == POSTGRES:
            return PostgresStore(self.url, clock=SystemClock(), new_id=random_id)
        return SqliteStore(Path(self.file), clock=SystemClock(), new_id=random_id)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """To the PostgreSQL, past the store."""
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()


@contextlib.contextmanager
def fresh(kind: str, url: str) -> Iterator[Ground]:
    """An empty one; of a PostgreSQL, a database of its own in the server at `url`."""
    folder = tempfile.mkdtemp(prefix="headgate-bench-")
    name = f"bench_{random_id()[:12]}"
    try:
        if kind == POSTGRES:
            # A checkpoint in the middle of one run and not of the next would be luck.
            _tell(url, f"create database {name}", "checkpoint")
        yield Ground(kind, folder, url.removesuffix("/postgres") + f"/{name}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if kind == POSTGRES:
            _tell(url, f"drop database if exists {name} with (force)")


def _tell(url: str, *statements: str) -> None:
    async def tell() -> None:
        connection = await asyncpg.connect(url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    uvloop.run(tell())


def apart(measure: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Measure in a clean process, on uvloop."""
    with beside(_answer, partial(measure, *args, **kwargs)) as child:
        measured: T | None
        measured, trouble = child.recv()
    if trouble:
        raise RuntimeError(trouble)
    return cast("T", measured)


def _answer(parent: Connection, measure: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    try:
        parent.send((uvloop.run(measure()), ""))
    except Exception:  # noqa: BLE001 - the parent tells it
        parent.send((None, traceback.format_exc()))


@contextlib.contextmanager
def beside(run: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """A clean process that runs `run(pipe, *args)`. It sees the end of the pipe when we are gone, however we went."""
    spawn = multiprocessing.get_context("spawn")
    ours, its = spawn.Pipe()
    process = spawn.Process(target=run, args=(its, *args), daemon=True)
    process.start()
    its.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


async def fill(gateway: Gateway, jobs: int, *, together: int = 500) -> None:
    """A backlog of no-ops, of several tenants."""
    for start in range(0, jobs, together):
        tenant = TENANTS[start // together % len(TENANTS)]
        count = min(together, jobs - start)
        await gateway.jobs.submit_many([{"task": noop.name, "input": CHAT}] * count, tenant=tenant)


async def settle_down(ground: Ground) -> None:
    """What a database that has been up for a while has had: statistics, and its dead rows cleared away."""
    if ground.kind == POSTGRES:
        async with ground.connection() as connection:
            await connection.execute("vacuum analyze")
    await asyncio.sleep(0.1)
