"""Requests in OpenAI's format from end to end: whole or streamed, under an idempotency key or without."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

import msgspec

from headgate.calls.call import Announce, Call
from headgate.calls.keyed_stream import Broadcast, KeyedStream
from headgate.calls.once import Asking, Once
from headgate.calls.relay import Relay, RelayStream, wire_for
from headgate.calls.requests import Requests
from headgate.calls.rescue import RescuedStream
from headgate.calls.routes import Route
from headgate.calls.translation import from_answer, to_request
from headgate.core.errors import Refused
from headgate.core.messages import Answer, Reply, Request
from headgate.core.ports.clock import Clock
from headgate.core.wire import Endpoint, WireReply, WireRequest

Stream: TypeAlias = RelayStream | KeyedStream
LARGE_BYTES: Final = 1_000_000
"""To read, translate and write so much takes a while each: others get their turn in between."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WireReply).decode


class Relaying:
    """`gateway.wire`: bodies in, bodies out."""

    def __init__(
        self,
        requests: Requests,
        once: Once,
        join: Callable[[], Awaitable[None]],
        clock: Clock,
        gathered: Callable[[Request, Call], Awaitable[Reply]],
    ) -> None:
        self._gathered = gathered
        self._requests = requests
        self._once = once
        self._join = join
        self._clock = clock
        self._live: dict[tuple[str, str, str], Broadcast] = {}

    def answer(
        self, request: WireRequest, *, deadline_s: float | None = None
    ) -> Coroutine[Any, Any, WireReply]:
        """The whole answer."""
        route = self._requests.dispatcher.routes.find(request.model)
        if route.gather is not None and route.most_inputs > 1 and request.endpoint is not Endpoint.EMBEDDINGS:
            return self._answer_gathered(request, deadline_s)
        call, relay = self._prepare(request, route, deadline_s)
        return self._answer(request, call, relay)

    async def answer_once(
        self, request: WireRequest, key: str, body: bytes, *, deadline_s: float | None = None
    ) -> WireReply:
        """The answer that this key has, or gets now. `body` is the request's, byte by byte."""
        route = self._requests.dispatcher.routes.find(request.model)
        call, relay = self._prepare(request, route, deadline_s)
        await self._join()

        async def ask(announce: Announce) -> WireReply:
            call.announce = announce
            return await self._answer(request, call, relay)

        asking = Asking(ask, _encode, _decode)
        return await self._once.reply(
            request.tenant, request.endpoint, key, body, asking, deadline=call.deadline
        )

    def check_room(self, request: WireRequest) -> None:
        """Refuse a request of which only the model and the lane are known, where all its upstreams are full."""
        call = self._requests.call(request, deadline_s=None)
        try:
            self._requests.dispatcher.check_room(call)
        except Refused as error:
            self._requests.failed(request, call, error)
            raise

    def stream(self, request: WireRequest, *, deadline_s: float | None = None) -> RelayStream:
        """Nothing is sent before it is opened."""
        return self._stream(request, self._requests.call(request, deadline_s=deadline_s))

    async def stream_once(
        self, request: WireRequest, key: str, body: bytes, *, deadline_s: float | None = None
    ) -> KeyedStream:
        """The stream that this key has, or gets now; while it is being written, everybody reads it from the start."""
        call = self._requests.call(request, deadline_s=deadline_s)
        stream = self._stream(request, call)
        await self._join()
        place = (request.tenant, request.endpoint, key)
        live = self._live.get(place)
        if live is None:
            live = self._live[place] = Broadcast(body)
        elif live.body != body:
            # It will hear that the key is taken; those who listen already, and the next of them, are left alone.
            live = Broadcast(body)
        live.readers += 1

        async def ask(announce: Announce) -> WireReply:
            call.announce = announce
            try:
                return await live.run(stream, request, lambda: self._clock.now() - call.started_at)
            finally:
                forget()

        def forget() -> None:
            if self._live.get(place) is live:
                del self._live[place]

        def leave() -> None:
            live.readers -= 1
            if not live.readers:
                forget()

        asking = Asking(ask, _encode, _decode)
        # The same place as a whole answer's: a key that comes back with `stream` changed is another request's.
        reply = self._once.reply(request.tenant, request.endpoint, key, body, asking, deadline=call.deadline)
        return KeyedStream(request.id, reply, live, leave)

    async def _answer(self, request: WireRequest, call: Call, relay: Relay) -> WireReply:
        if request.size_bytes > LARGE_BYTES:
            await asyncio.sleep(0)
        self._requests.take_off(request)
        try:
            served = await self._requests.serve(request, call, relay)
        finally:
            self._requests.land(request)
        usage = relay.usage(served.result)
        reply = WireReply(
            request_id=request.id,
            model=request.model,
            upstream=served.upstream.name,
            body=served.result.body,
            usage=usage,
            attempts=call.attempts,
            latency_ms=(self._clock.now() - call.started_at) * 1000,
            queue_ms=call.queue_s * 1000,
            upstream_ms=call.upstream_s * 1000,
            cost_usd=served.upstream.cost(usage),
        )
        self._requests.ended(
            request, call, upstream=reply.upstream, usage=reply.usage, cost_usd=reply.cost_usd
        )
        return reply

    async def _answer_gathered(self, request: WireRequest, deadline_s: float | None) -> WireReply:
        """In a micro-batch with others; its model is set so."""
        asked = to_request(request)
        call = self._requests.call(request, deadline_s=deadline_s)
        reply = await self._gathered(asked, call)
        answer = Answer(
            content=reply.content,
            tool_calls=reply.tool_calls,
            refusal=reply.refusal,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
        )
        body = from_answer(answer, asked, request.endpoint, created=self._clock.utc().timestamp()).body
        return WireReply(
            request_id=request.id,
            model=request.model,
            upstream=reply.upstream,
            body=body,
            usage=reply.usage,
            attempts=reply.attempts,
            latency_ms=reply.latency_ms,
            queue_ms=reply.queue_ms,
            upstream_ms=call.upstream_s * 1000,
        )

    def _prepare(self, request: WireRequest, route: Route, deadline_s: float | None) -> tuple[Call, Relay]:
        call = self._requests.call(request, deadline_s=deadline_s, route=route)
        return call, Relay(request, wire_for(request, route, self._created), route.timeouts.first_token_s)

    def _stream(self, request: WireRequest, call: Call) -> RelayStream:
        route = self._requests.dispatcher.routes.find(request.model)
        kind = RescuedStream if route.stream_rescue else RelayStream
        return kind(self._requests, request, call, wire_for(request, route, self._created))

    def _created(self) -> float:
        return self._clock.utc().timestamp()
