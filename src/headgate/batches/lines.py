"""The lines of an input file, some at a time. Everything here blocks: callers run it in threads."""

import threading
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from headgate.core.batch_lines import LONGEST_LINE_BYTES, MOST_BLANK_LINES, Line, read_line

BITE_LINES: Final = 250
BITE_BYTES: Final = 1024 * 1024


class LineFile:
    """Reads a file from its beginning, once. Blank lines have a number, and are passed over as long as there are few.

    Who waits for a thread may be cancelled while that still reads: nothing is opened once this is closed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.blank_lines = 0
        self._lines = self._read()
        self._using = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._using:
            self._lines.close()

    def bite(
        self, most_lines: int = BITE_LINES, most_bytes: int = BITE_BYTES
    ) -> list[tuple[int, bytes | None]]:
        """The next lines with their numbers, from 1; None for one that is too long. Empty at the end."""
        taken: list[tuple[int, bytes | None]] = []
        size_bytes = 0
        with self._using:
            while len(taken) < most_lines and size_bytes < most_bytes:
                found = next(self._lines, None)
                if found is None:
                    break
                taken.append(found)
                size_bytes += len(found[1] or b"")
        return taken

    def _read(self) -> Generator[tuple[int, bytes | None], None, None]:
        with self._path.open("rb") as source:
            number = 0
            # Nothing else bounds how long somebody would look for a line among millions of blank ones.
            while self.blank_lines <= MOST_BLANK_LINES and (data := source.readline(LONGEST_LINE_BYTES + 1)):
                number += 1
                if len(data) > LONGEST_LINE_BYTES and not data.endswith(b"\n"):
                    while not data.endswith(b"\n") and (data := source.readline(LONGEST_LINE_BYTES)):
                        pass
                    yield number, None
                elif data.isspace():
                    self.blank_lines += 1
                else:
                    yield number, data


class ChosenLines:
    """The lines that a batch runs, of a file that was checked: all, or only those with these custom ids."""

    def __init__(self, path: Path, only: Collection[str] | None) -> None:
        self._file = LineFile(path)
        self._chosen = self._choose(only)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def skip(self, count: int) -> None:
        for _ in range(count):
            next(self._chosen, None)

    def take(self, most_lines: int, most_bytes: int) -> list[tuple[int, Line]]:
        """The next of them: as many as asked for, or as few as make up that many bytes. Always the same ones."""
        taken: list[tuple[int, Line]] = []
        size_bytes = 0
        while len(taken) < most_lines and size_bytes < most_bytes:
            found = next(self._chosen, None)
            if found is None:
                break
            taken.append(found)
            size_bytes += len(bytes(found[1].body))
        return taken

    def _choose(self, only: Collection[str] | None) -> Iterator[tuple[int, Line]]:
        while bite := self._file.bite():
            for number, data in bite:
                line = read_line(data or b"")
                if only is None or line.custom_id in only:
                    yield number, line


class _Named(msgspec.Struct):
    custom_id: str


_decode_named: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_Named)


def custom_ids(path: Path) -> frozenset[str]:
    """Those that an error file names."""
    with path.open("rb") as lines:
        return frozenset(_decode_named.decode(line).custom_id for line in lines)
