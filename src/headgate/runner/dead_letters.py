"""Dead letters: jobs that need a person. Look at them, send them back to work, or let them go."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, Unpack

from headgate.core import events
from headgate.core.call import check_text
from headgate.core.errors import KeyMismatch, StateConflict
from headgate.core.idempotency import KeyClaim, KeyOutcome
from headgate.core.job import Accepted, Cause, DeadLetter, Edit, Job, JobState, as_dead_letter
from headgate.core.ports.clock import Clock
from headgate.core.ports.jobs import JobFilter
from headgate.runner.dead_filter import DeadFilters, check_rate, check_some, read_filters
from headgate.runner.durable import Durable
from headgate.runner.jobs import JobHandle, Jobs, check_after, check_limit
from headgate.runner.payloads import fingerprinted

ENDPOINT: Final = "POST /v1/jobs/{job_id}/replay"
"""Where the idempotency key of a single replay belongs."""
BITE: Final = 100
REPLAYS_PER_S: Final = 200.0
"""How fast many are sent back at once. Each runs again beside live traffic: so many take a tenth of a core at most."""
Act: TypeAlias = Callable[[Sequence[Job]], Awaitable[Sequence[str]]]
"""Does it to a few; the ids of those it was done to."""


class DeadLetters:
    """`gateway.dead_letters`."""

    def __init__(
        self, durable: Durable, jobs: Jobs, clock: Clock, emit: Callable[[events.Event], None]
    ) -> None:
        self._durable = durable
        self._jobs = jobs
        self._clock = clock
        self._emit = emit

    async def list(
        self,
        *,
        limit: int = 100,
        after: str | None = None,
        tenant: str | None = "local",
        **which: Unpack[DeadFilters],
    ) -> Sequence[DeadLetter]:
        """Newest first, without input and history (`gateway.jobs.get` has them). A `tenant` of None: everybody's."""
        check_limit(limit)
        check_after(after)
        filters = read_filters(which, tenant=tenant)
        await self._durable.start()
        found = await self._durable.store.select(filters, limit=limit, after=after)
        return [as_dead_letter(job) for job in found]

    async def get(self, job_id: str, *, tenant: str | None = "local") -> DeadLetter:
        """One of them, with everything; `StateConflict` when the job is none."""
        job = await self._jobs.get(job_id, tenant=tenant)
        if job.state is not JobState.DEAD_LETTER:
            raise _not_dead(job)
        return as_dead_letter(job)

    async def count(self, *, tenant: str | None = "local", **which: Unpack[DeadFilters]) -> int:
        """How many match."""
        return await self.count_matching(read_filters(which, tenant=tenant))

    async def causes(
        self, *, limit: int = 100, tenant: str | None = "local", **which: Unpack[DeadFilters]
    ) -> Sequence[Cause]:
        """What those that match have in common, the most frequent first."""
        check_limit(limit)
        filters = read_filters(which, tenant=tenant)
        await self._durable.start()
        return await self._durable.store.causes(filters, limit=limit)

    async def replay(
        self,
        job_id: str,
        *,
        input: Any = None,  # noqa: A002 - its name wherever jobs are spoken of
        by: str = "local",
        idempotency_key: str | None = None,
        tenant: str = "local",
    ) -> JobHandle:
        """Send one back to work as a new generation, with another input if one is given.

        An input that names another model than the old one did moves the job to that model. With an `idempotency_key`
        the same replay is done once, whatever becomes of the job; the handle's `created` is False from then on.
        """
        check_text("by", by)
        job = await self._jobs.get(job_id, tenant=tenant)
        edit = None if input is None else self._durable.intake.edit(job, input)
        if idempotency_key is None:
            replayed = await self._replay([job], by, tenant, edit)
        else:
            body = fingerprinted({"job": job_id, "input": input}, what="the input")
            key = self._durable.key_claim(idempotency_key, body, endpoint=ENDPOINT, now=self._now())
            replayed = await self._replay_once(job, by, tenant, edit, key)
        if not replayed:
            raise _not_replayed(job)
        return JobHandle(self._jobs, job_id, tenant, created=replayed[0].created)

    async def replay_many(
        self,
        *,
        by: str = "local",
        per_second: float = REPLAYS_PER_S,
        tenant: str = "local",
        **which: Unpack[DeadFilters],
    ) -> AsyncIterator[int]:
        """Send back all that match, so many a second; yields how many so far. Stop iterating to stop it.

        At least one filter is required: "all of them" must be meant.
        """
        filters = _checked(which, by, per_second, tenant)
        async for done in self.in_bites(filters, per_second, self.replays(by, tenant)):
            yield done

    async def discard(self, job_id: str, *, by: str = "local", tenant: str = "local") -> None:
        """It needs nobody any more: `cancelled`, reason `discarded`."""
        check_text("id", job_id)
        check_text("by", by)
        await self._durable.start()
        if not await self._durable.store.discard([job_id], by=by, now=self._now(), tenant=tenant):
            raise _not_dead(await self._jobs.get(job_id, tenant=tenant))

    async def discard_many(
        self,
        *,
        by: str = "local",
        per_second: float = REPLAYS_PER_S,
        tenant: str = "local",
        **which: Unpack[DeadFilters],
    ) -> AsyncIterator[int]:
        """Let go of all that match; as `replay_many`."""
        filters = _checked(which, by, per_second, tenant)
        async for done in self.in_bites(filters, per_second, self.discards(by, tenant)):
            yield done

    # ---- For those who do it to many --------------------------------------------------------------------

    def replays(self, by: str, tenant: str) -> Act:
        async def replay(jobs: Sequence[Job]) -> Sequence[str]:
            return [one.id for one in await self._replay(jobs, by, tenant)]

        return replay

    def discards(self, by: str, tenant: str) -> Act:
        store = self._durable.store
        return lambda jobs: store.discard([job.id for job in jobs], by=by, now=self._now(), tenant=tenant)

    async def count_matching(self, which: JobFilter) -> int:
        await self._durable.start()
        return await self._durable.store.count_matching(which)

    async def in_bites(self, which: JobFilter, per_second: float, act: Act) -> AsyncIterator[int]:
        """From the newest to the oldest, each once, although those acted on are no dead letters any more."""
        await self._durable.start()
        bite = max(1, min(BITE, int(per_second)))
        done, after = 0, None
        while page := await self._durable.store.select(which, limit=bite, after=after):
            after = page[-1].id
            done += len(await act(page))
            yield done
            await self._clock.sleep(len(page) / per_second)

    # ---- Inside ---------------------------------------------------------------------------------------

    async def _replay_once(
        self, job: Job, by: str, tenant: str, edit: Edit | None, key: KeyClaim
    ) -> Sequence[Accepted]:
        try:
            replayed = await self._replay([job], by, tenant, edit, key)
        except KeyMismatch:
            self._emit(events.KeyUsed(endpoint=ENDPOINT, outcome=KeyOutcome.MISMATCH))
            raise
        for one in replayed:
            outcome = KeyOutcome.RAN if one.created else KeyOutcome.REPLAYED
            self._emit(events.KeyUsed(endpoint=ENDPOINT, outcome=outcome))
        return replayed

    async def _replay(
        self,
        jobs: Sequence[Job],
        by: str,
        tenant: str,
        edit: Edit | None = None,
        key: KeyClaim | None = None,
    ) -> Sequence[Accepted]:
        now = self._now()
        async with self._durable.quota.bound() as quota:
            replayed = await self._durable.store.replay(
                [job.id for job in jobs],
                by=by,
                now=now,
                expires_after_s=self._durable.rules.expires_after_s,
                tenant=tenant,
                edit=edit,
                key=key,
                quota=quota,
            )
        done = {one.id for one in replayed if one.created}
        if done:
            ended = [job.finished_at for job in jobs if job.id in done and job.finished_at is not None]
            waited_s = tuple(max(0.0, now - at.timestamp()) for at in ended)
            self._emit(events.JobsReplayed(by=by, count=len(done), waited_s=waited_s, tenant=tenant))
        return replayed

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _not_dead(job: Job) -> StateConflict:
    return StateConflict(f"job {job.id} is {job.state}, not a dead letter")


def _not_replayed(job: Job) -> StateConflict:
    if job.state is not JobState.DEAD_LETTER:
        return _not_dead(job)
    return StateConflict(
        f"job {job.id} is not replayed: another job with dedup_key {job.dedup_key!r} is at work"
    )


def _checked(which: DeadFilters, by: str, per_second: float, tenant: str) -> JobFilter:
    check_text("by", by)
    check_rate(per_second)
    check_some(which)
    return read_filters(which, tenant=tenant)
