"""The library's face: direct calls, jobs, dead letters, batches, files, records, status. It is handed its parts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from headgate.batches import Batches, Files
from headgate.calls.keyed import KeyedRequests
from headgate.calls.models import Models
from headgate.calls.once import Once
from headgate.calls.requests import Requests
from headgate.calls.routes import Routes
from headgate.calls.status import QueueStatus, queue_status
from headgate.core import events
from headgate.core.errors import InvalidRequest
from headgate.core.ports.clock import Clock
from headgate.core.waiting import WaitingBytes
from headgate.direct import DirectCalls
from headgate.observe.fanout import EventFanout
from headgate.observe.webhook_desk import WebhookDesk
from headgate.observe.webhooks import Webhooks
from headgate.runner.bulk import BulkJobs
from headgate.runner.dead_letters import DeadLetters
from headgate.runner.durable import Durable
from headgate.runner.jobs import Jobs
from headgate.runner.records import Records

DRAIN_S: Final = 30.0


class Gateway(DirectCalls):
    """Dependable calls to the configured models. Make one with `headgate.open(settings)`."""

    def __init__(
        self,
        routes: Routes,
        requests: Requests,
        durable: Durable,
        webhooks: Webhooks,
        files: Files,
        *,
        bodies: WaitingBytes,
        clock: Clock,
        new_id: Callable[[], str],
        fanout: EventFanout,
        close_parts: Callable[[], Awaitable[None]],
        reload: Callable[[Any], None],
    ) -> None:
        once = Once(durable.store, durable.idempotency, durable.node, clock, fanout, durable.quota)
        keyed = KeyedRequests(requests, once, durable.join)
        super().__init__(routes, requests, keyed, clock=clock, new_id=new_id)
        self._once = once
        self._close_parts = close_parts
        self._reload = reload
        self.jobs = Jobs(durable, clock, fanout)
        self.dead_letters = DeadLetters(durable, self.jobs, clock, fanout)
        self.bulk = BulkJobs(durable, self.jobs, self.dead_letters)
        self.records = Records(durable, clock)
        self.webhooks = WebhookDesk(webhooks, durable, self.jobs, clock, new_id)
        self.models = Models(routes, durable.store, durable.start, clock, fanout)
        self.files = files
        self.bodies = bodies
        """Of requests that are being read and of calls that wait, counted against `limits.waiting_bytes`."""
        self.batches = Batches(self.jobs, files, durable, clock=clock, check_model=routes.check)
        self._fanout = fanout
        self._durable = durable

    def status(self, tenant: str = "local") -> QueueStatus:
        """Queues and slots of all gates, summed and one by one; `accepting` as this tenant's calls would find it."""
        return queue_status(self.routes.known(), tenant)

    def now(self) -> float:
        """Epoch seconds, by the gateway's clock."""
        return self._clock.utc().timestamp()

    def listen(self, listener: events.Listener) -> Callable[[], None]:
        """Hear every event; returns what ends it. A listener must answer at once: it runs inside the calls."""
        if not callable(listener):
            raise InvalidRequest("a listener must be callable", param="listener")
        return self._fanout.listen(listener)

    def emit(self, event: events.Event) -> None:
        """Hand an event to all listeners."""
        self._fanout(event)

    def reload(self, settings: Any) -> None:
        """Take over the models of other settings, read and checked.

        Unchanged models keep their queues and their state, except that misconfigured upstreams are called again at once.
        """
        self._reload(settings)

    @property
    def durable(self) -> Durable:
        """The durable half, for those who run it: its store, node, tasks and worker."""
        return self._durable

    async def work(self) -> None:
        """Run jobs in this process from now on. Calling it again changes nothing."""
        await self.models.watch()
        await asyncio.gather(self.files.sweep(), self._durable.work())

    async def landed(self, within_s: float) -> None:
        """Wait until no call is on its way, but no longer than this."""
        await self.requests.landed(within_s)

    async def aclose(self, drain_s: float = DRAIN_S) -> None:
        """Refuse new calls, dismiss those who wait, let those in flight finish for a while, close everything.

        Jobs that have not finished by then go back to waiting and lose no attempt.
        """
        self.routes.close()
        working = asyncio.ensure_future(self._durable.stop_working(drain_s))
        await self.requests.gatherers.aclose()
        await self.requests.landed(drain_s)
        await working
        await self.models.aclose()
        await self._once.aclose()
        await self._durable.aclose()
        for route in self.routes.known():
            for upstream in route.upstreams:
                await upstream.aclose()
        await self._close_parts()
