"""Stores on a real PostgreSQL, and jobs for them."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any

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
        await store.join("n")
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
        super().__init__()
        self.set(ahead_s)

    def set(self, ahead_s: float) -> None:
        self._ahead = timedelta(seconds=ahead_s)

    def utc(self) -> datetime:
        return super().utc() + (self._ahead if self._followed_from is None else timedelta())


@contextmanager
def reached(monkeypatch: Any) -> Iterator[list[str]]:
    """Every failpoint that is passed."""
    names: list[str] = []

    def note(verbs: Any, moment: str) -> None:
        names.extend(f"{verb}.{moment}" for verb in verbs)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", note)
        yield names
