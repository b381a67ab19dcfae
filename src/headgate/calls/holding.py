"""A slot held by the caller over several generations, so that a regeneration never queues again."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headgate.calls.call import RoutedCall
from headgate.calls.dispatcher import Served, deadline_passed
from headgate.calls.fields import chat_fields
from headgate.calls.requests import Requests
from headgate.calls.setback import from_failure
from headgate.calls.upstream import Failed
from headgate.core.answer import Answer, Reply
from headgate.core.call import Message
from headgate.core.errors import InvalidRequest, Preempted
from headgate.core.ticket import Place
from headgate.machine.context import REQUEST_IDS


class HeldSlot:
    """One acquired slot: one call at a time, without queueing. Failures are raised, nothing is retried."""

    def __init__(self, requests: Requests, call: RoutedCall, served: Served, deadline: float) -> None:
        self._requests = requests
        self._call = call
        self._upstream = served.upstream
        self._ticket = served.ticket
        self._deadline = deadline
        self._generations = 0
        self._generating = False
        self._left = False

    @property
    def id(self) -> str:
        return self._call.id

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
        if self._generating:
            raise InvalidRequest("this slot is generating already; a slot is one call at a time")
        if self.cancelled:
            raise Preempted(f"{self._upstream.name}: this slot was taken for an interactive call")
        self._check_held()
        call = self._next_call(messages, params)
        self._requests.take_off(call)
        self._generating = True
        try:
            return await self._generate(call)
        finally:
            self._generating = False
            self._requests.land(call)
            if self._left:
                self._upstream.gate.leave(self._ticket)

    def leave(self) -> None:
        """The holder's block is over; a generation somebody still waits for gives the slot back when it ends."""
        self._left = True
        if not self._generating:
            self._upstream.gate.leave(self._ticket)

    def _check_held(self) -> None:
        if self._left or self._ticket.place is not Place.HOLDING:
            raise InvalidRequest("this slot is no longer held; use it inside its `async with`")

    def _next_call(self, messages: Sequence[Message], params: Mapping[str, Any]) -> RoutedCall:
        """Each generation is timed by itself; the slot's own deadline, where one was given, bounds them all."""
        slot = self._call
        now = self._requests.dispatcher.clock.now()
        call = self._requests.begin(
            f"{self.id}-{self._generations + 1}",
            slot.model,
            chat_fields(messages, params),
            lane=slot.lane,
            tenant=slot.tenant,
        )
        call.deadline = min(self._deadline, now + self._upstream.timeouts.total_s)
        call.origin = slot.origin
        call.queue_s = 0.0 if self._generations else slot.queue_s
        self._ticket.tokens = call.tokens
        self._ticket.deadline = call.deadline
        return call

    async def _generate(self, call: RoutedCall) -> Reply:
        before = REQUEST_IDS.set(call.request_ids)
        try:
            answer = await self._in_time(call)
        except asyncio.CancelledError:
            self._requests.cancelled(call)
            raise
        except Exception as error:
            self._requests.failed(call, error)
            raise
        finally:
            REQUEST_IDS.reset(before)
        reply = self._requests.reply(call, answer, self._upstream.name)
        self._requests.answered(call, reply)
        return reply

    async def _in_time(self, call: RoutedCall) -> Answer:
        scope = asyncio.timeout_at(call.deadline)
        try:
            async with scope:
                return await self._attempt(call)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise deadline_passed(call, self._requests.dispatcher.clock.now()) from error

    async def _attempt(self, call: RoutedCall) -> Answer:
        gate = self._upstream.gate
        ready = gate.renew(self._ticket) if self._generations else gate.take_up(self._ticket)
        if not ready:
            # Nobody holds a slot while waiting for pacing or a pause: give it back, return at the head.
            gate.leave(self._ticket)
            await gate.enter(self._ticket, returning=True)
            self._check_held()
        self._generations += 1
        result = await self._upstream.attempt(self._ticket, call, 1)
        if isinstance(result, Failed):
            why = "a held slot does not retry by itself"
            raise from_failure(result, upstream=self._upstream.name, attempts=call.attempts, why=why).error
        assert isinstance(result, Answer)  # noqa: S101 - it was asked for one
        return result


async def _acquired(requests: Requests, call: RoutedCall) -> Served:
    """A slot that is not granted is a request that ends here; one that is granted ends with its generations."""
    try:
        return await requests.dispatcher.run(call, only_slot=True)
    except asyncio.CancelledError:
        requests.cancelled(call)
        raise
    except Exception as error:
        requests.failed(call, error)
        raise


@asynccontextmanager
async def hold_slot(requests: Requests, call: RoutedCall, deadline: float) -> AsyncIterator[HeldSlot]:
    """Wait for a slot, hand it out, and take it back whatever happens inside."""
    served = await _acquired(requests, call)
    # A holder that idles must not keep everybody out as the probe it happens to be.
    served.upstream.gate.put_down(served.ticket)
    slot = HeldSlot(requests, call, served, deadline)
    try:
        yield slot
    finally:
        slot.leave()
