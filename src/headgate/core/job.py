"""What a job is: its states, the record people see, what a worker holds while it runs one. No rules, no storage."""

import enum
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec

from headgate.core.call import Lane
from headgate.core.idempotency import KeyClaim
from headgate.core.record import RecordWrite

PRIORITY_STEP_S: Final = 60.0
"""One step of priority counts as this much waiting time, so that low priorities are never starved."""
INTERACTIVE_LEAD_S: Final = 600.0
"""A job somebody waits for goes as if it had come this much earlier."""


class JobState(enum.StrEnum):
    """Where a job is. The last four are final; only a replay or a revival leads out of `dead_letter`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    SKIPPED = "skipped"
    DEAD_LETTER = "dead_letter"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in {JobState.PENDING, JobState.RUNNING}


class Reason(enum.StrEnum):
    """Why a job is a dead letter."""

    EXHAUSTED = "exhausted"
    """Its attempts are used up."""
    PERMANENT = "permanent"
    """The request itself is wrong; repeating it will not help."""
    POISON = "poison"
    """It was running each time a worker died."""
    EXPIRED = "expired"
    """Its time was up before it could be done."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One line of a job's history: an attempt that counted, a crash, a replay, a revival. Times are epoch seconds."""

    outcome: str
    at: float
    attempt: int | None = None
    generation: int | None = None
    started_at: float | None = None
    kind: str | None = None
    """The failure's class."""
    message: str = ""
    upstream: str | None = None
    by: str | None = None
    """Who asked for it, where a person did."""
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """The input before a replay changed it."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as people read it."""

    outcome: str
    at: datetime
    attempt: int | None = None
    generation: int | None = None
    started_at: datetime | None = None
    kind: str | None = None
    message: str = ""
    upstream: str | None = None
    by: str | None = None
    input: Any = msgspec.UNSET


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as people see it; its JSON form is the API's job record."""

    id: str
    task: str
    state: JobState
    tenant: str
    model: str | None
    lane: Lane
    priority: int
    attempts: int
    max_attempts: int
    generation: int
    crashes: int
    deferrals: int
    """How often it went back to waiting without losing an attempt."""
    revivals: int
    dedup_key: str | None
    batch_id: str | None
    hold: bool
    timeout_s: float
    webhook: str | None
    metadata: Any
    progress: Any
    input: Any
    result: Any
    error: str | None
    error_class: str | None
    reason: str | None
    history: tuple[Attempt, ...]
    created_at: datetime
    run_at: datetime
    expires_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def as_taken_in(new: "NewJob", *, at: float) -> Job:
    """The record of a job at the moment it was stored."""
    return Job(
        id=new.id,
        task=new.task,
        state=JobState.PENDING,
        tenant=new.tenant,
        model=new.model or None,
        lane=new.lane,
        priority=new.priority,
        attempts=0,
        max_attempts=new.max_attempts,
        generation=1,
        crashes=0,
        deferrals=0,
        revivals=0,
        dedup_key=new.dedup_key,
        batch_id=new.batch_id,
        hold=new.hold,
        timeout_s=new.timeout_s,
        webhook=new.webhook,
        metadata=None if new.metadata is None else msgspec.json.decode(new.metadata),
        progress=None,
        input=msgspec.json.decode(new.input),
        result=None,
        error=None,
        error_class=None,
        reason=None,
        history=(),
        created_at=datetime.fromtimestamp(at, UTC),
        run_at=datetime.fromtimestamp(new.run_at, UTC),
        expires_at=datetime.fromtimestamp(new.expires_at, UTC),
        started_at=None,
        finished_at=None,
    )


class DeadLetter(Job, frozen=True, kw_only=True):
    """A job that needs a person, with the names under which such lists are usually kept."""

    job_type: str
    failed_at: datetime | None
    error_message: str | None
    retryable: bool
    """Whether a replay as it stands can help: not after a `permanent` failure."""


