"""Notices when the event loop stands still, and says which task holds it up. Knows nothing of jobs or leases.

A thread knocks at the loop and waits for the answer. It only tells: a loop that stands still for longer than the
lease loses its jobs to others, and fencing keeps what it still writes from counting.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("headgate")
KNOCK_EVERY_S: Final = 0.05
IDLE_S: Final = 0.25
"""While nothing runs nobody is knocked up; whoever blocks the loop from his first line on is found this late."""
LAG_S: Final = 0.1
"""A loop that does not answer for this long is held up."""
TELL_EVERY_S: Final = 1.0


class LagWatch:
    """Watches the loop it is started on, while it is `busy`. `describe` makes words of an asyncio task's name."""

    def __init__(self, describe: Callable[[str], str], busy: Callable[[], bool]) -> None:
        self._describe = describe
        self._busy = busy
        self._stopped = threading.Event()
        self._answered = threading.Event()
        self._thread: threading.Thread | None = None
        self._told_at = -TELL_EVERY_S

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        if abs(loop.time() - time.monotonic()) > 1.0:
            return  # Virtual time: it stands still whenever somebody works.
        ours = threading.get_ident()
        self._thread = threading.Thread(
            target=self._watch, args=(loop, ours), name="headgate lag watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._answered.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        while not self._stopped.is_set():
            if not self._busy():
                self._stopped.wait(IDLE_S)
                continue
            began_at = time.monotonic()
            try:
                held_up = self._knock(loop, thread)
            except RuntimeError:
                return  # The loop is closed.
            self._stopped.wait(KNOCK_EVERY_S)
            late_s = time.monotonic() - began_at - KNOCK_EVERY_S
            if late_s > LAG_S and not held_up and asyncio.current_task(loop) is not None:
                # Code that holds the interpreter stops this thread too. Whoever runs now is most likely the one.
                self._tell(late_s, self._who(loop, thread))

    def _knock(self, loop: asyncio.AbstractEventLoop, thread: int) -> bool:
        """Wait until the loop answers; True when it took too long, which is told while it lasts."""
        answered = self._answered = threading.Event()
        knocked_at = time.monotonic()
        loop.call_soon_threadsafe(answered.set)
        held_up = False
        while not answered.wait(LAG_S) and not self._stopped.is_set():
            held_up = True
            # Who holds it up is seen only while it does; how long it took, only later.
            who = self._who(loop, thread)
            answered.wait(TELL_EVERY_S - LAG_S)
            self._tell(time.monotonic() - knocked_at, who)
        return held_up

    def _who(self, loop: asyncio.AbstractEventLoop, thread: int) -> str:
        task = asyncio.current_task(loop)
        words = "a callback" if task is None else self._describe(task.get_name())
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to another thread's stack
        return words if frame is None else f"{words}, at {frame.f_code.co_filename}:{frame.f_lineno}"

    def _tell(self, lag_s: float, who: str) -> None:
        now = time.monotonic()
        if now - self._told_at < TELL_EVERY_S:
            return
        self._told_at = now
        logger.warning(
            "the event loop stood still for %.1f s in %s. Nothing else runs meanwhile, and after a lease its jobs go"
            " to others: use asyncio.to_thread for work that blocks.",
            lag_s,
            who,
        )
