"""SIGINT and SIGTERM as events of the loop: the first asks to stop, the second to hurry, a third ends the process."""

import asyncio
import signal
from typing import Final, Self

ECHO_S: Final = 0.5
"""Whoever starts us may pass on a Ctrl-C that the terminal sent to us as well: that is one, not two."""


class Signals:
    """While this is entered, they are counted instead of ending the process."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._numbers = numbers
        self._heard_at = 0.0

    def __enter__(self) -> Self:
        for number in self._numbers:
            asyncio.get_running_loop().add_signal_handler(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _hear(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self.first.is_set():
            self.first.set()
            self._heard_at = now
        elif now - self._heard_at > ECHO_S:
            self.second.set()
            self.__exit__()
