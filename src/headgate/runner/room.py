"""How many jobs may wait: a bound for everybody and one per tenant, kept without counting at every submission.

The counts come from the store now and then, more often near the bound; own submissions are added at once. With
several nodes the bound may be passed by what the others accept between two looks.
"""

from collections import Counter
from typing import Final

from headgate.core.errors import BacklogFull
from headgate.core.job_rules import JobRules
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store

LOOK_EVERY_S: Final = 30.0
NEAR_LOOK_EVERY_S: Final = 1.0
NEAR: Final = 0.8
COME_BACK_S: Final = 30.0
LOOKING_SHARE: Final = 20.0
"""Counting a long backlog takes a while: it takes at most a twentieth of the time."""


class Room:
    """Refuses jobs when as many wait as may."""

    def __init__(self, store: Store, rules: JobRules, clock: Clock) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        self._total = 0
        self._looked_at = -LOOK_EVERY_S
        self._look_took_s = 0.0

    async def take(self, tenant: str, count: int) -> None:
        """Make sure there is room for so many more; `BacklogFull` otherwise."""
        now = self._clock.now()
        every_s = NEAR_LOOK_EVERY_S if self._nearly_full(tenant, count) else LOOK_EVERY_S
        if now - self._looked_at >= max(every_s, LOOKING_SHARE * self._look_took_s):
            self._looked_at = now
            await self._look()
            self._look_took_s = self._clock.now() - now
        rules = self._rules
        self._refuse_over(self._total + count, rules.max_pending, "jobs")
        self._refuse_over(
            self._waiting[tenant] + count, rules.max_pending_per_tenant, f"jobs of tenant {tenant!r}"
        )
        self._waiting[tenant] += count
        self._total += count

    async def _look(self) -> None:
        before = self._waiting.copy()
        counted = Counter(await self._store.waiting_by_tenant())
        # Who was let in meanwhile may not be in that figure yet: better counted twice than not at all.
        counted.update(self._waiting - before)
        self._waiting, self._total = counted, counted.total()

    def _nearly_full(self, tenant: str, count: int) -> bool:
        rules = self._rules
        return (
            self._total + count > NEAR * rules.max_pending
            or self._waiting[tenant] + count > NEAR * rules.max_pending_per_tenant
        )

    def _refuse_over(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise BacklogFull(
                f"{count:,} {what} would wait; the most is {most:,}. Try again later.",
                retry_after_s=COME_BACK_S,
            )
