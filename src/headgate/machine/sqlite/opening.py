"""Opening a file that several processes share: commits that are on the disk, and a log that readers need not wait for."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import apsw

from headgate.core.errors import SettingsError

BUSY_MS: Final = 2000
"""How long to wait for another process that is writing, before telling the caller."""
PAUSE_S: Final = 0.01
SAFE_SQLITE: Final = (3, 51, 3)
"""Versions before this one can corrupt a WAL that several processes reset at once."""


def check_version() -> None:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < SAFE_SQLITE:
        raise SettingsError(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a database used by several processes;"
            " install the apsw wheel, which brings a current one"
        )


def open_shared(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    """A connection whose commits are on the disk when they return."""
    check_version()
    connection = apsw.Connection(os.fspath(path), vfs=vfs)
    try:
        connection.set_busy_timeout(BUSY_MS)
        # Whoever makes the file switches it over and needs it alone for that.
        patiently(partial(connection.pragma, "journal_mode", "wal"))
        connection.pragma("synchronous", "full")
    except BaseException:
        connection.close()
        raise
    return connection


def patiently(action: Callable[[], object]) -> None:
    """Try again while another process is in the way: there are things that SQLite does not wait for by itself."""
    until = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            action()
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE_S)
        else:
            return
