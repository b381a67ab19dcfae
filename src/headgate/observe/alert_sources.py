"""What alerts look at besides events: gates, the database, the disk, the runs of applications."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from headgate.calls.status import QueueStatus
from headgate.core.alert_rules import HOUR_S, LEAST_FREE_GB, Rule
from headgate.core.alerts import Reading
from headgate.core.errors import HeadgateError
from headgate.core.hold import Condition
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store, StoreHealth

logger = logging.getLogger("headgate")
LONGEST_LOOK_S: Final = 10.0
FailedRuns = Callable[[], Awaitable[int]]


class Sources:
    """Looks when it is told to, and remembers the last look: a database that is away leaves the old one standing."""

    def __init__(
        self,
        *,
        status: Callable[[], QueueStatus],
        models: Callable[[], Iterable[str]],
        store: Store,
        folder: Path,
        min_free_bytes: int,
        failed_runs: Mapping[str, FailedRuns],
        clock: Clock,
    ) -> None:
        self._status = status
        self._models = models
        self._store = store
        self._folder = folder
        self._least_gb = max(LEAST_FREE_GB, min_free_bytes / 1e9)
        self._failed_runs = failed_runs
        self._clock = clock
        self._since: dict[tuple[Rule, str], float] = {}
        self._missing_gb: float | None = None
        self._failed: dict[str, int] = {}
        self.newly_dead = 0
        self.oldest_due_s: float | None = None
        """How long the job that waits for longest had been due; None when none waits."""

    async def look(self) -> None:
        """At all that takes a while. One that fails does not keep the others from being looked at."""
        with self._clock.outside():
            self._missing_gb = await asyncio.to_thread(_missing_gb, self._folder, self._least_gb)
        await self._look_at_backlog()
        for name, ask in self._failed_runs.items():
            await self._look_at_runs(name, ask)

    async def _look_at_backlog(self) -> None:
        now = self._clock.utc().timestamp()
        try:
            async with asyncio.timeout(LONGEST_LOOK_S):
                backlog = await self._store.backlog(dead_since=now - HOUR_S)
        except (HeadgateError, TimeoutError) as error:
            logger.debug("alerts: the database cannot be looked at: %s", error)
            return
        self.newly_dead = backlog.newly_dead
        self.oldest_due_s = None if backlog.oldest_run_at is None else now - backlog.oldest_run_at

    async def _look_at_runs(self, name: str, ask: FailedRuns) -> None:
        try:
            async with asyncio.timeout(LONGEST_LOOK_S):
                self._failed[name] = await ask()
        except Exception as error:  # noqa: BLE001 - an application's code is anybody's: alerts go on without it
            logger.debug("alerts: the runs of %s cannot be looked at: %s", name, error)

    def readings(self, now: float) -> Iterator[Reading]:
        """As it is now; `now` is the clock's."""
        yield from self._of_gates(now)
        down = self._store.health is not StoreHealth.OK
        yield from self._lasting(Rule.STORE_DOWN, {""} if down else set(), now)
        if self._missing_gb is not None:
            yield Reading(Rule.DISK_FULL, self._missing_gb)
        for name, count in self._failed.items():
            yield Reading(Rule.RUNS_FAILING, count, name)

    def _of_gates(self, now: float) -> Iterator[Reading]:
        configured = set(self._models())
        gates = [(_subject(gate.model, gate.upstream, configured), gate) for gate in self._status().upstreams]
        for subject in sorted({subject for subject, gate in gates if gate.condition is Condition.HELD}):
            yield Reading(Rule.UPSTREAM_MISCONFIGURED, 1, subject)
        open_now = {subject for subject, gate in gates if gate.condition is Condition.OPEN}
        yield from self._lasting(Rule.BREAKER_OPEN, open_now, now)

    def _lasting(self, rule: Rule, subjects: set[str], now: float) -> Iterator[Reading]:
        """How long each has been so without a break."""
        for key in [key for key in self._since if key[0] is rule and key[1] not in subjects]:
            del self._since[key]
        for subject in sorted(subjects):
            since = self._since.setdefault((rule, subject), now)
            yield Reading(rule, now - since, subject)


def _subject(model: str, upstream: str, configured: set[str]) -> str:
    """Members of a family stand together: their names come from clients, and are as many as those like."""
    return upstream if model in configured else f"{upstream.partition('/')[0]}/*"


def _missing_gb(folder: Path, least_gb: float) -> float:
    """How much less is free than should be; all of it where the disk cannot even be asked."""
    try:
        return least_gb - shutil.disk_usage(folder).free / 1e9
    except OSError:
        return least_gb
