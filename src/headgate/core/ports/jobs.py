"""Taking jobs in and looking at them. Every verb is tenant-scoped where a tenant could look."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from headgate.core.idempotency import KeyClaim
from headgate.core.job import Accepted, Cause, Edit, Job, JobState, NewJob


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs; None means any. `since` and `until` look at `finished_at`, for live jobs at `created_at`."""

    tenant: str | None = None
    state: JobState | None = None
    task: str | None = None
    reason: str | None = None
    model: str | None = None
    error_class: str | None = None
    since: float | None = None
    until: float | None = None


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What is not over, and what lies there: a look at the living and the dead, not at all who ever were."""

    pending: int
    running: int
    oldest_run_at: float | None
    """When the pending job that has been due for longest was due; later than now when none is due."""
    dead_letters: int
    oldest_dead_at: float | None
    newly_dead: int
    """Dead letters since the moment that was asked for."""


class CancelAnswer(msgspec.Struct, frozen=True):
    """`state` after the cancel: `cancelled`, or `running` while its worker is being told."""

    state: JobState
    accepted: bool
    """False when the job had already ended otherwise."""


class Jobs(Protocol):
    """Accept, find, list, cancel."""

    async def accept(self, jobs: Sequence[NewJob], *, now: float, quota: int | None = None) -> list[Accepted]:
        """Take all of them or none; durable when this returns. Also concurrent accepts share a commit.

        With a `quota`, new jobs after which their tenant would store more bytes are refused; repeats are not.
        Raises `KeyMismatch`, `RecordExists`, `QuotaExceeded` or `StoreUnavailable`; then nothing was stored.
        """
        ...

    async def find(self, job_id: str, *, tenant: str | None = None) -> Job | None: ...

    async def select(self, which: JobFilter, *, limit: int, after: str | None = None) -> list[Job]:
        """Newest first, by id; `after` is the last id of the page before. Without input, result and history."""
        ...

    async def count_matching(self, which: JobFilter) -> int:
        """How many `select` would find, page after page."""
        ...

    async def causes(self, which: JobFilter, *, limit: int) -> list[Cause]:
        """The dead letters among those, by what they have in common; the most frequent first."""
        ...

    async def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """The states of those that exist; one cheap look for everybody who waits."""
        ...

    async def count(self, *, tenant: str | None = None) -> Mapping[str, int]:
        """How many jobs are in each state."""
        ...

    async def backlog(self, *, dead_since: float) -> Backlog:
        """Everybody's jobs that wait, run or are dead letters."""
        ...

    async def waiting_by_tenant(self) -> Mapping[str, int]:
        """Pending jobs by tenant."""
        ...

    async def stored_bytes(self, *, tenant: str | None = None) -> Mapping[str, int]:
        """Bytes stored by tenant: files, inputs, results, steps, records, answers under idempotency keys."""
        ...

    async def cancel(
        self, job_id: str, *, now: float, tenant: str | None = None, why: str = "cancelled"
    ) -> CancelAnswer | None:
        """None when there is no such job. A running job is only marked: its worker hears of it."""
        ...

    async def make_due(self, job_id: str, *, now: float, tenant: str) -> bool:
        """A pending job that waits for its time waits no longer; False when there is no such job."""
        ...

    async def make_deferred_due(self, tasks: Sequence[str], *, now: float) -> int:
        """The same for all deferred jobs of these tasks; those that failed, or were submitted for later, keep their time."""
        ...

    async def replay(
        self,
        job_ids: Sequence[str],
        *,
        by: str,
        now: float,
        expires_after_s: float,
        tenant: str | None = None,
        edit: Edit | None = None,
        key: KeyClaim | None = None,
        quota: int | None = None,
    ) -> list[Accepted]:
        """Dead letters back to pending as a new generation; returns those that were dead letters.

        With an `edit` the old input stays in the history, the stored steps are dropped, and `QuotaExceeded` is raised
        when the tenant would then store more bytes than the `quota`. A `key` is taken with the
        replay or not at all; where it was used before, nothing is done. It needs a tenant. Raises `KeyMismatch`.
        """
        ...

    async def discard(
        self, job_ids: Sequence[str], *, by: str, now: float, tenant: str | None = None
    ) -> list[str]:
        """Dead letters that need nobody any more: `cancelled`, reason `discarded`."""
        ...