def as_dead_letter(job: Job) -> DeadLetter:
    return DeadLetter(
        **msgspec.structs.asdict(job),
        job_type=job.task,
        failed_at=job.finished_at,
        error_message=job.error,
        retryable=job.reason != Reason.PERMANENT,
    )


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that are alike: whose, of what, and why."""

    tenant: str
    task: str
    model: str | None
    reason: str | None
    error_class: str | None
    count: int
    latest_at: datetime


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job on its way in, checked. `input` and `metadata` are JSON; times are epoch seconds."""

    id: str
    task: str
    input: bytes
    run_at: float
    expires_at: float
    tenant: str = "local"
    model: str = ""
    lane: Lane = Lane.BATCH
    priority: int = 5
    max_attempts: int = 5
    timeout_s: float = 600.0
    dedup_key: str | None = None
    batch_id: str | None = None
    hold: bool = True
    revivable: bool = True
    webhook: str | None = None
    metadata: bytes | None = None
    access_key: str | None = None
    """The id of the access key it was submitted with: what it uses counts against that key's limits."""
    key: KeyClaim | None = None
    records: tuple[RecordWrite, ...] = ()

    @property
    def due(self) -> float:
        return due(self.run_at, self.priority, self.lane)

    @property
    def size_bytes(self) -> int:
        """What it adds to the bytes that its tenant stores."""
        records = sum(ROW_BYTES + len(record.body) for record in self.records)
        return (
            ROW_BYTES
            + len(self.input)
            + len(self.metadata or b"")
            + len((self.webhook or "").encode())
            + records
        )


ROW_BYTES: Final = 1024
"""What a job or a record counts for beside its contents."""


def due(run_at: float, priority: int, lane: Lane) -> float:
    """A job's place in line. It never changes while the job waits, so an index keeps the order."""
    lead_s = INTERACTIVE_LEAD_S if lane is Lane.INTERACTIVE else 0.0
    return run_at + priority * PRIORITY_STEP_S - lead_s


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The answer to a submission or a replay. `created` is False when a key, or the dedup key, leads to what was there."""

    id: str
    created: bool = True


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """A job that was accepted, and what was stored of it if it is new."""

    id: str
    created: bool
    new: NewJob
    at: float

    def record(self) -> Job | None:
        """The job as it was stored; None when a key led to one that was there already."""
        return as_taken_in(self.new, at=self.at) if self.created else None


class Edit(msgspec.Struct, frozen=True, gc=False):
    """What a replay changes: the input, which is JSON, and the model; None: the one the job had."""

    input: bytes
    model: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's fenced hold on a job. Whatever is written about the job must carry this `lease`."""

    id: str
    lease: int
    tenant: str
    task: str
    model: str
    lane: Lane
    priority: int
    input: bytes
    attempts: int
    """The number of the attempt that this claim is for, from 1."""
    max_attempts: int
    generation: int
    crashes: int
    deferrals: int
    revivals: int
    hold: bool
    revivable: bool
    timeout_s: float
    run_at: float
    expires_at: float
    started_at: float
    webhook: str | None = None
    metadata: bytes | None = None
    batch_id: str | None = None
    access_key: str | None = None


class Lost(msgspec.Struct, frozen=True, gc=False):
    """A claim whose node is dead, and what is known of that death."""

    claim: Claim
    silences: int = 0
    """How often this job was taken from a node that was only silent, this time included; 0: the death is proven."""
    alone: bool = False
    """The node ran no other job when it died."""


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is to be written about a claimed job, all of it in one transaction or none of it."""

    id: str
    lease: int
    state: JobState
    attempts: int
    crashes: int
    deferrals: int
    run_at: float
    due: float
    suspect: bool = False
    finished_at: float | None = None
    revive_at: float | None = None
    """When an exhausted job may come back by itself."""
    result: bytes | None = None
    reason: str | None = None
    error: str | None = None
    error_class: str | None = None
    entry: Entry | None = None
    records: tuple[RecordWrite, ...] = ()
    follow_ups: tuple[NewJob, ...] = ()


class Ended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that ends, by a worker's doing or because its time is up. `result` and `metadata` are JSON."""

    id: str
    task: str
    tenant: str
    model: str
    state: JobState
    reason: str | None
    error: str | None
    error_class: str | None
    attempts: int
    generation: int
    revivals: int
    """With the generation it tells the ends of one job apart."""
    result: bytes | None
    webhook: str | None
    metadata: bytes | None
    batch_id: str | None
    finished_at: float


FollowUps: TypeAlias = Callable[[Ended], tuple[NewJob, ...]]
"""The jobs that the end of one brings. It may be asked twice, and in a store's thread: it only makes values."""


def nothing_follows(_ended: Ended) -> tuple[NewJob, ...]:
    return ()


class Settled(enum.StrEnum):
    """How a settlement went."""

    APPLIED = "applied"
    CANCELLED = "cancelled"
    """Applied, but it does not wait for another try: somebody had asked to stop it, and it is cancelled."""
    STALE = "stale"
    """The claim was lost meanwhile: nothing was written."""
    CONFLICT = "conflict"
    """One of its records collides with another's unique key: nothing was written."""
