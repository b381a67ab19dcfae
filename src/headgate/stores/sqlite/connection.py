"""Opening the file the one right way, and bringing its schema up to date."""

import os
from pathlib import Path
from typing import Any, Final

import apsw

from headgate.machine.sqlite.opening import open_shared
from headgate.machine.sqlite.troubles import lacks_its_log
from headgate.stores import failpoints, sql

CACHE_KIB: Final = 64 * 1024
CHECKPOINT_PAGES: Final = 4000
_OLDER_NODES: Final = (
    "select id, expires_at - unixepoch('subsec') from nodes where expires_at > unixepoch('subsec')"
)


class NotOurs(Exception):
    """A database that somebody else has made."""


def connect(path: Path, *, vfs: str | None = None, lasting: bool = True) -> apsw.Connection:
    """A connection whose commits are on the disk when they return, unless nothing is to last."""
    try:
        connection = open_shared(path, vfs=vfs)
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.IOError):
        if not _lies_still(path):
            raise
        connection = _to_look_only(path, vfs)
    if not lasting:
        connection.pragma("synchronous", "off")
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
    # What a statement keeps aside while it runs is small: in files, making room for it would cost more than the work.
    connection.pragma("temp_store", "memory")
    # A statement keeps its plan, whatever it is asked; otherwise SQLite makes a new one for every new value.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def _lies_still(path: Path) -> bool:
    """Nothing of it waits in a log: all there is can be read without writing anything beside it."""
    log = path.with_name(f"{path.name}-wal")
    waits = lacks_its_log(path) or (log.exists() and log.stat().st_size)
    return os.access(path, os.R_OK) and not waits


def _to_look_only(path: Path, vfs: str | None) -> apsw.Connection:
    """On a disk without room, or where nothing may be written."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"{path.absolute().as_uri()}?immutable=1", flags=flags, vfs=vfs)


def migrate(connection: apsw.Connection) -> None:
    """Apply what is missing, under the write lock: two processes may start at once."""
    scripts = sql.migrations("headgate.stores.sqlite.migrations")
    if connection.pragma("user_version") == len(scripts):
        return
    connection.execute("begin immediate")
    try:
        known = connection.pragma("user_version")
        sql.refuse_newer(known, len(scripts))
        _refuse_foreign(connection, known)
        if 0 < known < sql.BEATS:
            older: Any = connection.execute(_OLDER_NODES).fetchall()
            sql.refuse_beside(older)
        for number, script in scripts[known:]:
            connection.execute(script)
            connection.pragma("user_version", number)
    except BaseException:
        connection.execute("rollback")
        raise
    failpoints.reach(["migrate"], "before_commit")
    connection.execute("commit")
    failpoints.reach(["migrate"], "after_commit")


def _refuse_foreign(connection: apsw.Connection, known: int) -> None:
    """Ours gets its tables and its number in one transaction: tables without a number are somebody else's.

    A number without our tables is, too: others count their schemas in the same place.
    """
    if known:
        if connection.execute("select 1 from sqlite_master where name = 'idempotency_keys'").get is None:
            raise NotOurs(f"it says schema {known} and has none of its tables")
    elif connection.execute("select 1 from sqlite_master").get is not None:
        raise NotOurs("it has tables already")
