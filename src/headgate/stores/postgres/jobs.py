"""Taking jobs in and looking at them, on PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.core.errors import QuotaExceeded
from headgate.core.idempotency import KeyClaim
from headgate.core.job import Accepted, Cause, Edit, Entry, Job, JobState, NewJob
from headgate.core.ports.jobs import Backlog, CancelAnswer, JobFilter
from headgate.stores.listeners import SOON_S
from headgate.stores.postgres.accepting import Call, accept_calls, over_quota, take_key
from headgate.stores.postgres.base import SQL, Verbs, refuse_over, sayable
from headgate.stores.postgres.columns import JOB_COLUMNS, columns, job_row
from headgate.stores.postgres.database import Connection
from headgate.stores.postgres.group import Group
from headgate.stores.rows import (
    PENDING,
    entry_line,
    public_state,
    read_backlog,
    read_cause,
    read_counts,
    read_job,
)

_LIVE: Final[Mapping[JobState | None, str | None]] = {
    None: "",
    JobState.PENDING: "and state in ('scheduled', 'ready', 'suspect')",
    JobState.RUNNING: "and owner is not null",
}
"""Which of the live jobs; a state that is not here has none."""
_FINISHED: Final[Mapping[JobState | None, str | None]] = {
    None: "",
    JobState.COMPLETED: "and state = 'completed'",
    JobState.SKIPPED: "and state = 'skipped'",
    JobState.DEAD_LETTER: "and state = 'dead_letter'",
    JobState.CANCELLED: "and state = 'cancelled'",
}
_EQUAL: Final = ("tenant", "task", "reason", "model", "error_class")


class JobVerbs(Verbs):
    """`core.ports.jobs.Jobs`."""

    _plain_calls: Group[Call, list[Accepted] | QuotaExceeded]
    _keyed_calls: Group[Call, list[Accepted]]

    def _prepare_jobs(self) -> None:
        self._plain_calls = Group(self._accept_plain, most=100)
        self._keyed_calls = Group(self._accept_keyed)

    async def accept(self, jobs: Sequence[NewJob], *, now: float, quota: int | None = None) -> list[Accepted]:
        self._database.check_open()
        if not jobs:
            return []
        call = Call(jobs, now, quota)
        if not all(map(_is_plain, jobs)):
            return await self._keyed_calls.put(call, len(jobs))
        answer = await self._plain_calls.put(call, len(jobs))
        if isinstance(answer, QuotaExceeded):
            raise answer
        return answer

    async def find(self, job_id: str, *, tenant: str | None = None) -> Job | None:
        rows = await self._database.read(SQL.find_job, sayable(job_id), tenant)
        return read_job(rows[0]) if rows else None

    async def select(self, which: JobFilter, *, limit: int, after: str | None = None) -> list[Job]:
        statement, arguments = self._page(which, limit, after)
        rows = await self._database.read(statement, *arguments) if statement else []
        return [read_job(row) for row in rows]

    async def count_matching(self, which: JobFilter) -> int:
        arguments: list[Any] = []
        halves = self._halves(which, arguments, SQL.count_live, SQL.count_finished)
        return sum([(await self._database.read(half, *arguments))[0][0] for half in halves])

    async def causes(self, which: JobFilter, *, limit: int) -> list[Cause]:
        arguments: list[Any] = [limit]
        dead = msgspec.structs.replace(which, state=JobState.DEAD_LETTER)
        [statement] = self._halves(dead, arguments, "", SQL.causes)
        return [read_cause(row) for row in await self._database.read(statement, *arguments)]

    def _page(self, which: JobFilter, limit: int, after: str | None) -> tuple[str, list[Any]]:
        """A page of either table, or of both. No statement where there can be no such job."""
        arguments: list[Any] = [after, limit]
        halves = self._halves(which, arguments, SQL.list_live, SQL.list_finished)
        both = " union all ".join(f"({half})" for half in halves)
        page = f"select * from ({both}) as page order by id desc limit $2"  # noqa: S608 - of our own pieces
        return page if halves else "", arguments

    def _halves(self, which: JobFilter, arguments: list[Any], of_live: str, of_finished: str) -> list[str]:
        """The statements for the tables that can have such jobs; what they compare with goes to `arguments`."""
        filters = self._filters(which, arguments)
        live, finished = _LIVE.get(which.state), _FINISHED.get(which.state)
        halves = []
        # A live job has no reason yet.
        if live is not None and which.reason is None:
            halves.append(of_live.format(filters=f"{live} {filters.format(at='created_at')}"))
        if finished is not None:
            halves.append(of_finished.format(filters=f"{finished} {filters.format(at='finished_at')}"))
        return halves

    def _filters(self, which: JobFilter, arguments: list[Any]) -> str:
        """The conditions; what they compare with goes to `arguments`."""
        asked = msgspec.structs.asdict(which)
        conditions = []
        for name in _EQUAL:
            if asked[name] is not None:
                arguments.append(sayable(asked[name]))
                conditions.append(f"and {name} = ${len(arguments)}")
        for name, sign in (("since", ">="), ("until", "<")):
            if asked[name] is not None:
                arguments.append(asked[name])
                conditions.append(f"and {{at}} {sign} ${len(arguments)}")
        return " ".join(conditions)

    async def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        rows = await self._database.read(SQL.states_of, [sayable(job_id) for job_id in job_ids])
        return {job_id: public_state(state) for job_id, state in rows}

    async def count(self, *, tenant: str | None = None) -> Mapping[str, int]:
        return read_counts(await self._database.read(SQL.count_jobs, tenant))

    async def backlog(self, *, dead_since: float) -> Backlog:
        (row,) = await self._database.read(SQL.backlog, dead_since)
        return read_backlog(row)

    async def waiting_by_tenant(self) -> Mapping[str, int]:
        return {row[0]: row[1] for row in await self._database.read(SQL.waiting_by_tenant)}

    async def stored_bytes(self, *, tenant: str | None = None) -> Mapping[str, int]:
        tenants = None if tenant is None else [tenant]
        return {row[0]: row[1] for row in await self._database.read(SQL.stored_bytes, tenants)}

    async def cancel(
        self, job_id: str, *, now: float, tenant: str | None = None, why: str = "cancelled"
    ) -> CancelAnswer | None:
        entry = entry_line(Entry(outcome="cancelled", at=now, message=why))
        asked = (sayable(job_id), tenant)

        async def cancel(connection: Connection) -> CancelAnswer | None:
            while (state := await connection.fetchval(SQL.state_of, *asked)) is not None:
                if JobState(public_state(state)).final:
                    return CancelAnswer(JobState(state), accepted=state == "cancelled")
                # It may move before we hold it: then look again where it is.
                held = await connection.fetchval(SQL.lock_live, *asked)
                if held in PENDING:
                    await connection.execute(SQL.cancel_pending, asked[0], now, why, entry)
                    return CancelAnswer(JobState.CANCELLED, accepted=True)
                if held is not None:
                    await connection.execute(SQL.cancel_running, asked[0], now)
                    return CancelAnswer(JobState.RUNNING, accepted=True)
            return None

        return await self._database.transact("cancel", cancel)

    async def make_due(self, job_id: str, *, now: float, tenant: str) -> bool:
        asked = (sayable(job_id), tenant, now)
        made = await self._database.write("make_due", SQL.make_due, *asked)
        if made:
            self._ring()
        return bool(made)

    async def make_deferred_due(self, tasks: Sequence[str], *, now: float) -> int:
        asked = (list(tasks), now)
        made = await self._database.write("make_deferred_due", SQL.make_deferred_due, *asked, again=True)
        if made:
            self._ring()
        return len(made)

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
        wanted = list(dict.fromkeys(map(sayable, job_ids)))

        async def replay(connection: Connection) -> list[Accepted]:
            if key is not None:
                name = (str(tenant), key.endpoint, key.key)
                known = await take_key(connection, name, key, wanted[0], now)
                if known is not None:
                    return [Accepted(known, created=False)]
            if edit is not None:
                await refuse_over(connection, str(tenant), quota, more=len(edit.input))
            replayed = await _replay(connection, wanted, tenant, by, (now, now + expires_after_s), edit)
            if key is not None and not replayed:
                raise _NothingDone  # And the key is free again.
            return [Accepted(job_id) for job_id in wanted if job_id in replayed]

        try:
            replayed = await self._database.transact("replay", replay)
        except _NothingDone:
            return []
        if replayed:
            self._ring()
        return replayed

    async def discard(
        self, job_ids: Sequence[str], *, by: str, now: float, tenant: str | None = None
    ) -> list[str]:
        wanted = list(dict.fromkeys(map(sayable, job_ids)))
        entry = entry_line(Entry(outcome="discarded", at=now, by=by))
        rows = await self._database.write("discard", SQL.discard_jobs, wanted, tenant, now, entry)
        discarded = {row[0] for row in rows}
        return [job_id for job_id in wanted if job_id in discarded]

    # ---- Flushes ----------------------------------------------------------------------------------------

    async def _accept_plain(self, calls: list[Call]) -> list[list[Accepted] | QuotaExceeded]:
        """Who is over quota is left out: the others' flush does not fail for it."""
        stored: dict[str, int] = {}
        if tenants := {job.tenant for call in calls if call.quota is not None for job in call.jobs}:
            rows = await self._database.read(SQL.stored_bytes, list(tenants))
            stored = {row[0]: row[1] for row in rows}
        refused = [over_quota(call.jobs, call.quota, stored) for call in calls]
        taken = [call for call, over in zip(calls, refused, strict=True) if over is None]
        if taken:
            rows = [job_row(job, call.now) for call in taken for job in call.jobs]
            await self._database.copy("accept", "jobs", JOB_COLUMNS, rows)
            self._ring_for(taken)
        return [
            over or [Accepted(job.id) for job in call.jobs] for call, over in zip(calls, refused, strict=True)
        ]

    async def _accept_keyed(self, calls: list[Call]) -> list[list[Accepted]]:
        answers = await self._database.transact("accept", lambda open_: accept_calls(open_, calls))
        self._ring_for(calls)
        return answers

    def _ring_for(self, calls: Sequence[Call]) -> None:
        if any(job.run_at <= call.now + SOON_S for call in calls for job in call.jobs):
            self._ring()


