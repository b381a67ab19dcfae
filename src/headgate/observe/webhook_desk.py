"""Webhooks, as people use them: the secret to check signatures with, redelivery, addresses that were disabled, alerts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headgate.core.errors import StateConflict
from headgate.core.job import Ended, Job, JobState, NewJob
from headgate.core.messages import check_text
from headgate.core.ports.clock import Clock
from headgate.core.webhook import TASK, Message, WebhookEvent, delivery, encode_payload
from headgate.observe.webhooks import DISABLED, Webhooks, address_id
from headgate.runner.durable import Durable
from headgate.runner.jobs import JobHandle, Jobs


class WebhookDesk:
    """`gateway.webhooks`."""

    def __init__(
        self, webhooks: Webhooks, durable: Durable, jobs: Jobs, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        self._webhooks = webhooks
        self._durable = durable
        self._jobs = jobs
        self._clock = clock
        self._new_id = new_id

    async def secret(self, *, tenant: str = "local") -> str:
        """`whsec_…`: with it this tenant's receivers check that a message is from here."""
        check_text("tenant", tenant)
        await self._durable.start()
        return self._webhooks.secret(tenant)

    async def list(
        self, *, limit: int = 100, after: str | None = None, tenant: str = "local"
    ) -> Sequence[Job]:
        """Deliveries, newest first; their metadata says of what."""
        return await self._jobs.list(task=TASK, limit=limit, after=after, tenant=tenant)

    async def redeliver(self, job_id: str, *, tenant: str = "local") -> JobHandle:
        """Deliver again, under the same `webhook-id`: what a delivery's id names, or the end of a job.

        Of a job with an address of its own that is where it goes, else to the settings'. `StateConflict` when the job
        has not ended in a way that is told, or nobody would be told.
        """
        job = await self._jobs.get(job_id, tenant=tenant)
        now = self._clock.utc().timestamp()
        again = self._same(job, now) if job.task == TASK else self._of_end(job, now)
        new_id = f"job_{int(now * 1000):012x}{self._new_id()[:20]}"
        return await self._accept(msgspec.structs.replace(again, id=new_id))

    async def enable(self, url: str, *, tenant: str = "local") -> bool:
        """Deliver to an address again that answered 410. False when it was not disabled."""
        await self._durable.start()
        return await self._durable.store.delete_record(tenant, DISABLED, address_id(url))

    async def alert(self, name: str, *, fired: bool, data: Mapping[str, Any]) -> JobHandle | None:
        """Tell the settings' address that an alert fired or cleared; None when nobody wants to hear of alerts."""
        rules = self._webhooks.rules
        event = WebhookEvent.ALERT_FIRED if fired else WebhookEvent.ALERT_CLEARED
        if rules.url is None or event.topic not in rules.events:
            return None
        now = self._clock.utc().timestamp()
        payload = encode_payload(event, now, {"alert": name, **data})
        message = Message(id=f"msg_{self._new_id()}", payload=payload)
        return await self._accept(
            delivery(message, event, subject=name, tenant="local", now=now, rules=rules)
        )

    def _same(self, job: Job, now: float) -> NewJob:
        given, told = job.input, job.metadata
        message = Message(
            id=given["id"], payload=msgspec.Raw(msgspec.json.encode(given["payload"])), url=given["url"]
        )
        event, subject = WebhookEvent(told["event"]), told["subject"]
        return delivery(
            message, event, subject=subject, tenant=job.tenant, now=now, rules=self._webhooks.rules
        )

    def _of_end(self, job: Job, now: float) -> NewJob:
        ended = None if job.finished_at is None else _ended(job, job.finished_at.timestamp())
        made = () if ended is None else self._webhooks.follow_ups(ended)
        if not made:
            raise StateConflict(
                f"nobody is told of job {job.id}: it is {job.state}, and deliveries are made of completed jobs and"
                " dead letters, to their webhook or to webhooks.url of the settings"
            )
        # Its own address comes last.
        life_s = made[-1].expires_at - made[-1].run_at
        return msgspec.structs.replace(made[-1], run_at=now, expires_at=now + life_s)

    async def _accept(self, new: NewJob) -> JobHandle:
        await self._durable.start()
        await self._durable.room.take(new.tenant, 1)
        await self._durable.store.accept([new], now=self._clock.utc().timestamp())
        return JobHandle(self._jobs, new.id, new.tenant)


def _ended(job: Job, finished_at: float) -> Ended:
    """The end of a job as it was when it came, from the record of it."""
    return Ended(
        id=job.id,
        task=job.task,
        tenant=job.tenant,
        model=job.model or "",
        state=job.state,
        generation=job.generation,
        revivals=job.revivals,
        reason=job.reason,
        error=job.error,
        error_class=job.error_class,
        attempts=job.attempts,
        result=msgspec.json.encode(job.result) if job.state is JobState.COMPLETED else None,
        webhook=job.webhook,
        metadata=None if job.metadata is None else msgspec.json.encode(job.metadata),
        finished_at=finished_at,
    )
