"""A database of an earlier schema is brought up to date with all that is in it."""

import asyncio
import contextlib
from pathlib import Path

import apsw
import pytest
from stores.postgres_stage import new_id, run_sql
from stores_under_test import ROW_BYTES

from headgate.core.errors import SettingsError
from headgate.core.ports.store import Store
from headgate.core.webhook_wire import ALERTS, derived_secret
from headgate.machine.clock import SystemClock
from headgate.machine.secret_key import SecretKey
from headgate.observe.webhook_secrets import WebhookSecrets
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


BEFORE_BYTES = 4
FILE = '{"bytes": 1000}'
FILLED = (
    (
        "insert into {0}jobs (id, tenant, task, model, state, lane, priority, max_attempts, hold, revivable, timeout_s,"
        " created_at, run_at, due, expires_at, metadata{1}) values ('j', 'acme', 't', '', 'ready', 'batch', 5, 5, {3}, {3},"
        " 600, 1, 1, 1, 1e12, {4}{2})"
    ),
    "insert into {0}steps (job_id, name, result, saved_at) values ('j', 's', {5}, 1)",
    (
        "insert into {0}idempotency_keys (tenant, endpoint, key, request_hash, state, lease, response_status,"
        " response_body, created_at, expires_at) values ('acme', 'e', 'k', {5}, 'done', 1, 200, {5}, 1, 1e12)"
    ),
    (
        "insert into {0}records (tenant, collection, id, body, created_at, updated_at)"
        " values ('acme', 'files', 'file-1', {6}, 1, 1)"
    ),
)
STORED = {"acme": 4 * ROW_BYTES + 10 + 2 + 4 + 4 + len(FILE) + 1000}


async def check_upgraded(store: Store, folder: Path) -> None:
    """What was there is counted, and is given back; secrets that receivers have are in force until they are rotated."""
    clock = SystemClock()
    await store.open()
    try:
        assert await store.stored_bytes() == STORED
        secrets = WebhookSecrets(store, SecretKey(None, folder), clock)
        old = derived_secret("acme", store.secret)
        assert await secrets.in_force("acme") == (old,)
        assert await secrets.in_force(ALERTS) == (derived_secret("local", store.secret),)
        assert await secrets.in_force("new") != (derived_secret("new", store.secret),)
        new = await secrets.rotate("acme")
        assert await secrets.in_force("acme") == (new, old)

        await store.cancel("j", now=1.0)
        await store.prune(before=1e12, limit=10)
        await store.purge_keys(now=1e13, limit=10)
        await store.prune_files(before="file-2", limit=10)
        assert not any((await store.stored_bytes()).values())
    finally:
        await store.aclose()


def test_bytes_are_counted_and_webhook_secrets_kept_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        for number, script in sql.migrations("headgate.stores.sqlite.migrations")[:BEFORE_BYTES]:
            connection.execute(script)
            connection.pragma("user_version", number)
        for statement in FILLED:
            connection.execute(
                statement.format("", "", "", 1, "x'3030'", "x'30303030'", f"cast('{FILE}' as blob)")
            )
        connection.execute("insert into inputs values (1, zeroblob(10))")
    asyncio.run(check_upgraded(SqliteStore(path, clock=SystemClock(), new_id=new_id), tmp_path))


def test_bytes_are_counted_and_webhook_secrets_kept_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        scripts = sql.migrations("headgate.stores.postgres.migrations")[:BEFORE_BYTES]
        filled = [
            one.format(
                "headgate.",
                ", input",
                ", '1234567890'",
                "true",
                "'00'",
                "'0000'",
                f"convert_to('{FILE}', 'UTF8')",
            )
            for one in FILLED
        ]
        await run_sql(
            postgres_url,
            "create schema headgate",
            "create table headgate.migrations (number integer primary key)",
            *(script for _, script in scripts),
            f"insert into headgate.migrations select generate_series(1, {BEFORE_BYTES})",
            *filled,
            "select 1",
        )
        await check_upgraded(PostgresStore(postgres_url, clock=SystemClock(), new_id=new_id), tmp_path)

    asyncio.run(main())
