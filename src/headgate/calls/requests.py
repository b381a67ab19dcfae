"""Whole requests: from a request to its reply, and the one event that says how it ended."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from headgate.calls.call import AnyRequest, Call
from headgate.calls.dispatcher import Dispatcher, Served
from headgate.calls.routes import Route
from headgate.calls.work import Check, Complete, Embed, Work
from headgate.core import events
from headgate.core.embeddings import EmbeddingReply, EmbeddingRequest, Embeddings, estimate_embedding_usage
from headgate.core.errors import DuplicateRequest, HeadgateError, QueueFull, mark_reported
from headgate.core.messages import Answer, Reply, Request, Usage, estimate_usage
from headgate.core.outcomes import error_word
from headgate.core.retry import RetryPolicy
from headgate.machine.context import SPEND, origin

T = TypeVar("T")


class Requests:
    """Completes and embeds single requests, knows which are in flight, and tells the listeners about every end."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._clock = dispatcher.clock
        self._in_flight: set[str] = set()
        self._all_landed = asyncio.Event()
        self._closings: set[asyncio.Task[None]] = set()

    # ---- Ids in flight ----------------------------------------------------------------------------

    def take_off(self, request: AnyRequest) -> None:
        """An id names one request at a time."""
        if request.id in self._in_flight:
            raise DuplicateRequest(request.id)
        self._in_flight.add(request.id)

    def land(self, request: AnyRequest) -> None:
        self._in_flight.discard(request.id)
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
        """Run what a dropped stream left to do; a task that nobody refers to may be collected half-way."""
        task = asyncio.get_running_loop().create_task(closing, name="headgate stream closing")
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    # ---- One request --------------------------------------------------------------------------------

    def call(
        self,
        request: AnyRequest,
        *,
        deadline_s: float | None,
        policy: RetryPolicy | None = None,
        route: Route | None = None,
    ) -> Call:
        """The request's envelope; its deadline is the model's `total_s` or the caller's, whichever is sooner."""
        total_s = (route or self.dispatcher.routes.find(request.model)).timeouts.total_s
        now = self._clock.now()
        patience_s = total_s if deadline_s is None else min(deadline_s, total_s)
        call = Call.of(request, started_at=now, deadline=now + patience_s, policy=policy)
        call.origin = origin()
        call.spend = SPEND.get()
        return call

    async def run(self, call: Call, work: Work[T], *, insist: bool = False) -> Served[T]:
        """Dispatch a call. One that insists stands outside a full queue until there is room or no time left."""
        while True:
            try:
                return await self.dispatcher.run(call, work)
            except QueueFull as refusal:
                if not insist or self._clock.now() + refusal.retry_after_s >= call.deadline:
                    raise
                await self._clock.sleep(refusal.retry_after_s)

    async def complete(
        self,
        request: Request,
        call: Call,
        check: Check | None = None,
        *,
        insist: bool = False,
        changes: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        work = Complete(request, check, self.first_token_s(request), changes)
        served = await self.serve(request, call, work, insist=insist)
        reply = self.reply(request, call, served.result, served.upstream.name)
        self.answered(request, call, reply)
        return reply

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingReply:
        served = await self.serve(request, call, Embed(request, self.first_token_s(request)))
        reply = self._embedding_reply(request, call, served.result, served.upstream.name)
        self.answered(request, call, reply)
        return reply

    async def serve(
        self, request: AnyRequest, call: Call, work: Work[T], *, insist: bool = False
    ) -> Served[T]:
        """A whole result, its slot given back; an end without one is told here."""
        try:
            served = await (self.run(call, work, insist=True) if insist else self.dispatcher.run(call, work))
        except asyncio.CancelledError:
            self.cancelled(request, call)
            raise
        except Exception as error:
            self.failed(request, call, error)
            raise
        served.release()
        return served

    def first_token_s(self, request: AnyRequest) -> float | None:
        return self.dispatcher.routes.find(request.model).timeouts.first_token_s

    def first_token_of_streams_s(self, model: str) -> float:
        return self.dispatcher.routes.find(model).timeouts.stream_first_token_s

    def reply(self, request: Request, call: Call, answer: Answer, upstream: str) -> Reply:
        return Reply(
            request_id=request.id,
            model=request.model,
            upstream=upstream,
            content=answer.content,
            tool_calls=answer.tool_calls,
            refusal=answer.refusal,
            finish_reason=answer.finish_reason,
            usage=answer.usage or estimate_usage(request, answer.content or ""),
            attempts=call.attempts,
            latency_ms=(self._clock.now() - call.started_at) * 1000,
            queue_ms=call.queue_s * 1000,
        )

    def _embedding_reply(
        self, request: EmbeddingRequest, call: Call, answer: Embeddings, upstream: str
    ) -> EmbeddingReply:
        return EmbeddingReply(
            request_id=request.id,
            model=request.model,
            upstream=upstream,
            vectors=answer.vectors,
            usage=answer.usage or estimate_embedding_usage(request),
            attempts=call.attempts,
            latency_ms=(self._clock.now() - call.started_at) * 1000,
            queue_ms=call.queue_s * 1000,
        )

    # ---- How it ended -------------------------------------------------------------------------------

    def answered(self, request: AnyRequest, call: Call, reply: Reply | EmbeddingReply) -> None:
        cost_usd = self._cost(request.model, reply.upstream, reply.usage)
        self.ended(request, call, upstream=reply.upstream, usage=reply.usage, cost_usd=cost_usd)

    def failed(self, request: AnyRequest, call: Call, error: Exception) -> None:
        """Also for an unexpected exception: a fault of ours, `internal`."""
        if isinstance(error, HeadgateError):
            error.queue_ms, error.upstream_ms = call.queue_s * 1000, call.upstream_s * 1000
        mark_reported(error)
        self.ended(request, call, error=error_word(error))

    def cancelled(self, request: AnyRequest, call: Call) -> None:
        self.dispatcher.emit(
            events.Cancelled(
                request_id=request.id,
                model=request.model,
                lane=request.lane,
                tenant=request.tenant,
                operation=request.operation,
                origin=_other(request, call),
            )
        )

    def ended(
        self,
        request: AnyRequest,
        call: Call,
        *,
        upstream: str | None = None,
        usage: Usage | None = None,
        cost_usd: float | None = None,
        error: str | None = None,
    ) -> None:
        self.dispatcher.emit(
            events.Responded(
                request_id=request.id,
                agent_id=request.agent_id,
                model=request.model,
                upstream=upstream,
                lane=request.lane,
                attempts=call.attempts,
                latency_ms=(self._clock.now() - call.started_at) * 1000,
                queue_ms=call.queue_s * 1000,
                usage=usage,
                error=error,
                first_token_ms=None if call.first_token_s is None else call.first_token_s * 1000,
                cost_usd=cost_usd,
                tenant=request.tenant,
                upstream_ms=call.upstream_s * 1000,
                operation=request.operation,
                origin=_other(request, call),
                of_job=call.goes_back,
            )
        )

    def _cost(self, model: str, name: str, usage: Usage) -> float | None:
        for upstream in self.dispatcher.routes.find(model).upstreams:
            if upstream.name == name:
                return upstream.cost(usage)
        return None


def _other(request: AnyRequest, call: Call) -> str | None:
    """Over HTTP most requests are their own origin."""
    return None if call.origin == request.id else call.origin
