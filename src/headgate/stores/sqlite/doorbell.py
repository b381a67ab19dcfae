"""Waking other processes that share the file: each listener has a named pipe beside it, and whoever has work rings.

A hint, nothing more: a lost ring costs the listener its next look, a second later.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

SUFFIX: Final = ".bell"
QUIET_S: Final = 0.005


class Doorbell:
    """Rings at every other process that listens in this folder, and hears their rings."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._mine = folder / f"{name}{SUFFIX}"
        self._fd: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, heard: Callable[[], None]) -> None:
        if self._fd is not None or not hasattr(os, "mkfifo"):
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.mkfifo(self._mine, 0o600)
            # Opened for both directions, so that it never counts as closed while nobody writes.
            self._fd = os.open(self._mine, os.O_RDWR | os.O_NONBLOCK)
        except OSError:
            return  # No such folder, or one that knows no pipes: looking every second must do.
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._answer, heard)

    def ring(self) -> None:
        """At once, but a busy process does not ring more often than every few milliseconds."""
        if self._timer is not None:
            return
        self._ring_all()
        if self._loop is not None:
            self._timer = self._loop.call_later(QUIET_S, self._ring_again)

    def _ring_again(self) -> None:
        """Whatever came meanwhile is rung for now; a ring too many costs a listener one look."""
        self._timer = None
        self._ring_all()

    def _ring_all(self) -> None:
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            bells = [entry.path for entry in entries if entry.name.endswith(SUFFIX)]
            for bell in bells:
                if bell != os.fspath(self._mine):
                    _ring(bell)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._ring_again()
        if self._fd is None or self._loop is None:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = None
        with contextlib.suppress(OSError):
            self._mine.unlink()

    def _answer(self, heard: Callable[[], None]) -> None:
        with contextlib.suppress(BlockingIOError):
            if self._fd is not None:
                os.read(self._fd, 4096)
        heard()


def _ring(bell: str) -> None:
    try:
        fd = os.open(bell, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        # Nobody at the other end: the process died without taking its bell along.
        if error.errno == errno.ENXIO:
            with contextlib.suppress(OSError):
                Path(bell).unlink()
        return
    try:
        with contextlib.suppress(OSError):
            os.write(fd, b".")
    finally:
        os.close(fd)
