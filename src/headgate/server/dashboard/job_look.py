"""How many jobs there are, for a page that is made twice a second: asked for now and then, and never waited for long."""

import asyncio
import math
from collections.abc import Mapping
from typing import Final

from headgate.core.errors import HeadgateError
from headgate.core.ports.clock import Clock
from headgate.runner.jobs import Jobs

LOOK_EVERY_S: Final = 3.0
LONGEST_LOOK_S: Final = 0.5


class JobLook:
    """The last counts by state, of one tenant or, with None, of everybody."""

    def __init__(self, jobs: Jobs, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock
        self._counts: dict[str | None, Mapping[str, int]] = {}
        self._looked_at: dict[str | None, float] = {}

    async def counts(self, tenant: str | None) -> Mapping[str, int] | None:
        """None when the database has not told yet."""
        now = self._clock.now()
        if now - self._looked_at.get(tenant, -math.inf) >= LOOK_EVERY_S:
            self._looked_at[tenant] = now
            try:
                async with asyncio.timeout(LONGEST_LOOK_S):
                    self._counts[tenant] = await self._jobs.count(tenant=tenant)
            except (HeadgateError, TimeoutError):
                # That the database does not answer stands above everything else on the page.
                self._counts.pop(tenant, None)
        return self._counts.get(tenant)
