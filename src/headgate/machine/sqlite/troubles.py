"""SQLite's errors as ours: what is the matter with the file, in plain words, and whether waiting can help."""

import errno
import os
from pathlib import Path
from typing import Final

import apsw

from headgate.core.errors import StoreUnavailable

OF_THE_STORE: Final = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.FullError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.ProtocolError,
    apsw.NoMemError,
    apsw.ConnectionClosedError,
    StoreUnavailable,
)
_LASTING: Final = (apsw.CorruptError, apsw.NotADBError)
"""What only a person can mend."""
_FULL: Final = "the disk is full"
_UNREAD_LOG: Final = (
    "its last changes are in the log beside it (-wal), and to read that takes a folder that can be written;"
    " copy the folder elsewhere and look there"
)
LOST_LOG: Final = (
    "{} was removed, emptied or replaced while in use; stop all processes that use the database, then start them again."
    " Until then nothing is accepted"
)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_ADVICE: Final[tuple[tuple[type[Exception], str], ...]] = (
    (apsw.BusyError, "another process keeps it locked"),
    (apsw.LockedError, "another process keeps it locked"),
    (apsw.FullError, _FULL),
    (apsw.IOError, "the disk does not do as it is told"),
    (apsw.CantOpenError, "the file cannot be opened; check the path and its permissions"),
    (apsw.ReadOnlyError, "the file or its folder is read-only; check their permissions"),
    (apsw.CorruptError, "the file is damaged; restore it from a backup, or move it away to begin anew"),
    (apsw.NotADBError, "the file is no database; set another data_dir, or move the file away"),
)
LITTLE_ROOM_BYTES: Final = 64 * 1024
"""SQLite keeps notes of this order beside the file before it can even look at it."""


class FilesRemoved(StoreUnavailable):
    """The database's files were removed or replaced while in use: a person must put them back, or restart."""

    def __init__(self, message: str) -> None:
        super().__init__(message, waiting_helps=False)


def translated(error: BaseException, name: str, path: Path) -> BaseException:
    """The library's errors as ours; our own and plain mistakes pass as they are."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        why = _FULL
    elif isinstance(error, StoreUnavailable) or not isinstance(error, OF_THE_STORE):
        return error
    elif isinstance(error, apsw.IOError) and lacks_its_log(path):
        why = LOST_LOG.format(f"{path}-wal")
        removed = FilesRemoved(f"{name}: {why}")
        removed.__cause__ = error
        return removed
    else:
        why = _why(error, path)
    unavailable = StoreUnavailable(
        f"{name}: {why} ({type(error).__name__}: {error})", waiting_helps=not isinstance(error, _LASTING)
    )
    unavailable.__cause__ = error
    return unavailable


def lacks_its_log(path: Path) -> bool:
    """Its index is there (`-shm`, of a process that uses it), and the log itself is missing or empty."""
    log, index = (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))
    return _has_content(index) and not _has_content(log)


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _why(error: BaseException, path: Path) -> str:
    # On a full disk SQLite may only say that something could not be made or written.
    if isinstance(error, apsw.IOError | apsw.CantOpenError | apsw.ReadOnlyError) and _is_full(path.parent):
        return _FULL
    if isinstance(error, apsw.CantOpenError) and _is_only_readable(path):
        return _UNREAD_LOG
    return next((advice for kind, advice in _ADVICE if isinstance(error, kind)), str(error))


def _is_only_readable(path: Path) -> bool:
    return os.access(path, os.R_OK) and not os.access(path.parent, os.W_OK)


def _is_full(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < LITTLE_ROOM_BYTES
