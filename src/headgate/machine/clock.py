"""The real clock. Everything that waits gets it handed in, so that a virtual one can take its place."""

import asyncio
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Final

TIMER_SLACK_S: Final = 0.003
"""uvloop counts in whole milliseconds, by a clock that may itself be one behind: a timer may ring 2.5 ms before its time, and
counts as due all the same."""
_COUNTS_SLEEP: Final = hasattr(time, "CLOCK_BOOTTIME")


class SystemClock:
    """Time as the machine tells it. `now` is what asyncio's timers go by; read directly, it costs a tenth."""

    __slots__ = ("_followed_from",)

    def __init__(self) -> None:
        self._followed_from: float | None = None
        """The other clock's time when this machine was started; None: `utc` is our own wall clock."""

    now = staticmethod(time.monotonic)

    def since_boot(self) -> float:
        # `time.monotonic()` stops while a machine sleeps. Only Linux has a clock that does not.
        return time.clock_gettime(time.CLOCK_BOOTTIME) if _COUNTS_SLEEP else time.monotonic()

    def utc(self) -> datetime:
        if self._followed_from is None:
            return datetime.fromtimestamp(time.time(), UTC)
        return datetime.fromtimestamp(self._followed_from + self.since_boot(), UTC)

    def follow(self, epoch_s: float) -> None:
        self._followed_from = epoch_s - self.since_boot()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def outside(self) -> AbstractContextManager[None]:
        """Real time stands still for nobody."""
        return nullcontext()
