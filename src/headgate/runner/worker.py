"""The worker: claims as many jobs as it and their models can take, runs them, writes down what came of it.

Two claimers take turns: while one half of the places is being claimed or written down, the other half runs.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from headgate.core.claim_turns import ClaimTurns
from headgate.core.errors import StoreUnavailable, UnknownModel
from headgate.core.job import Claim
from headgate.core.job_rules import SUSPECT_AFTER, JobRules, Outcome
from headgate.core.ports.calls import Calls
from headgate.core.ports.claims import Ready, Want
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store
from headgate.machine.context import about
from headgate.runner.attempt import Attempt, Attempts, Stop, read_stop
from headgate.runner.lag import LagWatch
from headgate.runner.node import Node
from headgate.runner.settling import Settling

logger = logging.getLogger("headgate")
CLAIMERS: Final = 2
POLL_S: Final = 1.0
"""How often to look for jobs nobody rang for."""
LEAST_REST_S: Final = 0.001
"""Jobs that get due one right after the other are taken together."""
GIVE_WAY_S: Final = 0.05
"""A worker that does not know all tasks lets those go first who may: or it would take the same jobs again and again."""
STORE_REST_S: Final = 2.0
STOP_GRACE_S: Final = 5.0
"""How long a stopped task may take to notice, before its job is settled over its head."""
_NOTHING: Final = Ready({}, suspects=False, next_at=None)


class Worker:
    """Runs jobs until it is stopped."""

    def __init__(
        self,
        store: Store,
        node: Node,
        calls: Calls,
        attempts: Attempts,
        settling: Settling,
        *,
        rules: JobRules,
        clock: Clock,
    ) -> None:
        self._store = store
        self._node = node
        self._calls = calls
        self._attempts = attempts
        self._settling = settling
        self._rules = rules
        self._clock = clock
        self._running: dict[tuple[str, int], Attempt] = {}
        """By job and lease: who was thought dead may run a job anew while its old run still cleans up."""
        self._by_model: Counter[str] = Counter()
        self._by_tenant: Counter[str] = Counter()
        """Places that each tenant has, those it was asked for included."""
        self._asked_for = 0
        """Places that claims on their way may fill."""
        self._ended_unwritten = 0
        """Jobs that are done but not yet written down: they take memory, not a place."""
        self._suspects = 0
        self._turns = ClaimTurns(rules.workers)
        self._looked = _NOTHING
        self._ready = _NOTHING
        """What of the last look is left, as far as this worker knows."""
        self._looked_at = -POLL_S
        self._bell = asyncio.Event()
        """For those who wait until nothing runs."""
        self._sleepers: deque[asyncio.Future[None]] = deque()
        """Claimers at rest. News wakes one of them: the other would only find that there is nothing left."""
        self._missed = False
        """There was news while no claimer was at rest."""
        self._rang = True
        self._claimers: list[asyncio.Task[None]] = []
        self._stopping = False
        self._unknown: set[str] = set()
        self._unlisten: Callable[[], None] = lambda: None
        self._lag = LagWatch(self._describe, busy=lambda: bool(self._running))

    @property
    def running(self) -> int:
        return len(self._running)

    def start(self) -> None:
        self._unlisten = self._store.on_ready(self._ring)
        self._node.on_cancel = self.cancel
        self._node.on_lost = self._abandon_all
        self._lag.start()
        self._claimers = [
            asyncio.create_task(self._work(), name=f"headgate worker {number}") for number in range(CLAIMERS)
        ]

    async def stop(self, drain_s: float) -> None:
        """Claim nothing more, let what runs finish for a while, give the rest back uncounted."""
        self._stopping = True
        # A second call, for those in a hurry, finds nothing left to do here.
        unlisten, self._unlisten = self._unlisten, lambda: None
        unlisten()
        for _ in range(CLAIMERS):
            self._wake_one()
        await asyncio.gather(*self._claimers)
        await self._wait_for_all(drain_s)
        for attempt in tuple(self._running.values()):
            self._stop(attempt, Stop.SHUTDOWN)
        # Those who would not stop are settled over their heads, which takes a moment more.
        await self._wait_for_all(2 * STOP_GRACE_S)
        # Who runs on even now is told once more. What waits for a store that is away is left to whoever comes next.
        for attempt in tuple(self._running.values()):
            if attempt.task is not None:
                attempt.task.cancel()
        self._lag.stop()

    def cancel(self, job_id: str, lease: int | None = None) -> None:
        """Stop a job that runs here; its task may clean up."""
        for attempt in tuple(self._running.values()):
            if attempt.claim.id == job_id and lease in {None, attempt.claim.lease}:
                self._stop(attempt, Stop.CANCEL)

    # ---- Claiming -----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._stopping:
            try:
                claimed = await self._claim_some()
            except StoreUnavailable as error:
                logger.warning("no jobs can be claimed: %s", error)
                await self._rest(STORE_REST_S)
                self._rang = True
                continue
            except Exception:
                # The worker loop outlives every mistake, loudly.
                logger.exception("claiming failed")
                await self._rest(STORE_REST_S)
                continue
            if not claimed:
                await self._rest(self._until_next())

    async def _claim_some(self) -> bool:
        """One round: look if somebody rang, ask for what fits, start it. True when it is worth another round."""
        free = self._free()
        if free <= 0:
            return False
        if self._rang or self._clock.now() - self._looked_at >= POLL_S:
            self._rang, self._looked_at = False, self._clock.now()
            self._looked = await self._store.ready(now=self._node.now(), after=self._looked)
            self._ready = self._looked
        if self._attempts.gives_way(model for models in self._ready.lines.values() for model in models):
            await self._clock.sleep(GIVE_WAY_S)
        free = min(self._free(), -(-self._rules.workers // CLAIMERS))
        suspects = 1 if self._ready.suspects and not self._suspects and free > 0 else 0
        wants = self._turns.deal(
            self._ready.lines,
            free - suspects,
            places=self._places,
            running=self._by_model,
            held=self._by_tenant,
        )
        if not wants and not suspects:
            return False
        seen = self._looked
        claims = await self._claim(wants, suspects)
        self._begin(claims)
        # If the other claimer has looked since, its news is fresher than ours.
        dry = self._note(wants, suspects, claims, fresh=self._looked is seen)
        if claims and self._ready.lines and self._free() > 0:
            self._wake_one()
        return bool(claims) or dry

    def _free(self) -> int:
        busy = len(self._running) - self._ended_unwritten + self._asked_for
        return min(self._rules.workers - busy, 2 * self._rules.workers - len(self._running) - self._asked_for)

    async def _claim(self, wants: list[Want], suspects: int) -> list[Claim]:
        asked_for = sum(want.places for want in wants) + suspects
        self._asked_for += asked_for
        self._suspects += suspects
        for want in wants:
            _add(self._by_model, want.model, want.places)
            _add(self._by_tenant, want.tenant, want.places)
        try:
            return await self._store.claim(wants, node=self._node.id, suspects=suspects, now=self._node.now())
        finally:
            self._asked_for -= asked_for
            self._suspects -= suspects
            for want in wants:
                _add(self._by_model, want.model, -want.places)
                _add(self._by_tenant, want.tenant, -want.places)

    def _places(self, model: str) -> int:
        """How many jobs of a model may run here at a time, those that run included."""
        if not model:
            return self._rules.workers
        try:
            self._calls.check_model(model)
        except UnknownModel:
            self._blame(model)
            return 0
        return self._calls.places(model)

    def _blame(self, model: str) -> None:
        if model not in self._unknown:
            self._unknown.add(model)
            logger.warning(
                "jobs wait for model %r, which is not in the settings of this node; they wait for one that has it",
                model[:100],
            )

    def _note(self, wants: list[Want], suspects: int, claims: list[Claim], *, fresh: bool) -> bool:
        """Remember which lines have no more than was given. True when there were any, so that others may have more."""
        got: Counter[tuple[str, str]] = Counter()
        for claim in claims:
            if claim.crashes < SUSPECT_AFTER:
                got[claim.tenant, claim.model] += 1
        if not fresh:
            return False
        dry = {(want.tenant, want.model) for want in wants if got[want.tenant, want.model] < want.places}
        none_left = bool(suspects) and len(claims) == got.total()
        lines = dict(self._ready.lines)
        for tenant in {tenant for tenant, _ in dry} & lines.keys():
            lines[tenant] = tuple(model for model in lines[tenant] if (tenant, model) not in dry)
            if not lines[tenant]:
                del lines[tenant]
        if dry and not lines and self._looked.more:
            self._rang = True
        suspects_left = self._ready.suspects and not none_left
        self._ready = Ready(lines, suspects_left, self._ready.next_at)
        return bool(dry)

    def _until_next(self) -> float:
        # With every place taken there is nothing to wake up for: the bell rings when one gets free.
        if self._ready.next_at is None or self._free() <= 0:
            return POLL_S
        return min(POLL_S, max(LEAST_REST_S, self._ready.next_at - self._node.now()))

    def _ring(self) -> None:
        self._rang = True
        self._wake_one()

    def _wake_one(self) -> None:
        while self._sleepers:
            sleeper = self._sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        self._missed = True

    async def _rest(self, seconds: float) -> None:
        """Until there is news, a place gets free, or this long."""
        if self._missed or self._stopping:
            self._missed = False
            return
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = loop.create_future()
        self._sleepers.append(sleeper)
        timer = loop.call_later(seconds, self._time_is_up, sleeper)
        try:
            await sleeper
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):
                self._sleepers.remove(sleeper)

    def _time_is_up(self, sleeper: "asyncio.Future[None]") -> None:
        """Look again, whether or not there was news."""
        self._rang = True
        if not sleeper.done():
            sleeper.set_result(None)

    def _describe(self, name: str) -> str:
        """Asked from another thread: whose asyncio task this is. A job's own is called by its id."""
        for attempt in tuple(self._running.values()):
            if attempt.claim.id == name:
                return f"task {attempt.claim.task!r} of job {name}"
        return f"asyncio task {name!r}"

    # ---- Running --------------------------------------------------------------------------------------

    def _begin(self, claims: list[Claim]) -> None:
        loop, now = asyncio.get_running_loop(), self._clock.now()
        begun: list[Attempt] = []
        for claim in claims:
            attempt = Attempt(claim, now)
            self._running[claim.id, claim.lease] = attempt
            _add(self._by_model, claim.model, 1)
            _add(self._by_tenant, claim.tenant, 1)
            self._suspects += claim.crashes >= SUSPECT_AFTER
            attempt.task = loop.create_task(self._run(attempt), name=claim.id)
            begun.append(attempt)
        # After the first step of each: what is over by then needs no timer.
        loop.call_soon(self._set_timers, begun)

    def _set_timers(self, begun: list[Attempt]) -> None:
        loop = asyncio.get_running_loop()
        for attempt in begun:
            if not attempt.over and attempt.stopped is None:
                attempt.timer = loop.call_later(attempt.claim.timeout_s, self._stop, attempt, Stop.TIMEOUT)

    async def _run(self, attempt: Attempt) -> None:
        outcome = await self._attempts.run(attempt)
        if attempt.over:
            return  # It was settled over its head.
        attempt.finish()
        # The place is free again; only its memory is not, until the store has answered.
        self._ended_unwritten += 1
        _add(self._by_tenant, attempt.claim.tenant, -1)
        self._wake_one()
        self._conclude(attempt, outcome, self._written)

    def _conclude(
        self, attempt: Attempt, outcome: Outcome | None, written: Callable[[Attempt], None]
    ) -> None:
        if outcome is None:
            written(attempt)
        else:
            self._settling.put(attempt, outcome, written)

    def _written(self, attempt: Attempt) -> None:
        self._ended_unwritten -= 1
        self._end(attempt)

    def _stop(self, attempt: Attempt, why: Stop) -> None:
        if attempt.stop(why):
            loop = asyncio.get_running_loop()
            if attempt.timer is not None:
                attempt.timer.cancel()
            attempt.timer = loop.call_later(STOP_GRACE_S, self._overrule, attempt)

    def _overrule(self, attempt: Attempt) -> None:
        """Its task was told to stop and did not: settle without it. Whatever it still writes is refused."""
        if attempt.over:
            return
        attempt.finish()
        _add(self._by_tenant, attempt.claim.tenant, -1)
        logger.error(
            "task %s of job %s was stopped (%s) and runs on; the job is settled without it",
            attempt.claim.task,
            attempt.claim.id,
            attempt.stopped and attempt.stopped.value,
            extra=about(attempt.claim.id),
        )
        self._conclude(attempt, read_stop(attempt), self._end)

    def _end(self, attempt: Attempt) -> None:
        claim = attempt.claim
        del self._running[claim.id, claim.lease]
        _add(self._by_model, claim.model, -1)
        if claim.crashes >= SUSPECT_AFTER:
            self._suspects -= 1
            self._rang = True
        if not self._running:
            self._bell.set()
        self._wake_one()

    def _abandon_all(self) -> None:
        for attempt in tuple(self._running.values()):
            self._stop(attempt, Stop.LOST)

    async def _wait_for_all(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._running:
                    self._bell.clear()
                    await self._bell.wait()


def _add(counts: Counter[str], name: str, places: int) -> None:
    """Names come and go: one that holds nothing is forgotten."""
    counts[name] += places
    if not counts[name]:
        del counts[name]
