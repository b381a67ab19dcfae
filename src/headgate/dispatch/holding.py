"""A slot held by the caller over several generations, so that a regeneration never queues again."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headgate.core.errors import HeadgateError, Preempted
from headgate.core.messages import Answer, Message, Reply, Request, check_request
from headgate.core.ticket import Place, Ticket
from headgate.dispatch.call import Call
from headgate.dispatch.dispatcher import deadline_passed
from headgate.dispatch.requests import Requests
from headgate.dispatch.setback import from_failure
from headgate.dispatch.upstream import Failed, Upstream
from headgate.dispatch.work import Complete


class HeldSlot:
    """One acquired slot. `generate_raw` calls the provider once, without queueing; failures are raised."""

    def __init__(self, requests: Requests, call: Call, upstream: Upstream, ticket: Ticket) -> None:
        self._requests = requests
        self._call = call
        self._upstream = upstream
        self._ticket = ticket
        self._generations = 0

    @property
    def id(self) -> str:
        return self._call.request_ids[0]

    @property
    def wait_s(self) -> float:
        """How long the slot was waited for."""
        return self._call.queue_s

    @property
    def cancelled(self) -> bool:
        """The slot was taken away for an interactive call; stop, and ask for another."""
        return self._ticket.preempted

    @property
    def upstream(self) -> str:
        return self._upstream.name

    async def generate_raw(self, messages: Sequence[Message], **params: Any) -> Reply:
        """One attempt on the upstream whose slot is held. Each further one needs a pacing token of its own."""
        if self.cancelled or self._ticket.place is not Place.HOLDING:
            raise Preempted(f"{self._upstream.name}: this slot is no longer held")
        request = Request(
            id=f"{self.id}-{self._generations + 1}",
            model=self._call.model,
            messages=messages,
            params=params,
            lane=self._call.lane,
            tenant=self._call.tenant,
        )
        check_request(request)
        return await self._generate(request)

    async def _come_back(self) -> None:
        """Nobody holds a slot while waiting for pacing or a pause: give it back, return at the head."""
        self._upstream.gate.leave(self._ticket)
        await self._upstream.gate.enter(self._ticket, returning=True)

    async def _generate(self, request: Request) -> Reply:
        try:
            result = await self._in_time(self._attempt(request))
        except asyncio.CancelledError:
            self._requests.cancelled(request)
            raise
        except HeadgateError as error:
            self._requests.failed(request, self._call, error)
            raise
        return self._requests.answered(request, self._call, result, self._upstream.name)

    async def _attempt(self, request: Request) -> Answer:
        if self._generations and not self._upstream.gate.renew(self._ticket):
            await self._come_back()
        self._generations += 1
        result = await self._upstream.attempt(self._ticket, self._call, Complete(request), self._generations)
        if isinstance(result, Failed):
            why = "a held slot does not retry by itself"
            raise from_failure(result, upstream=self._upstream.name, attempts=1, why=why).error
        return result

    async def _in_time(self, attempt: Coroutine[Any, Any, Answer]) -> Answer:
        scope = asyncio.timeout(self._upstream.timeouts.total_s)
        try:
            async with scope:
                return await attempt
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise deadline_passed(self._call, self._requests.dispatcher.clock.now()) from error


@asynccontextmanager
async def hold_slot(requests: Requests, call: Call) -> AsyncIterator[HeldSlot]:
    """Wait for a slot, hand it out, and take it back whatever happens inside."""
    served = await requests.dispatcher.acquire(call)
    try:
        yield HeldSlot(requests, call, served.upstream, served.ticket)
    finally:
        served.release()
