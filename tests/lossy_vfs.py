"""A disk that forgets: an SQLite VFS that knows at every moment what a power cut would leave.

Files are read and written as usual. Beside them the disk keeps what was synced, and what was written since: of
that, a cut keeps any part, in any order, the last sector torn. Knows bytes and files; nothing of databases.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw

SECTOR_BYTES = 512
FORGETTABLE = (".db", ".db-wal", ".db-journal")
"""The shared-memory file is not among them: it is rebuilt after every crash."""


@dataclass(frozen=True)
class Write:
    offset: int
    data: bytes

    def torn(self, chance: random.Random) -> "Write":
        """Only its first sectors arrived."""
        sectors = len(self.data) // SECTOR_BYTES
        return Write(self.offset, self.data[: SECTOR_BYTES * chance.randint(0, sectors)])

    def into(self, image: bytearray) -> None:
        end = self.offset + len(self.data)
        image.extend(bytes(max(0, end - len(image))))
        image[self.offset : end] = self.data


@dataclass(frozen=True)
class Cut:
    """The file ends here."""

    size: int

    def torn(self, chance: random.Random) -> "Cut":
        return self

    def into(self, image: bytearray) -> None:
        del image[self.size :]


@dataclass
class Disk:
    """Synced bytes, and changes that wait for their sync."""

    synced: dict[str, bytearray] = field(default_factory=dict)
    waiting: dict[str, list[Write | Cut]] = field(default_factory=dict)
    syncs: int = 0
    full: bool = False
    """No room for another byte."""
    on_change: Callable[[], None] = lambda: None
    """Called before and after every change and sync: the moments at which the power may go."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def change(self, path: str, change: Write | Cut) -> None:
        self.on_change()
        with self._lock:
            self.waiting.setdefault(path, []).append(change)
        self.on_change()

    def sync(self, path: str) -> None:
        self.on_change()
        with self._lock:
            self.syncs += 1
            image = self.synced.setdefault(path, bytearray())
            for change in self.waiting.pop(path, []):
                change.into(image)
        self.on_change()

    def forget(self, path: str) -> None:
        with self._lock:
            self.synced.pop(path, None)
            self.waiting.pop(path, None)

    def after_power_cut(self, chance: random.Random) -> dict[str, bytes]:
        """The files as the next start would find them."""
        with self._lock:
            return {path: self._left(path, chance) for path in {*self.synced, *self.waiting}}

    def _left(self, path: str, chance: random.Random) -> bytes:
        image = bytearray(self.synced.get(path, b""))
        share = chance.choice([0.0, 0.5, 1.0])
        kept = [change for change in self.waiting.get(path, []) if chance.random() < share]
        if chance.random() < 0.5:
            chance.shuffle(kept)
        if kept:
            kept.append(kept.pop().torn(chance))
        for change in kept:
            change.into(image)
        return bytes(image)


class _LossyFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], disk: Disk, path: str) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._path = path

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        if self._disk.full:
            raise apsw.FullError("no room")
        super().xWrite(data, offset)
        self._disk.change(self._path, Write(offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        super().xTruncate(newsize)
        self._disk.change(self._path, Cut(newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        self._disk.sync(self._path)


class LossyVFS(apsw.VFS):
    """The usual file system, with a `Disk` that takes notes."""

    def __init__(self, name: str, disk: Disk) -> None:
        super().__init__(name, "")
        self._disk = disk

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - as above
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or not path.endswith(FORGETTABLE):
            return apsw.VFSFile("", name, flags)
        return _LossyFile(name, flags, self._disk, path)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - as above
        super().xDelete(filename, syncdir)
        self._disk.forget(filename)


@contextmanager
def lossy_disk(name: str) -> Iterator[Disk]:
    """A disk under an SQLite VFS of this name."""
    disk = Disk()
    vfs = LossyVFS(name, disk)
    try:
        yield disk
    finally:
        vfs.unregister()


def lay_out(files: dict[str, bytes], folder: Path) -> None:
    """Put what a cut left into a folder of its own."""
    folder.mkdir(parents=True)
    for path, image in files.items():
        (folder / Path(path).name).write_bytes(image)
