"""The rules of the job machine: what becomes of a job after an attempt. Values in, one settlement out.

pending → running → completed | skipped | cancelled | dead_letter, or back to pending:
  * a failure counts an attempt and waits by the retry policy; the last one makes the job `exhausted`;
  * a deferral (throttled, refused, preempted, held, shutting down) gives the attempt back;
  * a crash gives the attempt back too and counts apart: the second makes a suspect, the third is `poison` if the job
    ran alone, and the sixth in any case;
  * a claim taken from a node that was only silent is a deferral three times, and a crash after that;
  * a wrong request is `permanent` at once, and whatever is past `expires_at` is `expired`.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never

import msgspec

from headgate.core.failures import Failure, FailureKind
from headgate.core.job import Claim, Entry, JobState, Lost, NewJob, Reason, Settlement, due
from headgate.core.problems import Review
from headgate.core.record import RecordWrite
from headgate.core.retry import RetryPolicy

SUSPECT_AFTER: Final = 2
"""A job that was running at this many crashes is a suspect: a worker runs one of them at a time, beside other jobs."""
POISON_AFTER: Final = 3
"""From this crash on a job is poison if it ran alone at it: no other job can be the cause."""
POISON_AT_LAST: Final = 6
"""From this crash on also beside others: suspects run one at a time, so bad luck does not go that far."""
MAX_SILENCES: Final = 3
"""How often the silence of a node is not held against its jobs: it may have been cut off, or asleep."""
MOST_REVIVALS: Final = 3
LONGEST_ERROR_CHARS: Final = 2000
CRASHED: Final = "crashed"
DEFERRED: Final = "deferred"
ERROR_CLASSES: Final = (*map(str, FailureKind), CRASHED, DEFERRED)
"""What the last failure of a job may be; whoever expires or is poison keeps it."""


def _patient() -> RetryPolicy:
    return RetryPolicy(max_attempts=5, first_wait_s=5.0, factor=2.0, longest_wait_s=900.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRules:
    """What an operator can decide about jobs."""

    workers: int = 64
    """Jobs that one process runs at a time."""
    lease_s: float = 30.0
    """A node that is silent for one to two times this long is dead, and its jobs run elsewhere."""
    timeout_s: float = 600.0
    expires_after_s: float = 259_200.0
    revive_after_s: float = 3600.0
    retention_days: float = 30.0
    max_pending: int = 1_000_000
    max_pending_per_tenant: int = 100_000
    retry: RetryPolicy = field(default_factory=_patient)
    tasks: tuple[str, ...] = ()
    """Modules to import for their tasks."""

    def __post_init__(self) -> None:
        review = Review()
        review.number("workers", self.workers, least=1, most=10_000, whole=True)
        review.number("lease_s", self.lease_s, least=1, most=3600)
        review.number("timeout_s", self.timeout_s, above=0, most=604_800)
        review.number("expires_after_s", self.expires_after_s, above=0, most=31_536_000)
        review.number("revive_after_s", self.revive_after_s, above=0, most=31_536_000)
        review.number("retention_days", self.retention_days, above=0, most=36_500)
        review.number("max_pending", self.max_pending, least=1, whole=True)
        review.number("max_pending_per_tenant", self.max_pending_per_tenant, least=1, whole=True)
        _check_retry(review, self.retry)
        _check_tasks(review, self.tasks)
        review.refuse()


def _check_retry(review: Review, retry: object) -> None:
    if not isinstance(retry, RetryPolicy):
        review.add("retry", f"must be a RetryPolicy, not {retry!r:.60}")


def _check_tasks(review: Review, tasks: object) -> None:
    if not isinstance(tasks, tuple):
        review.add("tasks", f"must be a tuple of import paths, not {tasks!r:.60}")
        return
    for index, task in enumerate(tasks):
        if not _is_import_path(task):
            wanted = "must be the import path of a module, such as news.tasks or news.tasks:app"
            review.add(f"tasks[{index}]", f"{wanted}, not {task!r:.60}")


def _is_import_path(task: object) -> bool:
    """A dotted module and perhaps one attribute of it; `tasks.py` is a file, not a module's path."""
    if not isinstance(task, str):
        return False
    module, colon, attribute = task.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return dotted and not module.endswith(".py") and (attribute.isidentifier() or not colon)


