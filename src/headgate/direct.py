"""Direct calls, as the library's users make them: whole, streamed, many, embeddings, a slot held."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from headgate.calls.call import Announce, AnyRequest, Call
from headgate.calls.holding import HeldSlot, hold_slot
from headgate.calls.many import complete_many
from headgate.calls.microbatch import Gatherer
from headgate.calls.once import Asking, Once
from headgate.calls.requests import Requests
from headgate.calls.router import ResponseRouter
from headgate.calls.routes import Balance, Gather, Routes
from headgate.calls.streams import ReplyStream
from headgate.calls.work import Check
from headgate.core.embeddings import EmbeddingReply, EmbeddingRequest, check_embedding, read_input
from headgate.core.errors import DeadlineExceeded, HeadgateError, InvalidRequest
from headgate.core.messages import Lane, Message, Reply, Request, check_request, check_text, read_lane
from headgate.core.ports.clock import Clock
from headgate.core.retry import RetryPolicy
from headgate.machine.context import origin
from headgate.runner.payloads import fingerprinted

_encode_reply = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(Reply).decode


class DirectCalls:
    """The half of a gateway whose callers wait for the answer."""

    def __init__(
        self,
        routes: Routes,
        requests: Requests,
        once: Once,
        router: ResponseRouter,
        *,
        join: Callable[[], Awaitable[None]],
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self.routes = routes
        self.router = router
        self._requests = requests
        self._once = once
        self._join = join
        self._clock = clock
        self._new_id = new_id
        self._gatherers: dict[tuple[str, Lane, str, RetryPolicy | None, bool], Gatherer] = {}

    async def complete(
        self,
        *,
        model: str,
        messages: Sequence[Message],
        lane: Lane | str = Lane.INTERACTIVE,
        deadline_s: float | None = None,
        agent_id: str | None = None,
        check: Check | None = None,
        retry: RetryPolicy | None = None,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        tenant: str = "local",
        **params: Any,
    ) -> Reply:
        """Ask a model and return its reply, or raise a `HeadgateError` that says what to do next.

        `check` raises ValueError (or returns False) for an answer that cannot be used: it is then
        generated anew with the slot in hand, up to the policy's attempts. `params` go to the provider.
        With an `idempotency_key` the same request gets the same answer for 72 hours, across crashes too.
        """
        request = self._request(model, messages, lane, agent_id, request_id, tenant, params)
        _check_callable("check", check)
        call = self._call(request, deadline_s, retry)
        if idempotency_key is not None:
            return await self._complete_once(request, call, check, idempotency_key)
        return await self._complete(request, call, check)

    def stream(
        self,
        *,
        model: str,
        messages: Sequence[Message],
        lane: Lane | str = Lane.INTERACTIVE,
        deadline_s: float | None = None,
        agent_id: str | None = None,
        retry: RetryPolicy | None = None,
        request_id: str | None = None,
        tenant: str = "local",
        **params: Any,
    ) -> ReplyStream:
        """The reply chunk by chunk: `async with gateway.stream(…) as stream: async for chunk in stream: …`.

        Failures are retried until the first content; after it a broken stream raises `StreamCut`.
        """
        request = self._request(model, messages, lane, agent_id, request_id, tenant, params)
        return ReplyStream(self._requests, request, self._call(request, deadline_s, retry))

    async def complete_many(
        self,
        requests: Iterable[Request | Mapping[str, Any]],
        *,
        model: str | None = None,
        lane: Lane | str = Lane.BATCH,
        deadline_s: float | None = None,
        check: Check | None = None,
        retry: RetryPolicy | None = None,
    ) -> list[Reply | HeadgateError]:
        """One reply or error per request, in the order asked. Items fare alone, and never flood the gate.

        A request is a `Request`, or a mapping as `complete` takes it (`messages`, and any of `model`,
        `lane`, `agent_id`, `request_id`, `tenant` and the provider's parameters). With `deadline_s`
        unset each item has the model's own `total_s` from the moment it is sent. A request that makes no
        sense is an `InvalidRequest` in its place.
        """
        _check_deadline(deadline_s)
        _check_policy(retry)
        _check_callable("check", check)
        ends_at = math.inf if deadline_s is None else self._clock.now() + deadline_s
        asked = [self._item(item, model=model, lane=lane) for item in requests]

        async def ask(request: Request) -> Reply:
            # The deadline is for the whole run: what is asked later has less time left.
            left_s = ends_at - self._clock.now()
            if left_s <= 0:
                raise DeadlineExceeded(f"{request.model}: not sent, the time for all of them was up")
            patience_s = None if deadline_s is None else left_s
            call = self._requests.call(request, deadline_s=patience_s, policy=retry)
            return await self._complete(request, call, check, insist=True)

        return await complete_many(asked, ask, self._in_flight_bound)

    async def embed(
        self,
        *,
        model: str,
        input: str | Sequence[str],  # noqa: A002 - its name wherever embeddings are asked for
        lane: Lane | str = Lane.INTERACTIVE,
        deadline_s: float | None = None,
        agent_id: str | None = None,
        retry: RetryPolicy | None = None,
        request_id: str | None = None,
        tenant: str = "local",
        **params: Any,
    ) -> EmbeddingReply:
        """One vector per text, in their order, or raise a `HeadgateError` that says what to do next.

        `input` is a text or a list of up to 2048. They travel in one call, and are retried and fall back
        together. `params` go to the provider.
        """
        request = EmbeddingRequest(
            id=self._new_id() if request_id is None else request_id,
            model=model,
            input=read_input(input),
            params=params,
            lane=read_lane(lane),
            tenant=tenant,
            agent_id=agent_id,
        )
        check_embedding(request)
        call = self._call(request, deadline_s, retry)
        self._requests.take_off(request)
        try:
            return await self._requests.embed(request, call)
        finally:
            self._requests.land(request)

    @asynccontextmanager
    async def hold_slot(
        self,
        model: str,
        lane: Lane | str = Lane.INTERACTIVE,
        *,
        deadline_s: float | None = None,
        tenant: str = "local",
    ) -> AsyncIterator[HeldSlot]:
        """Hold one slot over several generations: `async with gateway.hold_slot("summary") as slot: …`.

        With `deadline_s` the slot is waited for and used within that time; without it the wait and each
        generation have the model's `total_s`.
        """
        _check_deadline(deadline_s)
        check_text("model", model)
        check_text("tenant", tenant)
        now = self._clock.now()
        total_s = self.routes.find(model).timeouts.total_s
        deadline = math.inf if deadline_s is None else now + deadline_s
        call = Call(
            model=model,
            request_ids=(self._new_id(),),
            started_at=now,
            since=now,
            deadline=min(now + total_s, deadline),
            lane=read_lane(lane),
            tenant=tenant,
            origin=origin(),
        )
        async with hold_slot(self._requests, call, deadline) as slot:
            yield slot

    # ---- Inside -----------------------------------------------------------------------------------

    async def _complete(
        self, request: Request, call: Call, check: Check | None, *, insist: bool = False
    ) -> Reply:
        route = self.routes.find(request.model)
        size = route.most_inputs
        self._requests.take_off(request)
        try:
            if size == 1 or (route.gather is None and not insist):
                return await self._requests.complete(request, call, check, insist=insist)
            return await self._gather(request, call, check, route.gather or Gather(size=size), size)
        finally:
            self._requests.land(request)

    async def _complete_once(self, request: Request, call: Call, check: Check | None, key: str) -> Reply:
        """Alone, never in a micro-batch: its crash must be its own."""
        body = fingerprinted([request.model, request.messages, request.params], what="the request")
        await self._join()

        async def ask(announce: Announce) -> Reply:
            self._requests.take_off(request)
            call.announce = announce
            try:
                return await self._requests.complete(request, call, check)
            finally:
                self._requests.land(request)

        asking = Asking(ask, _encode_reply, _decode_reply)
        return await self._once.reply(request.tenant, "complete", key, body, asking, deadline=call.deadline)

    async def _gather(
        self, request: Request, call: Call, check: Check | None, gather: Gather, most_inputs: int
    ) -> Reply:
        key = (request.model, request.lane, request.tenant, call.policy, call.waits)
        gatherer = self._gatherers.get(key)
        if gatherer is None:
            fitting = Gather(size=min(gather.size, most_inputs), wait_ms=gather.wait_ms)
            gatherer = self._gatherers[key] = Gatherer(self._requests, self.router, fitting)
        try:
            return await gatherer.ask(request, call, check)
        finally:
            if gatherer.idle and self._gatherers.get(key) is gatherer:
                del self._gatherers[key]

    def _in_flight_bound(self, model: str) -> int:
        """As many as the model's slots take, and a few more that wait so that no slot idles."""
        route = self.routes.find(model)
        shared = route.upstreams if route.balance is Balance.LEAST_BUSY else route.upstreams[:1]
        slots = sum(upstream.gate.rules.slots for upstream in shared)
        return (slots + max(1, slots // 4)) * route.most_inputs

    def _request(
        self,
        model: str,
        messages: Sequence[Message],
        lane: Lane | str,
        agent_id: str | None,
        request_id: str | None,
        tenant: str,
        params: Mapping[str, Any],
    ) -> Request:
        request = Request(
            id=self._new_id() if request_id is None else request_id,
            model=model,
            messages=messages,
            params=params,
            lane=read_lane(lane),
            tenant=tenant,
            agent_id=agent_id,
        )
        check_request(request)
        return request

    def _item(
        self, item: Request | Mapping[str, Any], *, model: str | None, lane: Lane | str
    ) -> Request | HeadgateError:
        try:
            request = item if isinstance(item, Request) else self._from_mapping(item, model, lane)
            check_request(request)
            self.routes.find(request.model)
        except InvalidRequest as error:
            return error
        return request

    def _from_mapping(self, item: Mapping[str, Any], model: str | None, lane: Lane | str) -> Request:
        if not isinstance(item, Mapping):
            raise InvalidRequest("each request must be a Request or a mapping with its messages")
        if misplaced := {"deadline_s", "check", "retry"} & set(item):
            raise InvalidRequest(f"{', '.join(sorted(misplaced))} cannot be set for one request of many")
        fields = {"model": model, "lane": lane, "agent_id": None, "request_id": None, "tenant": "local"}
        known = {name: item.get(name, default) for name, default in fields.items()}
        params = {name: value for name, value in item.items() if name not in fields and name != "messages"}
        return self._request(messages=item.get("messages", ()), params=params, **known)

    def _call(self, request: AnyRequest, deadline_s: float | None, retry: RetryPolicy | None) -> Call:
        _check_deadline(deadline_s)
        _check_policy(retry)
        return self._requests.call(request, deadline_s=deadline_s, policy=retry)


def _check_deadline(deadline_s: object) -> None:
    if deadline_s is None:
        return
    if (
        isinstance(deadline_s, bool)
        or not isinstance(deadline_s, int | float)
        or not 0 < deadline_s < math.inf
    ):
        raise InvalidRequest(
            f"deadline_s must be a number of seconds above 0, not {deadline_s!r}", param="deadline_s"
        )


def _check_policy(retry: object) -> None:
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidRequest(f"retry must be a RetryPolicy, not {retry!r}", param="retry")


def _check_callable(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise InvalidRequest(f"{name} must be callable, not {value!r}", param=name)
