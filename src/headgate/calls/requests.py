"""From a call to its reply: whole or streamed, alone or in a micro-batch, and the one event that says how it ended."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from headgate.calls.call import Check, RoutedCall
from headgate.calls.dispatcher import Dispatcher, Served
from headgate.calls.microbatch import Gatherers
from headgate.calls.rescue import RescuedStream
from headgate.calls.streams import CallStream
from headgate.core import events
from headgate.core.answer import Answer, Reply, Usage
from headgate.core.call import OPERATIONS, Format, Lane, reserved_tokens
from headgate.core.errors import DuplicateRequest, HeadgateError, QueueFull, Refused, mark_reported
from headgate.core.outcomes import error_word
from headgate.core.retry import RetryPolicy
from headgate.formats import chat, completions, embeddings
from headgate.machine.context import SPEND, origin

LARGE_BYTES: Final = 1_000_000
"""To read, translate and write so much takes a while each: others get their turn in between."""


class Requests:
    """Takes calls to the dispatcher, knows which are in flight, and tells the listeners about every end."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.gatherers = Gatherers(self)
        self._clock = dispatcher.clock
        self._in_flight: set[str] = set()
        self._all_landed = asyncio.Event()
        self._closings: set[asyncio.Task[None]] = set()

    # ---- Ids in flight ----------------------------------------------------------------------------

    def take_off(self, call: RoutedCall) -> None:
        """An id names one request at a time."""
        if call.id in self._in_flight:
            raise DuplicateRequest(call.id)
        self._in_flight.add(call.id)

    def land(self, call: RoutedCall) -> None:
        self._in_flight.discard(call.id)
        if not self._in_flight:
            self._all_landed.set()

    async def landed(self, within_s: float) -> None:
        """Wait until nothing is in flight, but no longer than this."""
        if self._in_flight:
            self._all_landed.clear()
            try:
                async with asyncio.timeout(within_s):
                    await self._all_landed.wait()
            except TimeoutError:
                return

    def finish_later(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run what a dropped stream left to do; a task without a reference may be collected half-way."""
        task = asyncio.get_running_loop().create_task(closing, name="headgate stream closing")
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    # ---- Calls --------------------------------------------------------------------------------------

    def begin(
        self,
        request_id: str,
        model: str,
        fields: Mapping[str, Any],
        *,
        wanted: Format = Format.CHAT,
        size_bytes: int = 0,
        stream: bool = False,
        lane: Lane = Lane.INTERACTIVE,
        tenant: str = "local",
        agent_id: str | None = None,
        waits: bool = True,
        deadline_s: float | None = None,
        policy: RetryPolicy | None = None,
        check: Check | None = None,
        read: bool = True,
    ) -> RoutedCall:
        """A call with its route. Its deadline is the model's `total_s` or the caller's, whichever is sooner.

        What no provider could answer is an `InvalidRequest` here, before it takes a place in a queue.
        `read=False`: only the model and the size are known yet.
        """
        route = self.dispatcher.routes.find(model)
        now = self._clock.now()
        total_s = route.timeouts.total_s
        call = RoutedCall(
            id=request_id,
            model=model,
            format=wanted,
            fields=fields,
            size_bytes=size_bytes,
            stream=stream,
            lane=lane,
            tenant=tenant,
            agent_id=agent_id,
            waits=waits and route.wait,
            route=route,
            request_ids=(request_id,),
            started_at=now,
            since=now,
            deadline=now + (total_s if deadline_s is None else min(deadline_s, total_s)),
            plain=not stream and route.timeouts.first_token_s is None,
            policy=policy,
            check=check,
            origin=origin(),
            spend=SPEND.get(),
        )
        if read and (route.reads or not size_bytes):
            self._read(call)
        call.tokens = reserved_tokens(call)
        return call

    def begin_slot(
        self, request_id: str, model: str, *, lane: Lane, tenant: str, deadline_s: float | None
    ) -> RoutedCall:
        """A call that only wants a slot."""
        route = self.dispatcher.routes.find(model)
        now, total_s = self._clock.now(), route.timeouts.total_s
        return RoutedCall(
            id=request_id,
            model=model,
            fields={},
            lane=lane,
            tenant=tenant,
            waits=route.wait,
            route=route,
            request_ids=(request_id,),
            started_at=now,
            since=now,
            deadline=now + (total_s if deadline_s is None else min(deadline_s, total_s)),
            origin=origin(),
        )

    def _read(self, call: RoutedCall) -> None:
        """Its upstreams look inside, or it comes from the library's caller, whose values are not checked yet."""
        call.created = self._clock.utc().timestamp()
        if call.format is Format.EMBEDDINGS:
            texts = embeddings.read_request(call).texts
            if not call.size_bytes:
                # What is sent again is what was asked, whatever the caller does to its list.
                call.fields = {**call.fields, "input": texts}
        elif call.format is Format.COMPLETIONS:
            if call.route.reads:
                chat.read_request(completions.to_chat(call))
        else:
            chat.read_request(call)

    def check_room(self, call: RoutedCall) -> None:
        """Refuse a call of which only the model and the lane are known, where all its upstreams are full."""
        try:
            self.dispatcher.check_room(call)
        except Refused as error:
            self.failed(call, error)
            raise

    async def answer(self, call: RoutedCall, *, insist: bool = False) -> Reply:
        """The whole answer. A call that insists stays outside a full queue until there is room or no time left."""
        if call.size_bytes > LARGE_BYTES:
            await asyncio.sleep(0)
        self.take_off(call)
        try:
            gatherer = None
            if insist or call.route.gather is not None:
                gatherer = self.gatherers.find(call, insist=insist)
            if gatherer is not None:
                reply = await gatherer.ask(call)
            else:
                served = await (self.insist(call) if insist else self.dispatcher.run(call))
                served.upstream.gate.leave(served.ticket)
                assert isinstance(served.result, Answer)  # noqa: S101 - the call asked for one
                reply = self.reply(call, served.result, served.upstream.name)
        except asyncio.CancelledError:
            self.cancelled(call)
            raise
        except Exception as error:
            self.failed(call, error)
            raise
        finally:
            self.land(call)
        self.ended(call, upstream=reply.upstream, usage=reply.usage, cost_usd=reply.cost_usd)
        return reply

    def stream(self, call: RoutedCall) -> CallStream:
        """Nothing is sent before it is opened."""
        return (RescuedStream if call.route.stream_rescue else CallStream)(self, call)

    async def insist(self, call: RoutedCall) -> Served:
        while True:
            try:
                return await self.dispatcher.run(call)
            except QueueFull as refusal:
                if self._clock.now() + refusal.retry_after_s >= call.deadline:
                    raise
                await self._clock.sleep(refusal.retry_after_s)

    def reply(self, call: RoutedCall, answer: Answer, upstream: str) -> Reply:
        assert answer.usage is not None  # noqa: S101 - where the provider did not count, it was estimated
        return Reply(
            body=answer.body,
            usage=answer.usage,
            finish_reason=answer.finish_reason,
            request_id=call.id,
            model=call.model,
            upstream=upstream,
            attempts=call.attempts,
            latency_ms=(self._clock.now() - call.started_at) * 1000,
            queue_ms=call.queue_s * 1000,
            upstream_ms=call.upstream_s * 1000,
            cost_usd=call.answer_cost_usd,
        )

    # ---- How it ended -------------------------------------------------------------------------------

    def answered(self, call: RoutedCall, reply: Reply) -> None:
        self.ended(call, upstream=reply.upstream, usage=reply.usage, cost_usd=reply.cost_usd)

    def failed(self, call: RoutedCall, error: Exception) -> None:
        """Also for an unexpected exception: a fault of ours, `internal`."""
        if isinstance(error, HeadgateError):
            error.queue_ms, error.upstream_ms = call.queue_s * 1000, call.upstream_s * 1000
        mark_reported(error)
        self.ended(call, error=error_word(error))

    def cancelled(self, call: RoutedCall) -> None:
        self.dispatcher.emit(
            events.Cancelled(
                request_id=call.id,
                model=call.model,
                lane=call.lane,
                tenant=call.tenant,
                operation=OPERATIONS[call.format],
                origin=None if call.origin == call.id else call.origin,
            )
        )

    def ended(
        self,
        call: RoutedCall,
        *,
        upstream: str | None = None,
        usage: Usage | None = None,
        cost_usd: float | None = None,
        error: str | None = None,
    ) -> None:
        self.dispatcher.emit(
            events.Responded(
                request_id=call.id,
                agent_id=call.agent_id,
                model=call.model,
                upstream=upstream,
                lane=call.lane,
                attempts=call.attempts,
                latency_ms=(self._clock.now() - call.started_at) * 1000,
                queue_ms=call.queue_s * 1000,
                usage=usage,
                error=error,
                first_token_ms=None if call.first_token_s is None else call.first_token_s * 1000,
                cost_usd=cost_usd,
                tenant=call.tenant,
                upstream_ms=call.upstream_s * 1000,
                operation=OPERATIONS[call.format],
                # Over HTTP most requests are their own origin.
                origin=None if call.origin == call.id else call.origin,
                of_job=call.goes_back,
            )
        )
