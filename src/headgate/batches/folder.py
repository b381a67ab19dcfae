"""The folder of the files' bytes. A file appears under its name when it is whole and on the disk, or not at all.

Everything here blocks: callers run it in threads.
"""

import contextlib
import fcntl
import os
import threading
from pathlib import Path
from typing import Final

from headgate.core.errors import PayloadTooLarge

PART_PREFIX: Final = ".part-"


class Draft:
    """A file on its way. Its lock tells a sweep in any process that somebody is still at it.

    Who waits for a thread may be cancelled while that still works: nothing is opened or written once this is over.
    """

    def __init__(self, folder: Path, name: str, most_bytes: int) -> None:
        self.size_bytes = 0
        self._folder = folder
        self._most_bytes = most_bytes
        self._path = folder / f"{PART_PREFIX}{name}"
        self._fd: int | None = None
        self._over = False
        self._using = threading.Lock()

    def write(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self.size_bytes > self._most_bytes:
            raise PayloadTooLarge(f"a file may have at most {self._most_bytes:,} bytes", param="file")
        with self._using:
            if self._over:
                return
            fd, left = self._opened(), memoryview(data)
            while left:
                left = left[os.write(fd, left) :]

    def keep(self, file_id: str) -> None:
        """When this returns, the file is on the disk under its name, and so is the name."""
        with self._using:
            if self._over:
                return
            os.fsync(self._opened())
            self._path.rename(self._folder / file_id)
            sync_folder(self._folder)
            self._close()

    def drop(self) -> None:
        """Nothing of it stays; of one that was kept, everything does."""
        with self._using:
            if self._fd is not None:
                self._path.unlink(missing_ok=True)
            self._close()

    def _opened(self) -> int:
        if self._fd is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._fd = _locked(self._path)
        return self._fd

    def _close(self) -> None:
        self._over = True
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _locked(path: Path) -> int:
    """A new file, locked. A sweep may have found it before it was, and removed it: then another."""
    while True:
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep(folder: Path, *, before: float) -> int:
    """Remove drafts that nobody writes any more, and files not touched since `before` (epoch seconds)."""
    removed = 0
    # What cannot be looked at or removed now may be the next time; who writes there is told what is wrong.
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            with contextlib.suppress(OSError):
                if entry.name.startswith(PART_PREFIX):
                    removed += _remove_abandoned(entry.path)
                elif entry.stat().st_mtime < before:
                    Path(entry.path).unlink()
                    removed += 1
    return removed


def _remove_abandoned(path: str) -> bool:
    """With its lock in hand, so that nobody can begin to write it meanwhile."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(path).unlink()
    finally:
        os.close(fd)
    return True
