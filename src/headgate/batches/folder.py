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

    Who waits for a thread may be cancelled while that still writes: nothing is written once this is closed.
    """

    def __init__(self, folder: Path, name: str, most_bytes: int) -> None:
        self.size_bytes = 0
        self._folder = folder
        self._most_bytes = most_bytes
        self._using = threading.Lock()
        self._path = folder / f"{PART_PREFIX}{name}"
        folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self.size_bytes > self._most_bytes:
            raise PayloadTooLarge(f"a file may have at most {self._most_bytes:,} bytes", param="file")
        with self._using:
            left = memoryview(data)
            while left and self._fd >= 0:
                left = left[os.write(self._fd, left) :]

    def keep(self, file_id: str) -> None:
        """When this returns, the file is on the disk under its name, and so is the name."""
        with self._using:
            os.fsync(self._fd)
            self._path.rename(self._folder / file_id)
            sync_folder(self._folder)
            self._close()

    def drop(self) -> None:
        with self._using:
            if self._fd >= 0:
                self._path.unlink(missing_ok=True)
                self._close()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep(folder: Path, *, before: float) -> int:
    """Remove drafts that nobody writes any more, and files not touched since `before` (epoch seconds)."""
    removed = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(folder)):
            with contextlib.suppress(FileNotFoundError):
                is_part = entry.name.startswith(PART_PREFIX)
                if _is_abandoned(entry.path) if is_part else entry.stat().st_mtime < before:
                    Path(entry.path).unlink()
                    removed += 1
    return removed


def _is_abandoned(path: str) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
