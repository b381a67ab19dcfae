"""Writing down what came of an attempt, and telling those who listen. Keeps at it while the store is away."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headgate.core import events
from headgate.core.errors import StoreUnavailable
from headgate.core.failures import Failure, FailureKind
from headgate.core.job import Claim, JobState, Settled, Settlement
from headgate.core.job_rules import Failed, JobRules, Outcome, settle
from headgate.core.ports.clock import Chance, Clock
from headgate.core.ports.store import Store
from headgate.runner.attempt import Attempt
from headgate.runner.tasks import TaskTable

logger = logging.getLogger("headgate")
MOST_TOGETHER: Final = 500
FIRST_REST_S: Final = 0.25
LONGEST_REST_S: Final = 5.0
Emit = Callable[[events.Event], None]
_USUAL: Final = JobRules()
Waiting = tuple[Settlement, "asyncio.Future[Settled]"]


class Settling:
    """From outcomes to what is in the store."""

    def __init__(
        self,
        store: Store,
        tasks: TaskTable,
        *,
        rules: JobRules,
        clock: Clock,
        chance: Chance,
        emit: Emit,
        ended: Callable[[str], None],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._rules = rules
        self._clock = clock
        self._chance = chance
        self._emit = emit
        self._ended = ended
        self._waiting: list[Waiting] = []
        self._flushing: asyncio.Task[None] | None = None

    async def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """Write it in full, or learn that the claim is somebody else's by now."""
        claim = attempt.claim
        try:
            settlement = self.rule(claim, outcome)
            answer = await self._insist(settlement)
        except Exception as error:
            # A claim that nobody settles would run for ever, as long as this node lives.
            logger.exception("what came of job %s cannot be stored; it counts as failed", claim.id)
            settlement = self.rule(claim, _unstorable(FailureKind.BROKEN, type(error).__name__))
            answer = await self._insist(settlement)
        if answer is Settled.CONFLICT:
            settlement = self.rule(claim, _unstorable(FailureKind.REJECTED, "a record's unique key is taken"))
            answer = await self._insist(settlement)
        if answer is Settled.STALE:
            logger.warning(
                "job %s was taken over while it ran here; its outcome here does not count", claim.id
            )
            return
        self.tell(claim, settlement, run_s=self._clock.now() - attempt.started)

    def rule(self, claim: Claim, outcome: Outcome) -> Settlement:
        task = self._tasks.get(claim.task)
        rules = self._rules
        if task is not None and task.retry is not None:
            rules = replace(rules, retry=task.retry)
        now, chance = self._now(), self._chance()
        try:
            return settle(claim, outcome, rules=rules, now=now, chance=chance)
        except Exception:
            # A policy may be the user's own. If it breaks, its job waits by the usual one.
            logger.exception("the retry policy of task %s raised", claim.task)
            return settle(claim, outcome, rules=replace(rules, retry=_USUAL.retry), now=now, chance=chance)

    async def _insist(self, settlement: Settlement) -> Settled:
        """A finished job's outcome is not given up because the database is restarting."""
        rest_s = FIRST_REST_S
        unsure = False
        while True:
            try:
                answer = await self._write(settlement)
                if unsure and answer is Settled.STALE:
                    return await self._look_again(settlement)
            except StoreUnavailable as error:
                unsure = True
                logger.warning("the outcome of job %s waits: %s", settlement.id, error)
                await self._clock.sleep(rest_s * (0.5 + 0.5 * self._chance()))
                rest_s = min(LONGEST_REST_S, rest_s * 2)
            else:
                return answer

    async def _look_again(self, settlement: Settlement) -> Settled:
        """The answer to the first try was lost: it may have been written all the same."""
        job = await self._store.find(settlement.id)
        ours = job is not None and job.finished_at is not None and settlement.finished_at is not None
        if ours and job is not None and job.state is settlement.state:
            return Settled.APPLIED
        return Settled.STALE

    async def _write(self, settlement: Settlement) -> Settled:
        """Together with whatever else ended meanwhile: one trip to the store carries many."""
        future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self._waiting.append((settlement, future))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush(), name="headgate settling")
        return await future

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            try:
                answers = await self._store.settle([settlement for settlement, _ in batch], now=self._now())
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                await self._split(batch, error)
                continue
            for (_, future), answer in zip(batch, answers, strict=True):
                _tell(future, answer)

    async def _split(self, batch: list[Waiting], error: Exception) -> None:
        """When the store is away, all hear of it. Any other error is one settlement's own: find which."""
        for settlement, future in batch:
            if not isinstance(error, StoreUnavailable) and len(batch) > 1:
                try:
                    (answer,) = await self._store.settle([settlement], now=self._now())
                except Exception as its_own:  # noqa: BLE001 - as above
                    _fail(future, its_own)
                else:
                    _tell(future, answer)
            else:
                _fail(future, error)

    def tell(self, claim: Claim, settlement: Settlement, *, run_s: float) -> None:
        """One event per settlement; a dead letter also gets its line in the log."""
        self._emit(
            events.JobSettled(
                job_id=claim.id,
                task=claim.task,
                model=claim.model or None,
                tenant=claim.tenant,
                state=str(settlement.state),
                attempts=settlement.attempts,
                wait_ms=max(0.0, claim.started_at - claim.run_at) * 1000,
                run_ms=run_s * 1000,
                reason=settlement.reason,
                failure=settlement.error_class,
            )
        )
        if settlement.state is JobState.DEAD_LETTER:
            log_dead_letter(claim.id, claim.task, str(settlement.reason), settlement.attempts)
        if settlement.state.final:
            self._ended(claim.id)

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _tell(future: "asyncio.Future[Settled]", answer: Settled) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: "asyncio.Future[Settled]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _unstorable(kind: FailureKind, why: str) -> Failed:
    return Failed(Failure(kind=kind, message=f"its outcome could not be stored: {why}", code="unstorable"))


def log_dead_letter(job_id: str, task: str, reason: str, attempts: int) -> None:
    logger.warning("dead_letter job=%s task=%s reason=%s attempts=%d", job_id, task, reason, attempts)
