"""Upkeep: what every node with a worker does now and then so that no job is stuck, lost or kept for ever. Small duties."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.core.errors import StoreUnavailable
from headgate.core.job import Claim, Settled
from headgate.core.job_rules import Cancelled, JobRules, Outcome, read_loss
from headgate.core.ports.calls import Calls
from headgate.core.ports.clock import Chance, Clock
from headgate.core.ports.store import Store
from headgate.runner.node import Node
from headgate.runner.settling import Settling

logger = logging.getLogger("headgate")
BITE: Final = 500
DAY_S: Final = 86_400.0
WARN_AT_FAILURE: Final = 2
COOL_AGAIN_S: Final = 60.0
"""How long to wait before looking again whether an exhausted job's model takes calls."""


@dataclass(frozen=True, slots=True)
class Duty:
    """Something to do every so often; it returns how much there was to do."""

    name: str
    every_s: float
    run: Callable[[], Awaitable[int]]
    at_once: bool = False
    """The first time is right at the start."""


class Upkeep:
    """Runs the duties, each at its own pace, for as long as the node lives."""

    def __init__(
        self,
        store: Store,
        node: Node,
        settling: Settling,
        calls: Calls,
        *,
        rules: JobRules,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._store = store
        self._node = node
        self._settling = settling
        self._calls = calls
        self._rules = rules
        self._clock = clock
        self._chance = chance
        self._tasks: list[asyncio.Task[None]] = []
        self._failures: dict[str, int] = {}
        """By duty: how often in a row the store was away."""
        # The first node to look rescues the jobs of a dead one. A process that has just started has found out which
        # of its neighbours are dead, so it looks at once.
        rescue_s = min(2.0, rules.lease_s / 3)
        self.duties = (
            Duty("rescue", rescue_s, self.rescue, at_once=True),
            Duty("cancel", rules.lease_s / 3, self.enforce_cancels),
            Duty("expire", 5.0, self.expire),
            Duty("revive", 15.0, self.revive),
            Duty("prune", 60.0, self.prune),
            Duty("purge", 60.0, self.purge),
        )

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._repeat(duty), name=f"headgate upkeep {duty.name}")
            for duty in self.duties
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def _repeat(self, duty: Duty) -> None:
        if duty.at_once:
            await self._do(duty)
        while True:
            # Nodes that were started together do not do everything together.
            await self._clock.sleep(duty.every_s * (0.9 + 0.2 * self._chance()))
            await self._do(duty)

    async def _do(self, duty: Duty) -> None:
        try:
            while await duty.run() >= BITE:
                pass
        except StoreUnavailable as error:
            # Once may be a restart of the database; the second time an operator has to know what is not done.
            failures = self._failures[duty.name] = self._failures.get(duty.name, 0) + 1
            level = logging.WARNING if failures == WARN_AT_FAILURE else logging.DEBUG
            logger.log(level, "upkeep %s failed %d time(s) in a row: %s", duty.name, failures, error)
        except Exception:
            # A duty that fails once must not stay undone for ever.
            logger.exception("upkeep %s failed", duty.name)
        else:
            self._failures.pop(duty.name, None)

    # ---- The duties -----------------------------------------------------------------------------------

    async def rescue(self) -> int:
        """Jobs whose node is gone go back to waiting, as a crash; the third makes a job poison."""
        await self._node.bury_neighbours()
        lost = await self._store.lost(limit=BITE)
        if lost:
            logger.warning("%d job(s) of lost workers are taken over", len(lost))
        return await self._settle_all([(one.claim, read_loss(one)) for one in lost])

    async def enforce_cancels(self) -> int:
        """A cancel that its worker did not obey within a lease is written over its head."""
        before = self._now() - self._rules.lease_s
        stubborn = await self._store.uncancelled(before=before, limit=BITE)
        return await self._settle_all([(claim, Cancelled()) for claim in stubborn])

    async def expire(self) -> int:
        expired = await self._store.expire(now=self._now(), limit=BITE, follow_ups=self._settling.follow_ups)
        for job in expired:
            self._settling.tell_expired(job)
        return len(expired)

    async def revive(self) -> int:
        """Exhausted jobs come back after their cool-down, once their model can take calls again."""
        now = self._now()
        found = await self._store.revivable(now=now, limit=BITE)
        able = [job_id for job_id, model in found if not model or self._calls.places(model) > 0]
        unable = sorted({job_id for job_id, _ in found}.difference(able))
        if unable:
            # Out of the way of those behind them, whose models may work.
            await self._store.cool(unable, until=now + COOL_AGAIN_S)
        if able:
            revived = await self._store.revive(able, now=now, expires_after_s=self._rules.expires_after_s)
            logger.info("%d exhausted job(s) get another chance", revived)
        return len(found)

    async def prune(self) -> int:
        before = self._now() - self._rules.retention_days * DAY_S
        return await self._store.prune(before=before, limit=BITE)

    async def purge(self) -> int:
        await self._store.forget_nodes()
        return await self._store.purge_keys(now=self._now(), limit=BITE)

    async def _settle_all(self, outcomes: Sequence[tuple[Claim, Outcome]]) -> int:
        settlements = [self._settling.rule(claim, outcome) for claim, outcome in outcomes]
        if not settlements:
            return 0
        answers = await self._store.settle(settlements, now=self._now())
        for (claim, _), settlement, answer in zip(outcomes, settlements, answers, strict=True):
            if answer in {Settled.APPLIED, Settled.CANCELLED}:
                self._settling.tell(claim, settlement, answer, run_s=max(0.0, self._now() - claim.started_at))
        return len(outcomes)

    def _now(self) -> float:
        return self._clock.utc().timestamp()
