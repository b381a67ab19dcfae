"""How a worker tells what it does: a line per job while they are few, a line with numbers when they are many."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Final

from headgate.cli.words import count_of, one_line
from headgate.core import events
from headgate.core.job import JobState

logger = logging.getLogger("headgate")
TELL_EVERY_S: Final = 0.5
MOST_LINES: Final = 10
"""More jobs than this within that time are told together."""


class Tally:
    """Listens to a worker's events, counts them, and logs them now and then."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.stopping = False
        """From now on a job that is sent back is one that was given back."""
        self._fresh: Counter[str] = Counter()
        self._lines: list[str] = []

    def hear(self, event: events.Event) -> None:
        """Runs inside the worker: nothing is written here."""
        if not isinstance(event, events.JobSettled):
            return
        kind = self._kind(event)
        self._fresh[kind] += 1
        # The library itself logs each dead letter.
        if kind != JobState.DEAD_LETTER and len(self._lines) <= MOST_LINES:
            self._lines.append(_line(event, kind))

    def _kind(self, event: events.JobSettled) -> str:
        if event.state != JobState.PENDING:
            return event.state
        if event.failure != "deferred":
            return "failed"
        return "given back" if self.stopping else "deferred"

    def tell(self) -> None:
        lines, self._lines = self._lines, []
        fresh, self._fresh = self._fresh, Counter()
        self.counts += fresh
        if len(lines) > MOST_LINES:
            logger.info("%s", words_for(fresh))
            return
        for line in lines:
            logger.info("%s", line)

    @contextlib.asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        """Tell while this lasts, and once more at its end."""
        telling = asyncio.create_task(self._keep_telling(), name="headgate telling")
        try:
            yield
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
            self.tell()

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            self.tell()


_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    JobState.COMPLETED: ("completed", "completed"),
    JobState.SKIPPED: ("skipped", "skipped"),
    JobState.CANCELLED: ("cancelled", "cancelled"),
    "failed": ("failed attempt", "failed attempts"),
    "deferred": ("sent back uncounted", "sent back uncounted"),
    JobState.DEAD_LETTER: ("dead letter", "dead letters"),
    "given back": ("given back", "given back"),
}


def words_for(counts: Mapping[str, int]) -> str:
    """`12 completed, 1 failed attempt`."""
    parts = [count_of(counts[kind], *words) for kind, words in _WORDS.items() if counts.get(kind)]
    return ", ".join(parts) or "nothing done"


def _line(event: events.JobSettled, kind: str) -> str:
    told = {
        "failed": f"failed ({event.failure}), attempt {event.attempts}; it is tried again",
        "deferred": "sent back to wait, uncounted",
        "given back": "given back, uncounted",
        JobState.SKIPPED: f"skipped: {one_line(event.reason or '')}",
    }
    return f"{event.job_id} {one_line(event.task)} {told.get(kind, kind)} ({event.run_ms / 1000:.1f} s)"
