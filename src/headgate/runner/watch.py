"""Waiting for jobs to end: at once for those that end here, by one shared look now and then for the others."""

import asyncio
import contextlib
import logging
from typing import Final

from headgate.core.errors import StoreUnavailable
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store

logger = logging.getLogger("headgate")
FIRST_LOOK_S: Final = 0.05
LONGEST_LOOK_S: Final = 1.0
MOST_AT_ONCE: Final = 500


class Watch:
    """Everybody in this process who waits for the end of a job."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._look_s = FIRST_LOOK_S

    async def end_of(self, job_id: str) -> None:
        """Return once the job has ended. Cancel or time out from outside."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, set()).add(future)
        self._look_s = FIRST_LOOK_S
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="headgate job watch")
        try:
            await future
        finally:
            waiting = self._waiting.get(job_id)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiting[job_id]

    def ended(self, job_id: str) -> None:
        """A job of this process has ended."""
        for future in self._waiting.pop(job_id, ()):
            if not future.done():
                future.set_result(None)

    async def aclose(self) -> None:
        """Nobody will hear of any job here any more, and must not wait for it."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(StoreUnavailable(f"{self._store.name} is closed"))

    async def _look(self) -> None:
        while self._waiting:
            await self._clock.sleep(self._look_s)
            self._look_s = min(LONGEST_LOOK_S, self._look_s * 1.5)
            ids = list(self._waiting)
            for start in range(0, len(ids), MOST_AT_ONCE):
                await self._look_at(ids[start : start + MOST_AT_ONCE])

    async def _look_at(self, ids: list[str]) -> None:
        try:
            states = await self._store.states(ids)
        except StoreUnavailable as error:
            logger.debug("cannot look after jobs: %s", error)
            return
        except Exception:
            # Those who wait would wait for ever without the next look.
            logger.exception("cannot look after jobs")
            return
        for job_id in ids:
            # A job that is gone was pruned: it ended long ago.
            if job_id not in states or states[job_id].final:
                self.ended(job_id)