def _is_plain(job: NewJob) -> bool:
    """It can collide with nothing."""
    return job.key is None and job.dedup_key is None and not job.records


class _NothingDone(Exception):
    """Rolls a transaction back."""


async def _replay(
    connection: Connection,
    wanted: Sequence[str],
    tenant: str | None,
    by: str,
    times: tuple[float, float],
    edit: Edit | None,
) -> set[str]:
    """`times`: now, and when they expire."""
    edited = edit is not None
    dead = {row[0]: row for row in await connection.fetch(SQL.lock_dead, wanted, tenant, edited)}
    told = [(job_id, _replayed(dead[job_id], by, times[0])) for job_id in wanted if job_id in dead]
    if not told:
        return set()
    new = (None, None) if edit is None else (edit.input, edit.model)
    replayed = {row[0] for row in await connection.fetch(SQL.replay_jobs, *columns(told), *times, *new)}
    if edited:
        await connection.execute(SQL.drop_steps, list(replayed))
    return replayed


def _replayed(row: Sequence[Any], by: str, at: float) -> str:
    _, generation, old_input = row
    kept = msgspec.UNSET if old_input is None else msgspec.Raw(old_input)
    return entry_line(Entry(outcome="replayed", at=at, generation=generation + 1, by=by, input=kept))
