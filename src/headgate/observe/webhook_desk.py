"""Webhooks, as people use them: the secret to check signatures with, redelivery, addresses that were disabled, alerts."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from headgate.core.call import check_text
from headgate.core.errors import StateConflict
from headgate.core.job import Ended, Job, JobState
from headgate.core.ports.clock import Clock
from headgate.core.webhook import DELIVERY_EXPIRES_S, TASK, Message, WebhookEvent, encode_payload, metadata_of
from headgate.core.webhook_wire import ALERTS
from headgate.observe.webhooks import DISABLED, Webhooks, address_id
from headgate.runner.durable import Durable
from headgate.runner.jobs import JobHandle, Jobs
from headgate.runner.submission import Submission


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

    async def secret(self, *, tenant: str = "local", alerts: bool = False) -> str:
        """`whsec_…`: with it this tenant's receivers, or those of alerts, check that a message is from here."""
        owner = await self._owner(tenant, alerts=alerts)
        return (await self._webhooks.secrets.in_force(owner))[0]

    async def rotate(self, *, tenant: str = "local", alerts: bool = False) -> str:
        """A new secret. For 24 hours messages carry the signature of the old one as well."""
        owner = await self._owner(tenant, alerts=alerts)
        return await self._webhooks.secrets.rotate(owner)

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
        if job.task == TASK:
            return await self._submit(job.input, job.metadata, tenant)
        made = () if job.finished_at is None else self._webhooks.follow_ups(_ended(job, job.finished_at))
        if not made:
            raise StateConflict(
                f"nobody is told of job {job.id}: it is {job.state}, and deliveries are made of completed jobs and"
                " dead letters, to their webhook or to webhooks.url of the settings"
            )
        # Its own address comes last.
        new = made[-1]
        return await self._submit(
            msgspec.json.decode(new.input), msgspec.json.decode(new.metadata or b""), tenant
        )

    async def enable(self, url: str, *, tenant: str = "local") -> bool:
        """Deliver to an address again that answered 410. False when it was not disabled."""
        await self._durable.start()
        return await self._durable.store.delete_record(tenant, DISABLED, address_id(url))

    async def alert(self, name: str, *, fired: bool, data: Mapping[str, Any]) -> JobHandle | None:
        """Tell the settings' address that an alert fired or cleared; None when nobody wants to hear of alerts."""
        rules = self._webhooks.rules
        event = WebhookEvent.ALERT_FIRED if fired else WebhookEvent.ALERT_CLEARED
        if self._webhooks.alert_url is None and (rules.url is None or event.topic not in rules.events):
            return None
        now = self._clock.utc().timestamp()
        payload = encode_payload(event, now, {"alert": name, **data})
        message = Message(id=f"msg_{self._new_id()}", payload=payload, alert=True)
        # An operator must hear of a full disk, too.
        return await self._submit(message, metadata_of(message, event, name), tenant="local", bounded=False)

    async def _owner(self, tenant: str, *, alerts: bool) -> str:
        check_text("tenant", tenant)
        await self._durable.start()
        return ALERTS if alerts else tenant

    async def _submit(
        self, message: Any, metadata: dict[str, Any], tenant: str, *, bounded: bool = True
    ) -> JobHandle:
        asked = Submission(task=TASK, input=message, expires_after_s=DELIVERY_EXPIRES_S, metadata=metadata)
        (handle,) = await self._jobs.submit_inside([asked], tenant=tenant, revivable=False, bounded=bounded)
        return handle


def _ended(job: Job, finished_at: datetime) -> Ended:
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
        batch_id=job.batch_id,
        finished_at=finished_at.timestamp(),
    )
