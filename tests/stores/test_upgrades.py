"""A database of an earlier schema is brought up to date with all that is in it."""

import asyncio
import contextlib
from pathlib import Path

import apsw
from stores.postgres_stage import new_id, run_sql

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
