"""Where the file lies: made for its owner's eyes only, and watched while it is in use.

A file that is deleted while it is open goes on taking writes, and they are lost when the process ends. The same holds
for the log beside it (`-wal`, where accepted work waits for a checkpoint) and its index (`-shm`). A look at their names
before and after each transaction notices; what the open handles still hold is then saved into the database file.
"""

import contextlib
import logging
import os
from functools import partial
from pathlib import Path
from typing import Final

import apsw

from headgate.core.errors import SettingsError, StoreUnavailable
from headgate.machine.sqlite.opening import open_shared, patiently
from headgate.machine.sqlite.troubles import LOST_LOG, FilesRemoved, translated

logger = logging.getLogger("headgate")
_LOG_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24


class Place:
    """One path, the file that was there when it was first opened, and the log that each connection has open."""

    def __init__(self, path: Path) -> None:
        self.name = f"sqlite {path}"
        # A task may change the folder it works in; the file stays where it was.
        self.path = path.absolute()
        self._file: os.stat_result | None = None
        self._logs: dict[apsw.Connection, _Log] = {}
        self._lost = ""
        """What happened to the log or its index. Only a restart helps: other processes may still have the old ones open."""
        self._emptied = False
        self._saved = False

    def make(self) -> None:
        """The folder, and the file if there is none: it will hold prompts, so nobody else may read it."""
        if self.path.is_dir():
            raise IsADirectoryError("this is a folder, not a file; move it away, or set another data_dir")
        self._make_folder()
        # Never opened when it is there: to close it again would drop this process's locks on it. Where it cannot be
        # made, SQLite will say why.
        with contextlib.suppress(OSError):
            new = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            os.close(os.open(os.path.realpath(self.path), new, 0o600))

    def _make_folder(self) -> None:
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if self.translated(error) is not error:
                raise
            why = f"the folder {folder} cannot be made: {error.strerror}; check the path and its permissions"
            raise SettingsError(why) from error

    def check(self, connection: apsw.Connection | None = None) -> None:
        """Raise when a file is missing, or is another than the one in use. Takes a few µs. Not inside a transaction."""
        # Flat, because it precedes each transaction: three looks at the disk and a few function calls.
        found, first = _look(self.path), self._file
        if first is None:
            self._file = found
        elif found is None or found.st_ino != first.st_ino or found.st_dev != first.st_dev:
            raise FilesRemoved(
                f"{self.name}: the file was deleted or replaced while in use; put it back, or restart to use what"
                " is there now. Until then nothing is accepted"
            )
        if not self._lost:
            self._check_logs(connection)
        if self._lost:
            raise FilesRemoved(f"{self.name}: {self._lost}")

    @property
    def lost(self) -> bool:
        """Whether a file is missing or is another than the one in use."""
        try:
            self.check()
        except StoreUnavailable as error:
            return isinstance(error, FilesRemoved)
        return False

    def save(self, connection: apsw.Connection) -> None:
        """Copy into the database file what only the open handles still hold, and close the others of this process."""
        if self._saved:
            return
        for other in tuple(self._logs):
            # One that another thread uses stays: it may be in the way, and then this is tried again.
            if other is not connection:
                with contextlib.suppress(apsw.Error):
                    self.close(other)
        if self._emptied:
            saved = self._save_from_memory(connection)
        else:
            # Other processes that lose the same log save it at the same moment.
            patiently(partial(connection.wal_checkpoint, mode=apsw.SQLITE_CHECKPOINT_FULL))
            saved = True
        self._saved = bool(self._lost)
        if self._saved and saved:
            logger.warning("%s: what was accepted before is saved in the database file", self.name)

    def _save_from_memory(self, connection: apsw.Connection) -> bool:
        """The log has nothing, but a connection keeps the pages that it wrote, while no other process writes."""
        try:
            copy = apsw.Connection("")
            _copy(connection, copy)
            self.close(connection)
            anew = open_shared(self.path)
            try:
                if _Log(anew, os.path.realpath(self.path)).is_emptied():
                    raise apsw.BusyError("another process has the log open")
                _copy(copy, anew)
                anew.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                self.close(anew)
        except apsw.Error as error:
            self.close(connection)
            logger.error("%s: what was in the log is lost, restore a backup: %s", self.name, error)  # noqa: TRY400 - no traceback
            return False
        return True

    def uses(self, connection: apsw.Connection) -> bool:
        """Whether it is one that was opened here and not closed since."""
        return connection in self._logs

    def close(self, connection: apsw.Connection) -> None:
        """After a loss this must neither write to the database file nor remove a log: they may be another's by now."""
        self._logs.pop(connection, None)
        if self.lost:
            with contextlib.suppress(apsw.ConnectionClosedError):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()

    def translated(self, error: BaseException) -> BaseException:
        return translated(error, self.name, self.path)

    def _check_logs(self, connection: apsw.Connection | None) -> None:
        if connection is not None and connection not in self._logs and not connection.readonly("main"):
            self._logs[connection] = _Log(connection, os.path.realpath(self.path))
        looks: dict[str, os.stat_result | None] = {}
        for user, log in tuple(self._logs.items()):
            for name, known in log.files:
                if name not in looks:
                    looks[name] = _look(name)
                now = looks[name]
                gone = now is None or now.st_ino != known.st_ino or now.st_dev != known.st_dev
                # A connection that another thread closes leaves the table first, before SQLite may remove its log.
                if gone and user in self._logs:
                    self._lost = LOST_LOG.format(name)
                    return
        if connection in self._logs and self._logs[connection].is_emptied():
            self._emptied = True
            self._lost = LOST_LOG.format(f"{self.path}-wal")


class _Log:
    """The log and the index that a connection has open. While it is open, SQLite never removes them."""

    __slots__ = ("_connection", "_frame_bytes", "_log_name", "files")

    def __init__(self, connection: apsw.Connection, file: str) -> None:
        self._connection = connection
        self._frame_bytes = _FRAME_HEADER_BYTES + connection.pragma("page_size")
        self._log_name = f"{file}-wal"
        _frames(connection)  # Opens both.
        names = self._log_name, f"{file}-shm"
        self.files = [(name, known) for name in names if (known := _look(name))]
        """Their names, and what these led to at first."""

    def is_emptied(self) -> bool:
        """Whether the log is too short for what its index says. Called where the connection is in use."""
        frames = _frames(self._connection)
        if not frames:
            return False
        log = _look(self._log_name)
        if log is not None and log.st_size >= _LOG_HEADER_BYTES + frames * self._frame_bytes:
            return False
        # A checkpoint by another program may have emptied it between the two looks: then the frames are fewer.
        return frames <= _frames(self._connection)


def _frames(connection: apsw.Connection) -> int:
    """How many pages the log holds, as its index says; 0 while another process is making the index.

    The look does not wait for a lock; the transaction that it precedes does.
    """
    try:
        return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
    except apsw.BusyError:
        return 0


def _copy(source: apsw.Connection, target: apsw.Connection) -> None:
    with target.backup("main", source, "main") as copying:
        copying.step(-1)


def _look(path: str | Path) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - half the time of Path.stat, at each transaction
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"sqlite {path}: {error}") from error
