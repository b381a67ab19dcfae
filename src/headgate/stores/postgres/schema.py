"""Bringing the schema up to date: one node at a time, and only where something is missing."""

from typing import Any, Final

from headgate.core.errors import SettingsError
from headgate.stores import sql
from headgate.stores.postgres.database import Connection, Database

MIGRATE_S: Final = 600.0
"""A large table takes its time, and whoever comes second waits for the first."""
OLDEST: Final = (14, 0)
_LOCK: Final = 0x6865_6164_6761_7465
"""An advisory lock of our own: "headgate" in ASCII."""
_PREPARE: Final = """
create schema if not exists headgate;
create table if not exists headgate.migrations (
    number integer primary key,
    applied_at timestamptz not null default clock_timestamp()
);
"""
_OLDER_NODES: Final = """
select id, expires_at - extract(epoch from clock_timestamp())::float8 from headgate.nodes
where expires_at > extract(epoch from clock_timestamp())
"""


async def migrate(database: Database) -> None:
    """Apply what is missing. A user who may not create tables is welcome once they are there."""
    await database.transact("migrate", _migrate, within_s=MIGRATE_S)


async def _migrate(connection: Connection) -> None:
    _check_server(connection)
    scripts = sql.migrations("headgate.stores.postgres.migrations")
    if await _known(connection, len(scripts)) == len(scripts):
        return
    # Whoever comes second waits here until the first has committed, and then finds everything done.
    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK, timeout=MIGRATE_S)
    await connection.execute(_PREPARE)
    known = await _known(connection, len(scripts))
    if 0 < known < sql.BEATS:
        sql.refuse_beside([tuple(row) for row in await connection.fetch(_OLDER_NODES)])
    for number, script in scripts[known:]:
        await connection.execute(script, timeout=MIGRATE_S)
        await connection.execute("insert into headgate.migrations (number) values ($1)", number)


async def _known(connection: Connection, newest: int) -> int:
    """The schema's number; 0 for none. Refuses one that a newer version wrote."""
    table: Any = await connection.fetchval("select to_regclass('headgate.migrations')::text")
    if table is None:
        return 0
    known = int(await connection.fetchval("select coalesce(max(number), 0) from headgate.migrations"))
    sql.refuse_newer(known, newest)
    return known


def _check_server(connection: Connection) -> None:
    version = connection.get_server_version()
    if (version.major, version.minor) < OLDEST:
        raise SettingsError(
            f"PostgreSQL {version.major}.{version.minor} is too old: headgate needs {OLDEST[0]}"
        )
    encoding = connection.get_settings().server_encoding
    if encoding.upper() not in {"UTF8", "UTF-8", "UNICODE"}:
        raise SettingsError(f"the database's encoding is {encoding}: headgate needs UTF8")
