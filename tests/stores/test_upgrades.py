"""A database of an earlier schema is brought up to date with all that is in it."""

import asyncio
import contextlib
from pathlib import Path

import apsw
import pytest
from stores.postgres_stage import new_id, run_sql

from headgate.core.errors import SettingsError
from headgate.core.ports.store import Store
from headgate.machine.clock import SystemClock
from headgate.stores import sql
from headgate.stores.postgres import PostgresStore
from headgate.stores.sqlite import SqliteStore

FIRST = 0
WRITE = "insert into {}records (tenant, collection, id, body, created_at, updated_at) values ('local', 'c', 'r', '7', 1, 1)"


async def check(store: Store) -> bytes:
    """What was there is there, what is new works. Returns the secret, which must outlive all upgrades."""
    await store.open()
    try:
        record = await store.get_record("local", "c", "r")
        assert record is not None
        assert record.body == 7
        assert await store.access_keys() == []
        assert not any((await store.batch_counts("b", tenant="local")).values())
        return bytes(store.secret)
    finally:
        await store.aclose()


def test_the_first_schema_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute(sql.migrations("headgate.stores.sqlite.migrations")[FIRST][1])
        connection.execute(WRITE.format("").replace("'7'", "x'37'"))
        connection.pragma("user_version", 1)
        secret = connection.execute("select value from secrets").get

    for _ in range(2):
        assert asyncio.run(check(SqliteStore(path, clock=SystemClock(), new_id=new_id))) == secret


def test_the_first_schema_on_postgres(postgres_url: str) -> None:
    async def main() -> None:
        await run_sql(
            postgres_url,
            "create schema headgate",
            "create table headgate.migrations (number integer primary key)",
            sql.migrations("headgate.stores.postgres.migrations")[FIRST][1],
            "insert into headgate.migrations values (1)",
            WRITE.format("headgate."),
            "select 1",
        )
        [[secret]] = await run_sql(postgres_url, "select value from headgate.secrets")
        for _ in range(2):
            store = PostgresStore(postgres_url, clock=SystemClock(), new_id=new_id)
            assert await check(store) == secret

    asyncio.run(main())


LEASE = "insert into {}nodes (id, expires_at) values ('node_old', {} + 20), ('node_dead', {} - 1)"
NOW = "extract(epoch from clock_timestamp())"


def test_nodes_that_renew_by_a_clock_must_stop_first_on_sqlite(tmp_path: Path) -> None:
    """They would not see beats, and would be declared dead while they work. The message names them."""
    path = tmp_path / "jobs.db"
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        for number, script in sql.migrations("headgate.stores.sqlite.migrations")[: sql.BEATS - 1]:
            connection.execute(script)
            connection.pragma("user_version", number)
        connection.execute(LEASE.format("", "unixepoch()", "unixepoch()"))
        with pytest.raises(SettingsError, match=r"1 node\(s\) of an older headgate .* node_old\. Stop"):
            asyncio.run(SqliteStore(path, clock=SystemClock(), new_id=new_id).open())
        assert connection.pragma("user_version") == sql.BEATS - 1
        connection.execute("update nodes set expires_at = 0")

    async def main() -> None:
        store = SqliteStore(path, clock=SystemClock(), new_id=new_id)
        await store.open()
        await store.join("node_new")
        assert (await store.renew("node_new")).beats == {}
        await store.aclose()

    asyncio.run(main())


def test_nodes_that_renew_by_a_clock_must_stop_first_on_postgres(postgres_url: str) -> None:
    async def main() -> None:
        scripts = sql.migrations("headgate.stores.postgres.migrations")[: sql.BEATS - 1]
        await run_sql(
            postgres_url,
            "create schema headgate",
            "create table headgate.migrations (number integer primary key)",
            *(script for _, script in scripts),
            "insert into headgate.migrations select generate_series(1, 3)",
            LEASE.format("headgate.", NOW, NOW),
            "select 1",
        )
        store = PostgresStore(postgres_url, clock=SystemClock(), new_id=new_id)
        with pytest.raises(SettingsError, match=r"node_old\. Stop all of them"):
            await store.open()
        await run_sql(postgres_url, "update headgate.nodes set expires_at = 0", "select 1")
        store = PostgresStore(postgres_url, clock=SystemClock(), new_id=new_id)
        await store.open()
        await store.join("node_new")
        assert (await store.renew("node_new")).beats == {}
        await store.aclose()

    asyncio.run(main())
