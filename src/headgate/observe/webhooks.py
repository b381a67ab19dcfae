"""Webhooks, as durable jobs: what the end of a job brings, and the task that delivers it.

The jobs are written with the end itself, so none is lost and none is doubled; what they may do and when they try again
is decided in `core/webhook` and `core/webhook_wire`.
"""

import hashlib
import logging
from collections.abc import Callable
from typing import Final

from headgate.core import events
from headgate.core.batch_order import BATCH_TASK
from headgate.core.errors import InvalidRequest, ProviderFailure, SettingsError
from headgate.core.job import Ended, NewJob
from headgate.core.ports.clock import Chance, Clock
from headgate.core.ports.store import Store
from headgate.core.webhook import GRACE_S, TASK, Message, WebhookRules, deliveries
from headgate.core.webhook_wire import (
    ALERTS,
    SCHEDULE,
    Verdict,
    failure_of,
    signed_headers,
    verdict,
)
from headgate.machine.secret_key import SecretKey
from headgate.observe.receivers import Receiver, Receivers
from headgate.observe.webhook_secrets import WebhookSecrets
from headgate.runner.context import Context
from headgate.runner.outcomes import RetryLater, Skip
from headgate.runner.tasks import Task, TaskTable
from headgate.transport import Fetcher, FetchRules, Posted
from headgate.transport.endpoint import split_url
from headgate.transport.errors import UrlRefused
from headgate.transport.guard import why_host_refused

logger = logging.getLogger("headgate")
DISABLED: Final = "webhooks.disabled"
"""The collection of addresses that answered 410, per tenant."""
BUSY_S: Final = 1.0
NO_KEY_S: Final = 60.0
"""How long a delivery waits that this node cannot sign."""
_USER_AGENT: Final = (b"user-agent", b"headgate")


