"""Keeping the head of the line short: the live table is vacuumed after so many claims.

Whoever is claimed leaves an entry behind in the index of those who are ready, at the very place where the next
claim begins to look. Autovacuum comes once a minute; a fast queue leaves a million entries by then.
"""

import asyncio
import contextlib
from typing import Final

from headgate.core.errors import HeadgateError
from headgate.stores.postgres.database import Database

EVERY: Final = 50_000
LONGEST_S: Final = 600.0
# Somebody else's vacuum is as good as ours: then this one does nothing.
_VACUUM: Final = "vacuum (skip_locked, truncate off, parallel 0) headgate.jobs"


class Sweeper:
    """Counts claims, and sweeps behind them in the background."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._claimed = 0
        self._sweeping: asyncio.Task[None] | None = None

    def note(self, claimed: int) -> None:
        self._claimed += claimed
        idle = self._sweeping is None or self._sweeping.done()
        if idle and self._claimed >= EVERY:
            self._claimed = 0
            self._sweeping = asyncio.create_task(self._sweep(), name="headgate sweep")

    async def aclose(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping

    async def _sweep(self) -> None:
        # A user who does not own the table is told so by PostgreSQL, and autovacuum has to do.
        with contextlib.suppress(HeadgateError):
            await self._database.command(_VACUUM, timeout=LONGEST_S)
