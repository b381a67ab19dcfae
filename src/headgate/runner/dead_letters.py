"""Dead letters: jobs that need a person. Look at them, send them back to work, or let them go."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any, Final

from headgate.core import events
from headgate.core.errors import InvalidRequest, StateConflict
from headgate.core.job import DeadLetter, Job, JobState, Reason, as_dead_letter
from headgate.core.messages import check_text
from headgate.core.ports.clock import Clock
from headgate.core.ports.jobs import JobFilter
from headgate.runner.durable import Durable
from headgate.runner.jobs import JobHandle, Jobs, check_after, check_limit
from headgate.runner.payloads import encode

BITE: Final = 100
REPLAYS_PER_S: Final = 500.0
"""How fast many are sent back at once, so that old work does not drown the new."""


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
        task: str | None = None,
        reason: Reason | str | None = None,
        model: str | None = None,
        error_class: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
        tenant: str = "local",
    ) -> Sequence[DeadLetter]:
        """Newest first, without input and history (`gateway.jobs.get` has them)."""
        check_limit(limit)
        check_after(after)
        which = _filter(tenant, task, reason, model, error_class, since, until)
        await self._durable.start()
        found = await self._durable.store.select(which, limit=limit, after=after)
        return [as_dead_letter(job) for job in found]

    async def replay(
        self,
        job_id: str,
        *,
        input: Any = None,  # noqa: A002 - its name wherever jobs are spoken of
        by: str = "local",
        tenant: str = "local",
    ) -> JobHandle:
        """Send one back to work as a new generation, with another input if one is given."""
        check_text("by", by)
        job = await self._jobs.get(job_id, tenant=tenant)
        new_input = None
        if input is not None:
            new_input = encode(input, what="the input")
            self._durable.tasks.find(job.task).read(new_input)
        if not await self._replay([job], by, tenant, new_input):
            raise StateConflict(_why_not(job))
        return JobHandle(self._jobs, job_id, tenant)

    async def replay_many(
        self,
        *,
        task: str | None = None,
        reason: Reason | str | None = None,
        model: str | None = None,
        error_class: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        by: str = "local",
        per_second: float = REPLAYS_PER_S,
        tenant: str = "local",
    ) -> AsyncIterator[int]:
        """Send back all that match, so many a second; yields how many so far. Stop iterating to stop it.

        At least one filter is required: "all of them" must be meant.
        """
        check_text("by", by)
        which = _filter(tenant, task, reason, model, error_class, since, until, required=True)
        _check_rate(per_second)
        async for done in self._in_bites(
            which, per_second, lambda jobs: self._replay(jobs, by, tenant, None)
        ):
            yield done

    async def discard(self, job_id: str, *, by: str = "local", tenant: str = "local") -> None:
        """It needs nobody any more: `cancelled`, reason `discarded`."""
        check_text("id", job_id)
        check_text("by", by)
        await self._durable.start()
        if not await self._durable.store.discard([job_id], by=by, now=self._now(), tenant=tenant):
            job = await self._jobs.get(job_id, tenant=tenant)
            raise StateConflict(f"job {job_id} is {job.state}, not a dead letter")

    async def discard_many(
        self,
        *,
        task: str | None = None,
        reason: Reason | str | None = None,
        model: str | None = None,
        error_class: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        by: str = "local",
        per_second: float = REPLAYS_PER_S,
        tenant: str = "local",
    ) -> AsyncIterator[int]:
        """Let go of all that match; as `replay_many`."""
        check_text("by", by)
        which = _filter(tenant, task, reason, model, error_class, since, until, required=True)
        _check_rate(per_second)
        store = self._durable.store
        async for done in self._in_bites(
            which,
            per_second,
            lambda jobs: store.discard([job.id for job in jobs], by=by, now=self._now(), tenant=tenant),
        ):
            yield done

    # ---- Inside ---------------------------------------------------------------------------------------

    async def _in_bites(
        self, which: JobFilter, per_second: float, act: Callable[..., Any]
    ) -> AsyncIterator[int]:
        """From the newest to the oldest, each once, although those acted on are no dead letters any more."""
        await self._durable.start()
        bite = max(1, min(BITE, int(per_second)))
        done, after = 0, None
        while page := await self._durable.store.select(which, limit=bite, after=after):
            after = page[-1].id
            done += len(await act(page))
            yield done
            await self._clock.sleep(len(page) / per_second)

    async def _replay(
        self, jobs: Sequence[Job], by: str, tenant: str, new_input: bytes | None
    ) -> Sequence[str]:
        now = self._now()
        replayed = await self._durable.store.replay(
            [job.id for job in jobs],
            by=by,
            now=now,
            expires_after_s=self._durable.rules.expires_after_s,
            tenant=tenant,
            new_input=new_input,
        )
        if replayed:
            ended = {job.id: job.finished_at for job in jobs if job.finished_at is not None}
            waited_s = tuple(max(0.0, now - ended[one].timestamp()) for one in replayed if one in ended)
            self._emit(events.JobsReplayed(by=by, count=len(replayed), waited_s=waited_s))
        return replayed

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _why_not(job: Job) -> str:
    if job.state is JobState.DEAD_LETTER:
        return f"job {job.id} is not replayed: another job with dedup_key {job.dedup_key!r} is at work"
    return f"job {job.id} is {job.state}, not a dead letter"


def _filter(
    tenant: str,
    task: str | None,
    reason: Reason | str | None,
    model: str | None,
    error_class: str | None,
    since: datetime | None,
    until: datetime | None,
    *,
    required: bool = False,
) -> JobFilter:
    if required and not any((task, reason, model, error_class, since, until)):
        raise InvalidRequest("say which: task, reason, model, error_class, since or until", param="filter")
    return JobFilter(
        tenant=tenant,
        state=JobState.DEAD_LETTER,
        task=task,
        reason=None if reason is None else _reason(reason),
        model=model,
        error_class=error_class,
        since=_moment("since", since),
        until=_moment("until", until),
    )


def _reason(reason: Reason | str) -> str:
    try:
        return str(Reason(reason))
    except ValueError:
        raise InvalidRequest(
            f"reason must be one of {', '.join(Reason)}, not {reason!r}", param="reason"
        ) from None


def _moment(name: str, moment: object) -> float | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidRequest(f"{name} must be a datetime with its time zone, not {moment!r:.60}", param=name)
    return moment.timestamp()


def _check_rate(per_second: object) -> None:
    if (
        isinstance(per_second, bool)
        or not isinstance(per_second, int | float)
        or not 0 < per_second <= 10_000
    ):
        raise InvalidRequest("per_second must be a number above 0 and at most 10,000", param="per_second")
