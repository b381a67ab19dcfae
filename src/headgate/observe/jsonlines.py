"""A file of JSON lines that is appended to, put away when full, and healed when torn. Knows bytes, not events.

Several processes may share one: they take turns by a lock on its folder.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger("headgate")


class JsonLinesFile:
    """One file of lines and its older parts. After an error it is opened anew, and so heals by itself."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.errors = 0
        self.lost = 0
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: int | None = None
        self._size = 0
        self._told = False

    def append(self, lines: bytes) -> None:
        """Write whole lines with one write, or one for each file they fill."""
        some = bool(lines)
        try:
            with self._alone():
                # Others may have added to it, or put it away.
                self._size = os.fstat(self._open()).st_size
                while lines:
                    lines = lines[self._write(lines[: self._fitting(lines)]) :]
        except Exception as error:  # noqa: BLE001 - lines are lost, and the thread that writes goes on
            self.close()
            self._count(error, lines.count(b"\n"))
        else:
            self._told = self._told and not some

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            # Some network disks complain only here, when nothing can be done about it any more.
            with contextlib.suppress(OSError):
                os.close(file)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Some network disks know no locks: there each process needs a folder of its own.
            with contextlib.suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _open(self) -> int:
        if self._file is not None and self._moved_away(self._file):
            self.close()
        if self._file is not None:
            return self._file
        self._file = file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(file).st_size
        if self._size and os.pread(file, 1, self._size - 1) != b"\n":
            self._write(b"\n")  # A crash or a full disk tore the last line; the next one must not suffer.
        return file

    def _moved_away(self, file: int) -> bool:
        """Somebody renamed or deleted the file under us, as log rotators do: we begin a new one in its place."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return True
        ours = os.fstat(file)
        return (there.st_ino, there.st_dev) != (ours.st_ino, ours.st_dev)

    def _write(self, data: bytes) -> int:
        written = os.write(self._open(), data)
        self._size += written
        return written

    def _fitting(self, lines: bytes) -> int:
        """How many bytes of whole lines the file still takes; a full file is put away first."""
        end = lines.rfind(b"\n", 0, max(0, self._max_bytes - self._size)) + 1
        if not end and self._size:
            self._put_away()
            return self._fitting(lines)
        # A line longer than a file may be gets a file of its own.
        return end or lines.index(b"\n") + 1

    def _put_away(self) -> None:
        """Rename the file to `.1`, `.1` to `.2`, … up to the first free number, or over the oldest."""
        self.close()
        free = next((n for n in range(1, self._keep) if not self._older(n).exists()), self._keep)
        for n in range(free, 1, -1):
            self._older(n - 1).replace(self._older(n))
        if self._keep:
            self._path.replace(self._older(1))
        else:
            self._path.unlink()
        self._open()

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _count(self, error: Exception, lost: int) -> None:
        self.errors += 1
        self.lost += lost
        if not self._told:
            self._told = True
            _log.warning(
                "event log: %s: lines are dropped until writing works again: %s", self._path.name, error
            )