class Webhooks:
    """Makes deliveries and carries them out. An operator's URL is trusted; one that came with a job is guarded."""

    def __init__(
        self,
        rules: WebhookRules,
        store: Store,
        tasks: TaskTable,
        *,
        clock: Clock,
        chance: Chance,
        emit: Callable[[events.Event], None],
        most_at_once: int,
        secret_key: SecretKey,
        alert_url: str | None = None,
    ) -> None:
        self.rules = rules
        self.alert_url = alert_url
        """The operator's, for alerts alone; None: they go where all else goes."""
        self.task = Task(
            TASK, self._deliver, model=None, retry=SCHEDULE, timeout_s=rules.timeout_s + GRACE_S, inside=True
        )
        self._store = store
        self._tasks = tasks
        self._clock = clock
        self._chance = chance
        self._emit = emit
        self._receivers = Receivers(most_at_once)
        self.secrets = WebhookSecrets(store, secret_key, clock)

    def follow_ups(self, ended: Ended) -> tuple[NewJob, ...]:
        """What is to be written with the end of a job.

        A batch is told of as a whole, not line by line; Headgate's other jobs are told of to nobody.
        """
        task = self._tasks.get(ended.task)
        is_ours = task is not None and task.inside and ended.task != BATCH_TASK
        return () if is_ours or ended.batch_id is not None else deliveries(ended, self.rules)

    def check_url(self, url: str) -> None:
        """Refuse at once what no delivery could use. Where a name leads is looked at when it is needed."""
        try:
            origin, _ = split_url(url)
        except UrlRefused as error:
            raise InvalidRequest(f"webhook: {error.failure.message}", param="webhook") from error
        why = why_host_refused(origin.host, allow_private=self.rules.allow_private)
        if why is not None:
            raise InvalidRequest(
                f"webhook: {origin} is {why}; such addresses are not called for others (webhooks.allow_private)",
                param="webhook",
            )

    # ---- The task ---------------------------------------------------------------------------------------

    async def _deliver(self, ctx: Context, message: Message) -> dict[str, int]:
        url = message.url or (self.alert_url if message.alert else None) or self.rules.url
        if url is None:
            raise self._skip(ctx, "no webhooks.url is set any more")
        tenant = ctx.job.tenant
        disabled = await self._store.get_record(tenant, DISABLED, address_id(url))
        if disabled is not None:
            since = disabled.created_at.isoformat(timespec="seconds")
            raise self._skip(ctx, f"the address is disabled since {since}: it answered 410")
        answer = await self._send(ctx, message, url)
        if verdict(answer.status) is Verdict.GONE:
            # Written with the end of this delivery: both or neither.
            ctx.save(DISABLED, address_id(url), {"url": message.url})
            raise Skip("it answered 410: this address gets nothing more until it is enabled again")
        return {"status": answer.status}

    async def _send(self, ctx: Context, message: Message, url: str) -> Posted:
        """One attempt. Raises what the job machine makes a failure of."""
        # The operator's address is one for everybody; a stranger's is looked at for each tenant apart.
        owner = None if message.url is None else ctx.job.tenant
        receiver = Receiver(owner, str(split_url(url)[0]))
        self._stand_back_from(receiver)
        started, outcome = self._clock.now(), str(Verdict.FAILED)
        self._receivers.enter(receiver)
        try:
            answer = await self._post(ctx, message, url)
            outcome = str(verdict(answer.status))
        except UrlRefused:
            outcome = "refused"
            raise
        finally:
            took_s = self._clock.now() - started
            self._receivers.leave(receiver, answered_well=outcome != Verdict.FAILED, took_s=took_s)
            self._tell(ctx, outcome, duration_ms=took_s * 1000)
        if outcome == Verdict.FAILED:
            failure = failure_of(
                answer.status, answer.headers, receiver=receiver.origin, now=self._clock.utc()
            )
            raise ProviderFailure(failure)
        return answer

    def _stand_back_from(self, receiver: Receiver) -> None:
        """Deliveries share the workers with all other jobs. To come back later costs no attempt.

        The tenant reads why, so it says nothing of what others have on their way.
        """
        spread = 0.5 + self._chance()
        if not self._receivers.has_place(receiver.tenant):
            raise RetryLater(BUSY_S * spread, "there is no free place for this delivery yet")
        if not self._receivers.has_room(receiver):
            wait_s = self.rules.timeout_s * spread
            raise RetryLater(wait_s, f"{receiver.origin} is slow or down: it gets few deliveries at a time")

    async def _post(self, ctx: Context, message: Message, url: str) -> Posted:
        trusted = message.url is None
        if trusted and self.rules.secret is not None:
            secrets: tuple[str, ...] = (self.rules.secret,)
        else:
            secrets = await self._secrets_of(ALERTS if message.alert else ctx.job.tenant)
        payload = bytes(message.payload)
        headers = signed_headers(message.id, payload, secrets=secrets, now=ctx.now())
        rules = FetchRules(
            allow_private=trusted or self.rules.allow_private,
            ports=None,
            total_s=self.rules.timeout_s,
            tenant=None if trusted else ctx.job.tenant,
        )
        with self._clock.outside():
            return await Fetcher(rules).post(url, payload, [*headers, _USER_AGENT])

    async def _secrets_of(self, owner: str) -> tuple[str, ...]:
        try:
            return await self.secrets.in_force(owner)
        except SettingsError as error:
            # A node that has the key delivers it, or this one does once its operator has set it right.
            logger.error("webhooks cannot be signed: %s", error)  # noqa: TRY400 - the error says it all
            raise RetryLater(
                NO_KEY_S, "this node lacks the key that webhook secrets are encrypted with"
            ) from error

    def _skip(self, ctx: Context, why: str) -> Skip:
        self._tell(ctx, "skipped")
        return Skip(why)

    def _tell(self, ctx: Context, outcome: str, *, duration_ms: float = 0.0) -> None:
        self._emit(
            events.WebhookAttempted(
                job_id=ctx.job.id,
                tenant=ctx.job.tenant,
                attempt=ctx.job.attempt,
                outcome=outcome,
                duration_ms=duration_ms,
            )
        )


def address_id(url: str) -> str:
    """A record's id has no room for every URL."""
    return hashlib.sha256(url.encode()).hexdigest()
