"""How late the event loop's timers are. A loop that is held up serves no request and renews no lease meanwhile."""

import asyncio
import contextlib
from collections import deque
from typing import Final

from headgate.core.ports.clock import Clock

TICK_S: Final = 0.2
WINDOW_S: Final = 60.0
"""Longer than Prometheus usually takes from one scrape to the next, so that none misses a stall."""


class LoopLag:
    """A timer that is set again and again, and how late it was. It runs on the loop that it is started on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late: deque[tuple[float, float]] = deque()
        """(when, how late), each later than all that came after it: only those can be the worst of a window."""
        self._task: asyncio.Task[None] | None = None

    @property
    def worst_s(self) -> float:
        """The worst within the last minute."""
        self._forget(self._clock.now())
        return self._late[0][1] if self._late else 0.0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._tick(), name="headgate loop lag")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _tick(self) -> None:
        while True:
            due_at = self._clock.now() + TICK_S
            await self._clock.sleep(TICK_S)
            now = self._clock.now()
            self.note(now, max(0.0, now - due_at))

    def note(self, now: float, late_s: float) -> None:
        while self._late and self._late[-1][1] <= late_s:
            self._late.pop()
        self._late.append((now, late_s))
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._late and self._late[0][0] <= now - WINDOW_S:
            self._late.popleft()
