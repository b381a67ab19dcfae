"""From submissions to accepted jobs: room for them, their key, the store's answer, what is told of it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from headgate.core import events
from headgate.core.errors import BacklogFull, InvalidRequest, KeyMismatch, RecordExists
from headgate.core.idempotency import KeyClaim, KeyOutcome, Run, Unknown, kept_conflict
from headgate.core.job import Accepted, NewJob, Submitted
from headgate.core.ports.clock import Clock
from headgate.core.record import RecordWrite
from headgate.runner.durable import Durable
from headgate.runner.payloads import fingerprinted
from headgate.runner.submission import ENDPOINT, MOST_AT_ONCE, Submission, at_index

LOOK_S: Final = 5.0


class Submitting:
    """The way in, for one job or for a list."""

    def __init__(self, durable: Durable, clock: Clock, emit: Callable[[events.Event], None]) -> None:
        self._durable = durable
        self._clock = clock
        self._emit = emit

    async def one(
        self,
        asked: Submission,
        unkeyed_metadata: dict[str, Any] | None,
        *,
        tenant: str,
        idempotency_key: str | None,
        endpoint: str,
        records: Sequence[RecordWrite],
    ) -> Submitted:
        if not self._durable.started:
            await self._durable.start()
        now = self._now()
        key = None
        if idempotency_key is not None:
            body = fingerprinted(asked, what="the submission")
            key = self._durable.key_claim(idempotency_key, body, endpoint=endpoint, now=now)
        if unkeyed_metadata is not None:
            metadata = {**(asked.metadata or {}), **unkeyed_metadata}
            asked = msgspec.structs.replace(asked, metadata=metadata)
        job = self._durable.intake.job(asked, tenant=tenant, now=now, key=key, records=records)
        return (await self._accept([job], endpoint))[0]

    async def many(
        self,
        asked: Sequence[Submission],
        *,
        tenant: str,
        idempotency_key: str | None = None,
        endpoint: str = ENDPOINT,
        records: Sequence[RecordWrite] = (),
        batch_id: str | None = None,
        revivable: bool = True,
        inside: bool = False,
        bounded: bool = True,
    ) -> Sequence[Submitted]:
        """All or none; an error names the index of the one that is wrong.

        `bounded=False`: whatever the tenant stores, and however full the disk is.
        """
        if not 0 < len(asked) <= MOST_AT_ONCE:
            raise InvalidRequest(f"submit 1 to {MOST_AT_ONCE:,} jobs at a time, not {len(asked):,}")
        await self._durable.start()
        now = self._now()
        jobs = []
        for index, one in enumerate(asked):
            with at_index(index):
                job = self._durable.intake.job(
                    one,
                    tenant=tenant,
                    now=now,
                    position=index,
                    records=() if index else records,
                    batch_id=batch_id,
                    revivable=revivable,
                    inside=inside,
                )
            jobs.append(job)
        if idempotency_key is not None:
            body = fingerprinted(asked, what="the submissions")
            key = self._durable.key_claim(idempotency_key, body, endpoint=endpoint, now=now)
            jobs = [_under(key, index, job) for index, job in enumerate(jobs)]
        return await self._accept(jobs, endpoint, bounded=bounded)

    async def _accept(
        self, jobs: Sequence[NewJob], endpoint: str, *, bounded: bool = True
    ) -> Sequence[Submitted]:
        durable, now = self._durable, self._now()
        try:
            await durable.room.take(jobs[0].tenant, len(jobs))
        except BacklogFull:
            # A repeat needs no room: its jobs are there already. Those of a list were all taken, or none was.
            if not await self._is_repeat(jobs[0]):
                raise
        try:
            if bounded:
                async with durable.quota.bound() as quota:
                    accepted = await self._accept_or_keep(jobs, quota, now)
            else:
                accepted = await self._accept_or_keep(jobs, None, now)
        except KeyMismatch:
            self._emit(events.KeyUsed(endpoint=endpoint, outcome=KeyOutcome.MISMATCH))
            raise
        except RecordExists as error:
            if jobs[0].key is not None:
                outcome = KeyOutcome.REPLAYED if error.replayed else KeyOutcome.RAN
                self._emit(events.KeyUsed(endpoint=endpoint, outcome=outcome))
            raise
        if jobs[0].key is not None:
            # Of a list under one key all were taken now, or all before.
            outcome = KeyOutcome.RAN if accepted[0].created else KeyOutcome.REPLAYED
            self._emit(events.KeyUsed(endpoint=endpoint, outcome=outcome))
        for job, answer in zip(jobs, accepted, strict=True):
            self._emit(
                events.JobAccepted(
                    job_id=answer.id,
                    task=job.task,
                    model=job.model or None,
                    tenant=job.tenant,
                    created=answer.created,
                )
            )
        return [
            Submitted(answer.id, answer.created, job, now) for job, answer in zip(jobs, accepted, strict=True)
        ]

    async def _accept_or_keep(
        self, jobs: Sequence[NewJob], quota: int | None, now: float
    ) -> Sequence[Accepted]:
        """That a record exists already is an answer, too, and is kept under the key as a job would be."""
        store = self._durable.store
        try:
            return await store.accept(jobs, now=now, quota=quota)
        except RecordExists as error:
            first = jobs[0]
            if first.key is None or error.replayed:
                raise
            status, body = kept_conflict(error)
            verdict = await store.keep_answer(
                first.tenant, first.key, status=status, body=body, now=self._now()
            )
            if isinstance(verdict, Run):
                raise
        # Another request under this key was faster: the key decides now.
        return await store.accept(jobs, now=self._now(), quota=quota)

    async def _is_repeat(self, job: NewJob) -> bool:
        """Whether its key was used before. To look means to take a free key for a moment and to give it back."""
        if job.key is None:
            return False
        now, store = self._now(), self._durable.store
        # It expires by itself in case we die in between.
        look = msgspec.structs.replace(job.key, expires_at=now + LOOK_S)
        node = self._durable.node.id
        verdict = await store.reserve(job.tenant, look, node=node, unknown=Unknown.RERUN, now=now)
        if isinstance(verdict, Run):
            await store.free(job.tenant, look, verdict.lease)
            return False
        return True

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _under(key: KeyClaim, index: int, job: NewJob) -> NewJob:
    """One key for a list: each job has its own place under it, and all of them guard the whole list.

    The first has the place of a submission that is no list: whichever comes second is another request.
    """
    place = msgspec.structs.replace(key, endpoint=f"{key.endpoint}[{index}]") if index else key
    return msgspec.structs.replace(job, key=place)
