"""Writing down what came of an attempt, and telling those who listen. Keeps at it while the store is away."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from headgate.core import events
from headgate.core.errors import StoreUnavailable
from headgate.core.failures import Failure, FailureKind
from headgate.core.job import Claim, Ended, FollowUps, JobState, Settled, Settlement, nothing_follows
from headgate.core.job_rules import Crashed, Failed, JobRules, Outcome, cancelled_instead, settle
from headgate.core.ports.clock import Chance, Clock
from headgate.core.ports.store import Store
from headgate.machine.context import about
from headgate.runner.attempt import Attempt
from headgate.runner.endings import guarded, with_follow_ups
from headgate.runner.tasks import TaskTable
from headgate.runner.trips import Answer, Trips

logger = logging.getLogger("headgate")
FIRST_REST_S: Final = 0.25
LONGEST_REST_S: Final = 5.0
MOST_KEYS_NAMED: Final = 3
Emit = Callable[[events.Event], None]
_USUAL: Final = JobRules()


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
        follow_ups: FollowUps = nothing_follows,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._rules = rules
        self._clock = clock
        self._chance = chance
        self._emit = emit
        self._ended = ended
        self.follow_ups = guarded(follow_ups)
        self._trips = Trips(store, self._now)
        self._worries: set[asyncio.Task[None]] = set()

    def put(self, attempt: Attempt, outcome: Outcome, written: Callable[[Attempt], None]) -> None:
        """Have it written in full; call `written` when it is, or when the claim is somebody else's by now.

        A job has no more to do with it, unless something goes wrong: then a task of its own sees it through.
        """
        try:
            settlement = self.rule(attempt.claim, outcome)
        except Exception as error:  # noqa: BLE001 - it is told as it is ruled
            settlement = self._rule_unstorable(attempt.claim, error)
        self._trips.put(settlement, partial(self._hear, attempt, settlement, written))

    def _hear(
        self, attempt: Attempt, settlement: Settlement, written: Callable[[Attempt], None], answer: Answer
    ) -> None:
        if answer is not Settled.APPLIED and answer is not Settled.CANCELLED:
            self._worry(attempt, settlement, answer, written)
            return
        try:
            self.tell(attempt.claim, settlement, answer, run_s=self._clock.now() - attempt.started)
        except Exception:
            logger.exception(
                "what came of job %s is written down, but not told", settlement.id, extra=about(settlement.id)
            )
        written(attempt)

    def rule(self, claim: Claim, outcome: Outcome) -> Settlement:
        """What is to be written about the job, with the jobs that its end brings."""
        settlement = self._rule(claim, outcome)
        following = with_follow_ups(claim, settlement, self.follow_ups)
        return msgspec.structs.replace(settlement, follow_ups=following) if following else settlement

    def _rule(self, claim: Claim, outcome: Outcome) -> Settlement:
        task = self._tasks.get(claim.task)
        rules = self._rules
        if task is not None and task.retry is not None:
            rules = replace(rules, retry=task.retry)
        if task is not None and task.inside and isinstance(outcome, Crashed):
            # Headgate's own jobs die with their process, not it by them: they are no suspects.
            claim = msgspec.structs.replace(claim, crashes=0)
        now, chance = self._now(), self._chance()
        try:
            return settle(claim, outcome, rules=rules, now=now, chance=chance)
        except Exception:
            # A policy may be the user's own. If it breaks, its job waits by the usual one.
            logger.exception("the retry policy of task %s raised", claim.task, extra=about(claim.id))
            return settle(claim, outcome, rules=replace(rules, retry=_USUAL.retry), now=now, chance=chance)

    def tell(self, claim: Claim, settlement: Settlement, answer: Settled, *, run_s: float) -> None:
        """One event per settlement; a dead letter also gets its line in the log."""
        if answer is Settled.CANCELLED:
            settlement = cancelled_instead(settlement, self._now())
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
        if settlement.finished_at is not None:
            self._ended(claim.id)

    def tell_expired(self, job: Ended) -> None:
        """The same for a job that no worker had: it waited until its time was up."""
        self._emit(
            events.JobSettled(
                job_id=job.id,
                task=job.task,
                model=job.model or None,
                tenant=job.tenant,
                state=str(job.state),
                attempts=job.attempts,
                wait_ms=0.0,
                run_ms=0.0,
                reason=job.reason,
                failure="expired",
            )
        )
        log_dead_letter(job.id, job.task, str(job.reason), job.attempts)
        self._ended(job.id)

    # ---- When it does not go well -------------------------------------------------------------------------

    def _rule_unstorable(self, claim: Claim, error: Exception) -> Settlement:
        """A claim that nobody settles would run for ever, as long as this node lives."""
        logger.error(
            "what came of job %s cannot be stored; it counts as failed",
            claim.id,
            exc_info=error,
            extra=about(claim.id),
        )
        return self.rule(claim, _unstorable(FailureKind.BROKEN, type(error).__name__))

    def _worry(
        self, attempt: Attempt, settlement: Settlement, answer: Answer, written: Callable[[Attempt], None]
    ) -> None:
        task = asyncio.create_task(self._see_through(attempt, settlement, answer))
        self._worries.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._worries.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                # The claim stays ours for as long as this node lives; whoever comes after it rescues the job.
                logger.error(
                    "what came of job %s could not be written down",
                    attempt.claim.id,
                    exc_info=error,
                    extra=about(attempt.claim.id),
                )
            written(attempt)

        task.add_done_callback(over)

    async def _see_through(self, attempt: Attempt, settlement: Settlement, answer: Answer) -> None:
        """From the answer to the first try to the end."""
        claim = attempt.claim
        try:
            answer = await self._insist(settlement, answer)
        except Exception as error:  # noqa: BLE001 - it is told as it is ruled
            settlement = self._rule_unstorable(claim, error)
            answer = await self._insist(settlement)
        if answer is Settled.CONFLICT:
            taken = f"a record's unique key is taken: {_unique_keys(settlement)}"
            settlement = self.rule(claim, _unstorable(FailureKind.REJECTED, taken))
            answer = await self._insist(settlement)
        if answer is Settled.STALE:
            logger.warning(
                "job %s was taken over while it ran here; its outcome here does not count",
                claim.id,
                extra=about(claim.id),
            )
            return
        self.tell(claim, settlement, answer, run_s=self._clock.now() - attempt.started)

    async def _insist(self, settlement: Settlement, answer: Answer | None = None) -> Settled:
        """A finished job's outcome is not given up because the database is restarting."""
        rest_s = FIRST_REST_S
        unsure = False
        while True:
            try:
                answer = answer or await self._trips.send(settlement)
                if isinstance(answer, Exception):
                    raise answer
                if unsure and answer is Settled.STALE:
                    return await self._look_again(settlement)
            except StoreUnavailable as error:
                unsure, answer = True, None
                logger.warning(
                    "the outcome of job %s waits: %s", settlement.id, error, extra=about(settlement.id)
                )
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

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _unstorable(kind: FailureKind, why: str) -> Failed:
    return Failed(Failure(kind=kind, message=f"its outcome could not be stored: {why}", code="unstorable"))


def _unique_keys(settlement: Settlement) -> str:
    """Those it came with: one of them it is."""
    records = [*settlement.records, *(record for job in settlement.follow_ups for record in job.records)]
    keys = [f"{record.collection} {record.unique_key[:200]!r}" for record in records if record.unique_key]
    return " or ".join(keys[:MOST_KEYS_NAMED]) + (" or another" if len(keys) > MOST_KEYS_NAMED else "")


def log_dead_letter(job_id: str, task: str, reason: str, attempts: int) -> None:
    logger.warning(
        "dead_letter job=%s task=%s reason=%s attempts=%d",
        job_id,
        task,
        reason,
        attempts,
        extra=about(job_id),
    )
