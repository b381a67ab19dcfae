"""Stores on a real PostgreSQL, jobs for them, and a wire between the two that can be cut at the worst moment."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, Self
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]

from headgate.core.job import Claim, NewJob, Settlement
from headgate.core.job_rules import Completed, JobRules, Outcome, settle
from headgate.core.ports.jobs import JobFilter
from headgate.machine.clock import SystemClock
from headgate.stores import failpoints
from headgate.stores.postgres import PostgresStore

NOW = 1_700_000_000.0
LEASE_S = 30.0
RULES = JobRules()
_numbers = itertools.count(1)


def new_id() -> str:
    return f"{os.getpid()}-{next(_numbers)}"


def a_job(**changes: Any) -> NewJob:
    """Due NOW. Later ones sort higher, as real ids do."""
    usual: dict[str, Any] = {"id": f"job-{next(_numbers):09}", "task": "chat", "input": b'{"text":"hello"}'}
    return NewJob(**{**usual, "run_at": NOW, "expires_at": NOW + 10_000, "model": "m", **changes})


def after(claim: Claim, outcome: Outcome | None = None, *, now: float = NOW) -> Settlement:
    return settle(claim, outcome or Completed(b'"done"'), rules=RULES, now=now, chance=0.5)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    """An open store with one node, `n`."""
    store = PostgresStore(url, **{"clock": SystemClock(), "new_id": new_id, **options})
    await store.open()
    try:
        await store.join("n", now=NOW, lease_s=LEASE_S)
        yield store
    finally:
        await store.aclose()


async def run_sql(url: str, *statements: str) -> list[Any]:
    """The rows of the last one."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements[:-1]:
            await connection.execute(statement)
        return list(await connection.fetch(statements[-1]))
    finally:
        await connection.close()


async def all_ids(store: PostgresStore) -> list[str]:
    return [job.id for job in await store.select(JobFilter(), limit=100_000)]


async def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what it waits for happens in another process
            await asyncio.sleep(0.01)


class AheadClock(SystemClock):
    """A machine whose clock is wrong."""

    __slots__ = ("_ahead",)

    def __init__(self, ahead_s: float) -> None:
        self.set(ahead_s)

    def set(self, ahead_s: float) -> None:
        self._ahead = timedelta(seconds=ahead_s)

    def utc(self) -> datetime:
        return super().utc() + self._ahead


@contextmanager
def reached(monkeypatch: Any) -> Iterator[list[str]]:
    """Every failpoint that is passed."""
    names: list[str] = []

    def note(verbs: Any, moment: str) -> None:
        names.extend(f"{verb}.{moment}" for verb in verbs)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", note)
        yield names


class Wire:
    """A TCP relay. `deafen()` loses what the server answers next, after it has done what it was asked."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._deaf: bytes | None = None
        self._stalled = False
        self._last: bytes | None = None
        self._passing = 0
        self._pipes: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://{self._target.username}@127.0.0.1:{port}{self._target.path}"

    def deafen(self, at: bytes) -> None:
        """The next question that holds these bytes is heard; its answer is lost with the connection."""
        self._deaf = at

    def stall(self) -> None:
        """Nothing comes through any more, in either direction; nobody hangs up."""
        self._stalled = True

    def stall_after(self, at: bytes) -> None:
        """The next statement that holds these bytes is prepared and run; then it stalls, before it is committed."""
        self._last = at

    @property
    def stalled(self) -> bool:
        return self._stalled

    def heal(self) -> None:
        """New connections work; the old ones are cut."""
        self._stalled = False
        self.cut()

    def cut(self) -> None:
        for pipe in tuple(self._pipes):
            pipe.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._pipes |= {writer, back}
        asked: list[bool] = [False]
        for task in (self._ask(reader, back, asked), self._answer(there, writer, asked)):
            running = asyncio.create_task(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    async def _ask(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, asked: list[bool]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                if self._deaf is not None and self._deaf in data:
                    self._deaf, asked[0] = None, True
                if not self._stalled:
                    back.write(data)
                self._count(data)
        # Who has fallen silent does not hang up either.
        if not self._stalled:
            back.close()

    def _count(self, data: bytes) -> None:
        if self._last is not None and self._last in data:
            # The statement was prepared with this; what runs it comes next.
            self._last, self._passing = None, 2
        if self._passing:
            self._passing -= 1
            self._stalled = not self._passing

    async def _answer(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bool]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await there.read(1 << 20):
                if asked[0]:
                    writer.transport.abort()
                    return
                if not self._stalled:
                    writer.write(data)
        writer.close()