# ---- What an attempt came to ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Completed:
    result: bytes
    upstream: str | None = None
    records: tuple[RecordWrite, ...] = ()
    follow_ups: tuple[NewJob, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing to do, for a reason that is no error."""

    reason: str
    records: tuple[RecordWrite, ...] = ()
    follow_ups: tuple[NewJob, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    failure: Failure
    upstream: str | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """Not now, and not the job's fault."""

    wait_s: float
    why: str
    noted: bool = False
    """The history tells of it: the job had begun, and may have been paid for."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    why: str = "cancelled"


@dataclass(frozen=True, slots=True)
class Crashed:
    """Its worker died while it ran."""

    why: str = "its worker was lost"
    alone: bool = True
    """No other job ran there: none but this one can be the cause."""


@dataclass(frozen=True, slots=True)
class Expired:
    """It was claimed after its time was up, and not begun. `kind` and the words tell its last failure, if any."""

    why: str
    kind: str = "expired"


Outcome: TypeAlias = Completed | Skipped | Failed | Deferred | Cancelled | Crashed | Expired


# ---- The rules ----------------------------------------------------------------------------------------


def read_loss(lost: Lost) -> Crashed | Deferred:
    """What it means for a job that its node was declared dead."""
    if 0 < lost.silences <= MAX_SILENCES:
        why = "its worker was silent for a whole lease; the job runs again, and no attempt and no crash is counted"
        return Deferred(0.0, why, noted=True)
    return Crashed(alone=lost.alone)


def settle(claim: Claim, outcome: Outcome, *, rules: JobRules, now: float, chance: float) -> Settlement:
    """What to write about a job whose attempt came to this."""
    match outcome:
        case Completed():
            return _finish(claim, JobState.COMPLETED, now, outcome)
        case Skipped(reason=why) | Cancelled(why=why):
            state = JobState.SKIPPED if isinstance(outcome, Skipped) else JobState.CANCELLED
            return _finish(claim, state, now, outcome, reason=why)
        case Failed():
            return _failed(claim, outcome, rules, now, chance)
        case Deferred():
            return _deferred(claim, outcome, now)
        case Crashed():
            return _crashed(claim, outcome, now)
        case Expired():
            return _bury(claim, Reason.EXPIRED, now, outcome, attempts=claim.attempts - 1)
        case _:
            assert_never(outcome)


def _failed(claim: Claim, outcome: Failed, rules: JobRules, now: float, chance: float) -> Settlement:
    failure = outcome.failure
    hopeless = failure.kind is FailureKind.MISCONFIGURED and not claim.hold
    if failure.kind is FailureKind.REJECTED or hopeless:
        return _bury(claim, Reason.PERMANENT, now, outcome)
    if claim.attempts >= claim.max_attempts:
        return _bury(claim, Reason.EXHAUSTED, now, outcome, revive_after_s=rules.revive_after_s)
    # Unlike a direct call, a job also repeats what nobody foresaw: only the policy's waits are asked for.
    wait_s = max(rules.retry.backoff_s(claim.attempts, chance), failure.retry_after_s or 0.0)
    return _back(claim, wait_s, now, outcome, attempts=claim.attempts)


def _deferred(claim: Claim, outcome: Deferred, now: float) -> Settlement:
    return _back(
        claim, outcome.wait_s, now, outcome, attempts=claim.attempts - 1, deferrals=claim.deferrals + 1
    )


def _crashed(claim: Claim, outcome: Crashed, now: float) -> Settlement:
    crashes = claim.crashes + 1
    if crashes >= (POISON_AFTER if outcome.alone else POISON_AT_LAST):
        return _bury(claim, Reason.POISON, now, outcome, attempts=claim.attempts - 1, crashes=crashes)
    return _back(claim, 0.0, now, outcome, attempts=claim.attempts - 1, crashes=crashes)


def _back(
    claim: Claim,
    wait_s: float,
    now: float,
    outcome: Failed | Deferred | Crashed,
    *,
    attempts: int,
    crashes: int | None = None,
    deferrals: int | None = None,
) -> Settlement:
    """Back to waiting; but never past the time it was given."""
    crashes = claim.crashes if crashes is None else crashes
    if now >= claim.expires_at:
        return _bury(claim, Reason.EXPIRED, now, outcome, attempts=attempts, crashes=crashes)
    run_at = min(now + wait_s, claim.expires_at)
    # A crash keeps its place in line; so does whoever was sent back through no fault of its own and at once.
    line_from = run_at if wait_s > 0 else claim.run_at
    kind, message = _told(outcome)
    return Settlement(
        id=claim.id,
        lease=claim.lease,
        state=JobState.PENDING,
        attempts=attempts,
        crashes=crashes,
        deferrals=claim.deferrals if deferrals is None else deferrals,
        run_at=run_at,
        due=due(line_from, claim.priority, claim.lane),
        suspect=crashes >= SUSPECT_AFTER,
        error=message,
        error_class=kind,
        # Deferrals may be many and say little: most are only counted.
        entry=None if isinstance(outcome, Deferred) and not outcome.noted else _entry(claim, outcome, now),
    )


def _bury(
    claim: Claim,
    reason: Reason,
    now: float,
    outcome: Failed | Deferred | Crashed | Expired,
    *,
    attempts: int | None = None,
    crashes: int | None = None,
    revive_after_s: float | None = None,
) -> Settlement:
    kind, message = _told(outcome)
    revive_at = None if revive_after_s is None else now + revive_after_s
    if not claim.revivable or claim.revivals >= MOST_REVIVALS or (revive_at or 0.0) >= claim.expires_at:
        revive_at = None
    return Settlement(
        id=claim.id,
        lease=claim.lease,
        state=JobState.DEAD_LETTER,
        attempts=claim.attempts if attempts is None else attempts,
        crashes=claim.crashes if crashes is None else crashes,
        deferrals=claim.deferrals,
        run_at=claim.run_at,
        due=due(claim.run_at, claim.priority, claim.lane),
        finished_at=now,
        revive_at=revive_at,
        reason=str(reason),
        error=message,
        error_class=kind,
        entry=_entry(claim, outcome, now),
    )


def _finish(
    claim: Claim,
    state: JobState,
    now: float,
    outcome: Completed | Skipped | Cancelled,
    reason: str | None = None,
) -> Settlement:
    done = None if isinstance(outcome, Cancelled) else outcome
    return Settlement(
        id=claim.id,
        lease=claim.lease,
        state=state,
        attempts=claim.attempts,
        crashes=claim.crashes,
        deferrals=claim.deferrals,
        run_at=claim.run_at,
        due=due(claim.run_at, claim.priority, claim.lane),
        finished_at=now,
        result=done.result if isinstance(done, Completed) else None,
        reason=None if reason is None else storable(reason),
        entry=_entry(claim, outcome, now),
        records=() if done is None else done.records,
        follow_ups=() if done is None else done.follow_ups,
    )


def cancelled_instead(settlement: Settlement, now: float) -> Settlement:
    """What became of one that was to wait for another try, had nobody asked to stop it."""
    return msgspec.structs.replace(
        settlement, state=JobState.CANCELLED, finished_at=now, reason="cancelled", error_class=None
    )


def _entry(claim: Claim, outcome: Outcome, now: float) -> Entry:
    kind, message = _told(outcome)
    return Entry(
        outcome=type(outcome).__name__.lower(),
        at=now,
        attempt=claim.attempts,
        generation=claim.generation,
        started_at=claim.started_at,
        kind=kind,
        message=message or "",
        upstream=outcome.upstream if isinstance(outcome, Completed | Failed) else None,
    )


def _told(outcome: Outcome) -> tuple[str | None, str | None]:
    """The class and the message that people are shown."""
    match outcome:
        case Failed(failure=failure):
            message = f"{failure.error}: {failure.message}" if failure.message else failure.error
            return str(failure.kind), storable(message)
        case Crashed(why=why):
            return CRASHED, storable(why)
        case Deferred(why=why):
            return DEFERRED, storable(why)
        case Expired(why=why, kind=kind):
            return kind, storable(why)
        case _:
            return None, None


def storable(words: str) -> str:
    """Words of a provider or a task may be endless, or hold what a database cannot: NUL, half a character."""
    return words[:LONGEST_ERROR_CHARS].encode(errors="replace").decode().replace("\0", "\ufffd")
