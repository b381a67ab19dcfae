"""Taking jobs in and looking at them, on SQLite."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw
import msgspec

from headgate.core.errors import QuotaExceeded
from headgate.core.idempotency import KeyClaim, KeyState, Unknown, decide, known_job
from headgate.core.job import Accepted, Cause, Edit, Entry, Job, JobState, NewJob
from headgate.core.ports.jobs import Backlog, CancelAnswer, JobFilter
from headgate.stores.listeners import SOON_S
from headgate.stores.rows import entry_line, public_state, read_backlog, read_cause, read_counts, read_job
from headgate.stores.sqlite.base import SQL, Verbs, changes, refuse_over, rows, value
from headgate.stores.sqlite.keys import find_key, take_key
from headgate.stores.sqlite.records import put_record

# SQLite uses a partial index only where its very condition is asked for.
_RARE: Final = "and finished_at is not null and state <> 'completed'"
_STATES: Final[Mapping[JobState | None, str]] = {
    None: "",
    JobState.PENDING: "and owner is null and finished_at is null",
    JobState.RUNNING: "and state = 'running'",
    JobState.COMPLETED: "and state = 'completed'",
    JobState.SKIPPED: f"and state = 'skipped' {_RARE}",
    JobState.DEAD_LETTER: f"and state = 'dead_letter' {_RARE}",
    JobState.CANCELLED: f"and state = 'cancelled' {_RARE}",
}
_INDEXES: Final[Mapping[JobState | None, str]] = {
    # Left alone, SQLite would walk all rows from the newest on. These sets are small beside the finished ones.
    JobState.PENDING: "indexed by jobs_expiring",
    JobState.RUNNING: "indexed by jobs_running",
    JobState.SKIPPED: "indexed by jobs_rare",
    JobState.DEAD_LETTER: "indexed by jobs_rare",
    JobState.CANCELLED: "indexed by jobs_rare",
}
_FILTERS: Final[Mapping[str, str]] = {
    "tenant": "and tenant = :tenant",
    "task": "and task = :task",
    "reason": "and reason = :reason",
    "model": "and model = :model",
    "error_class": "and error_class = :error_class",
    "since": "and coalesce(finished_at, created_at) >= :since",
    "until": "and coalesce(finished_at, created_at) < :until",
}


class JobVerbs(Verbs):
    """`core.ports.jobs.Jobs`."""

    async def accept(self, jobs: Sequence[NewJob], *, now: float, quota: int | None = None) -> list[Accepted]:
        def accept(db: apsw.Connection) -> list[Accepted]:
            if quota is not None:
                _refuse_over(db, jobs, quota, now)
            return [accept_job(db, job, now) for job in jobs]

        accepted = await self._write("accept", accept)
        if any(job.run_at <= now + SOON_S for job in jobs):
            self._ring()
        return accepted

    async def find(self, job_id: str, *, tenant: str | None = None) -> Job | None:
        bindings = {"id": job_id, "tenant": tenant}
        row = await self._read(lambda db: db.execute(SQL.find_job, bindings).fetchone())
        return None if row is None else read_job(row)

    async def select(self, which: JobFilter, *, limit: int, after: str | None = None) -> list[Job]:
        statement, asked = _matching(SQL.list_jobs, which)
        found = await self._read(lambda db: rows(db, statement, {**asked, "limit": limit, "after": after}))
        return [read_job(row) for row in found]

    async def count_matching(self, which: JobFilter) -> int:
        statement, asked = _matching(SQL.count_matching, which)
        return int(await self._read(lambda db: value(db, statement, asked)))

    async def causes(self, which: JobFilter, *, limit: int) -> list[Cause]:
        dead = msgspec.structs.replace(which, state=JobState.DEAD_LETTER)
        statement, asked = _matching(SQL.causes, dead)
        found = await self._read(lambda db: rows(db, statement, {**asked, "limit": limit}))
        return [read_cause(row) for row in found]

    async def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        wanted = msgspec.json.encode(job_ids).decode()
        found = await self._read(lambda db: rows(db, SQL.states_of, (wanted,)))
        return {job_id: public_state(state) for job_id, state in found}

    async def count(self, *, tenant: str | None = None) -> Mapping[str, int]:
        found = await self._read(lambda db: rows(db, SQL.count_jobs, {"tenant": tenant}))
        return read_counts(found)

    async def backlog(self, *, dead_since: float) -> Backlog:
        (row,) = await self._read(lambda db: rows(db, SQL.backlog, {"dead_since": dead_since}))
        return read_backlog(row)

    async def waiting_by_tenant(self) -> Mapping[str, int]:
        return dict(await self._read(lambda db: rows(db, SQL.waiting_by_tenant)))

    async def stored_bytes(self, *, tenant: str | None = None) -> Mapping[str, int]:
        return dict(await self._read(lambda db: rows(db, SQL.stored_bytes, {"tenant": tenant})))

    async def cancel(
        self, job_id: str, *, now: float, tenant: str | None = None, why: str = "cancelled"
    ) -> CancelAnswer | None:
        entry = entry_line(Entry(outcome="cancelled", at=now, message=why))
        asked = {"id": job_id, "tenant": tenant, "now": now, "why": why, "entry": entry}
        return await self._write("cancel", lambda db: _cancel(db, asked))

    async def make_due(self, job_id: str, *, now: float, tenant: str) -> bool:
        asked = {"id": job_id, "tenant": tenant, "now": now}
        made = await self._write("make_due", lambda db: changes(db, SQL.make_due, asked))
        if made:
            self._ring()
        return made > 0

    async def make_deferred_due(self, tasks: Sequence[str], *, now: float) -> int:
        asked = {"tasks": msgspec.json.encode(tasks).decode(), "now": now}
        made = await self._write("make_deferred_due", lambda db: changes(db, SQL.make_deferred_due, asked))
        if made:
            self._ring()
        return made

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
        asked = {
            "tenant": tenant,
            "now": now,
            "expires_at": now + expires_after_s,
            "model": None if edit is None else edit.model,
        }
        new_input = None if edit is None else edit.input

        def replay(db: apsw.Connection) -> list[Accepted]:
            known, lease = (None, 0) if key is None else _look_up(db, str(tenant), key, now)
            if known is not None:
                return [Accepted(known, created=False)]
            if edit is not None:
                refuse_over(db, str(tenant), quota, more=len(edit.input))
            done = [one for one in job_ids if _replay(db, {**asked, "id": one}, by, new_input)]
            if key is not None and done:
                _give_key(db, str(tenant), key, lease=lease, job_id=done[0], now=now)
            return [Accepted(one) for one in done]

        replayed = await self._write("replay", replay)
        if replayed:
            self._ring()
        return replayed

    async def discard(
        self, job_ids: Sequence[str], *, by: str, now: float, tenant: str | None = None
    ) -> list[str]:
        asked = {"tenant": tenant, "now": now, "entry": entry_line(Entry(outcome="discarded", at=now, by=by))}

        def discard(db: apsw.Connection) -> list[str]:
            return [job_id for job_id in job_ids if changes(db, SQL.discard_job, {**asked, "id": job_id})]

        return await self._write("discard", discard)


def _matching(frame: str, which: JobFilter) -> tuple[str, dict[str, Any]]:
    """A statement about these jobs, and what it is asked with."""
    asked = msgspec.structs.asdict(which)
    filters = " ".join(text for name, text in _FILTERS.items() if asked[name] is not None)
    index = _INDEXES.get(which.state, "")
    return frame.format(index=index, states=_STATES[which.state], filters=filters), asked


# ---- Inside the transaction -----------------------------------------------------------------------------


def _insert(db: apsw.Connection, job: NewJob, now: float) -> None:
    db.execute(
        SQL.insert_job,
        (
            job.id,
            job.tenant,
            job.task,
            job.model,
            "ready" if job.run_at <= now else "scheduled",
            str(job.lane),
            job.priority,
            job.max_attempts,
            job.hold,
            job.revivable,
            job.timeout_s,
            now,
            job.run_at,
            job.due,
            job.expires_at,
            job.dedup_key,
            job.metadata,
            job.batch_id,
            job.webhook,
            job.access_key,
        ),
    )
    db.execute(SQL.insert_input, (db.last_insert_rowid(), job.input))


def _refuse_over(db: apsw.Connection, jobs: Sequence[NewJob], quota: int, now: float) -> None:
    """Before anything is written: an operation that fails halfway costs all others of its transaction theirs."""
    for tenant in {job.tenant for job in jobs}:
        its_jobs = [job for job in jobs if job.tenant == tenant]
        try:
            refuse_over(db, tenant, quota, more=sum(job.size_bytes for job in its_jobs))
        except QuotaExceeded:
            # A repeat adds nothing.
            new = [job for job in its_jobs if not _is_repeat(db, job, now)]
            if new:
                refuse_over(db, tenant, quota, more=sum(job.size_bytes for job in new))


def _is_repeat(db: apsw.Connection, job: NewJob, now: float) -> bool:
    if job.key is not None and _look_up(db, job.tenant, job.key, now)[0] is not None:
        return True
    return job.dedup_key is not None and _twin(db, job) is not None


def _twin(db: apsw.Connection, job: NewJob) -> Any:
    return value(db, SQL.find_twin, (job.tenant, job.task, job.dedup_key))


def accept_job(db: apsw.Connection, job: NewJob, now: float) -> Accepted:
    lease = 0
    if job.key is not None:
        known, lease = _look_up(db, job.tenant, job.key, now)
        if known is not None:
            return Accepted(known, created=False)
    twin = None if job.dedup_key is None else _twin(db, job)
    job_id = twin or job.id
    if job.key is not None:
        _give_key(db, job.tenant, job.key, lease=lease, job_id=job_id, now=now)
    if twin is not None:
        return Accepted(twin, created=False)
    _insert(db, job, now)
    for record in job.records:
        put_record(db, job.tenant, record, now)
    return Accepted(job.id)


def _look_up(db: apsw.Connection, tenant: str, claim: KeyClaim, now: float) -> tuple[str | None, int]:
    """The job that has the key already, or the lease to take it with."""
    row = find_key(db, tenant, claim)
    verdict = decide(row, claim.request_hash, owner_lives=True, unknown=Unknown.RERUN, now=now)
    return known_job(verdict, claim.key), getattr(verdict, "lease", 0)


def _give_key(
    db: apsw.Connection, tenant: str, claim: KeyClaim, *, lease: int, job_id: str, now: float
) -> None:
    """From now on the key leads to this job."""
    take_key(db, tenant, claim, lease=lease, state=KeyState.DONE, owner=None, job_id=job_id, now=now)


def _cancel(db: apsw.Connection, asked: dict[str, Any]) -> CancelAnswer | None:
    if changes(db, SQL.cancel_pending, asked):
        return CancelAnswer(JobState.CANCELLED, accepted=True)
    if changes(db, SQL.cancel_running, asked):
        return CancelAnswer(JobState.RUNNING, accepted=True)
    state = value(db, SQL.state_of, {"id": asked["id"], "tenant": asked["tenant"]})
    return None if state is None else CancelAnswer(JobState(state), accepted=state == "cancelled")


def _replay(db: apsw.Connection, asked: dict[str, Any], by: str, new_input: bytes | None) -> bool:
    row = db.execute(SQL.replayable, asked).fetchone()
    if row is None:
        return False
    seq, generation, old_input = row
    entry = Entry(
        outcome="replayed",
        at=asked["now"],
        generation=generation + 1,
        by=by,
        input=msgspec.UNSET if new_input is None else msgspec.Raw(old_input),
    )
    if not changes(db, SQL.replay_job, {**asked, "entry": entry_line(entry)}):
        return False
    if new_input is not None:
        db.execute(SQL.change_input, (new_input, seq))
        db.execute(SQL.drop_steps, (asked["id"],))
    return True
