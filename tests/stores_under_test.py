"""Every store there is, as the contract's tests open it: each test runs once per database, on an empty one.

`@on_each_store` turns `async def test_…(store, …)` into a test that pytest runs on SQLite and on PostgreSQL.
"""

import asyncio
import contextlib
import functools
import importlib
import inspect
import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from headgate.core.ports.store import Store
from headgate.machine.clock import SystemClock
from headgate.stores.sqlite import SqliteStore

KINDS = ("sqlite", "postgres")
POOLED = "pgbouncer"
"""PostgreSQL behind a PgBouncer in transaction mode: for those tests that ask for it."""
PATIENCE_S = 120.0
"""A store that hangs is a failure with a name, not a run that never ends."""
_ids = itertools.count()
ROW_BYTES = 1024
"""What a row counts besides its contents."""
_SIZES = {
    "sqlite": """
        select tenant, 1024 + octet_length(input) + coalesce(octet_length(metadata), 0) + coalesce(octet_length(webhook), 0)
            + iif(finished_at is null, 0, coalesce(octet_length(result), 0) + coalesce(octet_length(history), 0)) as bytes
        from jobs join inputs using (seq)
        union all select tenant, 1024 + octet_length(result) from steps
        union all select tenant, 1024 + coalesce(octet_length(response_body), 0) from idempotency_keys
        union all select tenant, 1024 + octet_length(body) from records where collection <> 'files'""",
    "postgres": """
        select tenant, 1024 + octet_length(input) + coalesce(octet_length(metadata), 0)
            + coalesce(octet_length(webhook), 0) as bytes from headgate.jobs
        union all
        select tenant, 1024 + octet_length(input) + coalesce(octet_length(metadata), 0)
            + coalesce(octet_length(webhook), 0) + coalesce(octet_length(result), 0)
            + coalesce(octet_length(history), 0) from headgate.finished_jobs
        union all select tenant, 1024 + octet_length(result) from headgate.steps
        union all select tenant, 1024 + coalesce(octet_length(response_body), 0) from headgate.idempotency_keys
        union all select tenant, 1024 + octet_length(body) from headgate.records where collection <> 'files'""",
}
"""What each row that counts stores, files left out."""


def new_id() -> str:
    return f"id-{os.getpid()}-{next(_ids)}"


@dataclass
class Home:
    """One database that any number of stores may open."""

    kind: str
    make: Callable[[], Store]
    wipe: Callable[[], Awaitable[None]]
    """Empty it under the open stores; only its secret stays."""
    opened: list[Store] = field(default_factory=list)

    async def open(self) -> Store:
        store = self.make()
        await store.open()
        self.opened.append(store)
        return store

    async def aclose(self) -> None:
        while self.opened:
            await self.opened.pop().aclose()


def sqlite_home(folder: Path) -> Home:
    path = folder / "jobs.db"

    async def wipe() -> None:
        with contextlib.closing(apsw.Connection(str(path))) as connection, connection:
            named = "select name from sqlite_master where type = 'table' and name <> 'secrets'"
            for (table,) in connection.execute(named).fetchall():
                connection.execute(f"delete from {table}")

    return Home("sqlite", lambda: SqliteStore(path, clock=SystemClock(), new_id=new_id), wipe)


def postgres_home(request: pytest.FixtureRequest, *, pooled: bool = False) -> Home:
    """Skipped where the adapter is not there; but a CI that skips half the contract proves nothing."""
    try:
        adapter: Any = importlib.import_module("headgate.stores.postgres").PostgresStore
    except (ImportError, AttributeError) as error:
        missing = f"headgate.stores.postgres.PostgresStore cannot be imported: {error}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    url = request.getfixturevalue("postgres_url")
    used = request.getfixturevalue("pooler").url if pooled else url

    async def wipe() -> None:
        connection = await asyncpg.connect(url)
        named = "select tablename from pg_tables where schemaname = 'headgate'"
        tables = {row["tablename"] for row in await connection.fetch(named)} - {"migrations", "secrets"}
        await connection.execute(f"truncate {', '.join(f'headgate.{table}' for table in sorted(tables))}")
        await connection.close()

    return Home("postgres", lambda: adapter(used, clock=SystemClock(), new_id=new_id), wipe)


async def nodes_of(store: Store) -> list[str]:
    """The nodes a store knows. No verb tells: nobody but a test needs them all."""
    found = await _select(store, sqlite="select id from nodes", postgres="select id from headgate.nodes")
    return [str(row[0]) for row in found]


async def bytes_of_rows(store: Store) -> dict[str, int]:
    """The bytes of each tenant's rows, added up. `stored_bytes` tells what was counted while they changed."""
    statements = {
        kind: f"select tenant, sum(bytes) from ({sizes}) as sizes group by tenant having sum(bytes) > 0"
        for kind, sizes in _SIZES.items()
    }
    return {str(tenant): int(size) for tenant, size in await _select(store, **statements)}


async def _select(store: Store, *, sqlite: str, postgres: str) -> list[Any]:
    if isinstance(store, SqliteStore):
        return await store._reader.run(lambda db: db.execute(sqlite).fetchall())
    database: Any = store._database  # type: ignore[attr-defined]  # the other one there is
    return list(await database.read(postgres))


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    if request.param == "sqlite":
        return sqlite_home(tmp_path)
    return postgres_home(request, pooled=request.param == POOLED)


def on_each_store(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test gets an open `store`, and its `home` if it asks: from there a second store can be opened."""
    wanted = inspect.signature(test).parameters

    async def live(home: Home, others: dict[str, Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            try:
                store = await home.open()
                await test(store=store, **({"home": home} if "home" in wanted else {}), **others)
            finally:
                await home.aclose()

    @functools.wraps(test)
    def run(home: Home, **others: Any) -> None:
        asyncio.run(live(home, others))

    ours = inspect.Parameter("home", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Home)
    rest = [wanted[name] for name in wanted if name not in {"store", "home"}]
    run.__signature__ = inspect.Signature([ours, *rest])  # type: ignore[attr-defined]  # pytest reads it
    return run
