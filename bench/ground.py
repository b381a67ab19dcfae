"""What every measurement stands on: a database, a gateway on it, jobs like chat bodies, a process of its own."""

import asyncio
import contextlib
import multiprocessing
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import msgspec
import uvloop

import headgate
from headgate.gateway import Gateway
from headgate.runner.context import Context

P = ParamSpec("P")
T = TypeVar("T")
SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"
TENANTS: Final = ("acme", "beta", "coop", "dune")
_WORDS: Final = "the a of to in is it gate slot queue token reply prompt batch retry later wait again".split()


class Line(msgspec.Struct):
    role: str
    content: str


class Chat(msgspec.Struct):
    """A chat body, as a task takes it. It names no model: what a gate lets through is not measured here."""

    messages: list[Line]
    temperature: float
    max_tokens: int


def chat(seed: int = 1, size_bytes: int = 700) -> dict[str, Any]:
    """About that many bytes as JSON."""
    chance = random.Random(seed)
    words = " ".join(chance.choice(_WORDS) for _ in range(size_bytes // 3))
    system = {"role": "system", "content": "You are a careful editor. Answer in one paragraph."}
    return {
        "messages": [system, {"role": "user", "content": words[: size_bytes - 160]}],
        "temperature": 0.2,
        "max_tokens": 256,
    }


CHAT: Final = chat()
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

    def settings(self, **jobs: Any) -> dict[str, Any]:
        database = self.url if self.kind == POSTGRES else SQLITE
        return {"data_dir": self.folder, "database": database, "jobs": jobs}

    @contextlib.asynccontextmanager
    async def gateway(
        self, task: headgate.Task[Any, Any] = noop, *, work: bool = False, **jobs: Any
    ) -> AsyncIterator[Gateway]:
        """As its users open it."""
        async with headgate.open(self.settings(**jobs), env={}, work=work, tasks=[task]) as gateway:
            yield gateway

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
    """An empty one."""
    folder = tempfile.mkdtemp(prefix="headgate-bench-")
    try:
        if kind == POSTGRES:
            uvloop.run(_empty(url))
        yield Ground(kind, folder, url)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _empty(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("drop schema if exists headgate cascade")
    await connection.execute("drop schema if exists peer cascade")
    # A checkpoint in the middle of one run and not of the next would be luck.
    await connection.execute("checkpoint")
    await connection.close()


def apart(measure: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Measure in a clean process, on uvloop."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        return process.submit(_on_uvloop, measure, *args, **kwargs).result()


def _on_uvloop(measure: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    async def run() -> T:
        return await measure(*args, **kwargs)

    return uvloop.run(run())


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
