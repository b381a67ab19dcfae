"""Direct calls, as the library's users make them: whole, streamed, many, embeddings, a slot held."""

import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from headgate.calls.call import Check, RoutedCall
from headgate.calls.fields import chat_fields, embedding_fields
from headgate.calls.holding import HeldSlot, hold_slot
from headgate.calls.keyed import KeyedRequests
from headgate.calls.many import complete_many
from headgate.calls.reply_stream import ReplyStream
from headgate.calls.requests import Requests
from headgate.calls.router import ResponseRouter
from headgate.calls.routes import Balance, Routes
from headgate.core.answer import Reply
from headgate.core.call import (
    Format,
    Lane,
    Message,
    Request,
    check_messages,
    check_names,
    check_text,
    read_lane,
)
from headgate.core.errors import DeadlineExceeded, HeadgateError, InvalidRequest
from headgate.core.ports.clock import Clock
from headgate.core.retry import RetryPolicy
from headgate.runner.payloads import fingerprinted

KEYED: Final = "complete"
"""Where the idempotency keys of library calls are apart from those of HTTP, whose bodies are compared byte by byte."""


class DirectCalls:
    """The half of a gateway whose callers wait for the answer."""

    def __init__(
        self,
        routes: Routes,
        requests: Requests,
        keyed: KeyedRequests,
        *,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self.routes = routes
        self.requests = requests
        self.keyed = keyed
        self._clock = clock
        self._new_id = new_id

    @property
    def router(self) -> ResponseRouter:
        """Routes the answers of micro-batches to their callers."""
        return self.requests.gatherers.router

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
        call = self._begin(
            model,
            chat_fields(messages, params),
            lane=lane,
            deadline_s=deadline_s,
            agent_id=agent_id,
            check=check,
            retry=retry,
            request_id=request_id,
            tenant=tenant,
        )
        if idempotency_key is None:
            return await self.requests.answer(call)
        body = fingerprinted([model, messages, params], what="the request")
        return await self.keyed.answer(call, idempotency_key, body, scope=KEYED)

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
        fields = {"stream_options": {"include_usage": True}, **chat_fields(messages, params)}
        call = self._begin(
            model,
            fields,
            stream=True,
            lane=lane,
            deadline_s=deadline_s,
            agent_id=agent_id,
            retry=retry,
            request_id=request_id,
            tenant=tenant,
        )
        return ReplyStream(self.requests.stream(call))

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
            call = self.requests.begin(
                request.id,
                request.model,
                chat_fields(request.messages, request.params),
                lane=request.lane,
                tenant=request.tenant,
                agent_id=request.agent_id,
                deadline_s=None if deadline_s is None else left_s,
                policy=retry,
                check=check,
            )
            return await self.requests.answer(call, insist=True)

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
    ) -> Reply:
        """One vector per text, in their order, or raise a `HeadgateError` that says what to do next.

        `input` is a text or a list of up to 2048. They travel in one call, and are retried and fall back
        together. `params` go to the provider.
        """
        call = self._begin(
            model,
            embedding_fields(input, params),
            wanted=Format.EMBEDDINGS,
            lane=lane,
            deadline_s=deadline_s,
            agent_id=agent_id,
            retry=retry,
            request_id=request_id,
            tenant=tenant,
        )
        return await self.requests.answer(call)

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
        call = self.requests.begin_slot(
            self._new_id(), model, lane=read_lane(lane), tenant=tenant, deadline_s=deadline_s
        )
        deadline = math.inf if deadline_s is None else self._clock.now() + deadline_s
        async with hold_slot(self.requests, call, deadline) as slot:
            yield slot

    # ---- Inside -----------------------------------------------------------------------------------

    def _begin(
        self,
        model: str,
        fields: Mapping[str, Any],
        *,
        wanted: Format = Format.CHAT,
        stream: bool = False,
        lane: Lane | str,
        deadline_s: float | None,
        agent_id: str | None,
        check: Check | None = None,
        retry: RetryPolicy | None,
        request_id: str | None,
        tenant: str,
    ) -> RoutedCall:
        _check_deadline(deadline_s)
        _check_policy(retry)
        _check_callable("check", check)
        request_id = self._new_id() if request_id is None else request_id
        check_names(request_id, model, tenant, agent_id)
        return self.requests.begin(
            request_id,
            model,
            fields,
            wanted=wanted,
            stream=stream,
            lane=read_lane(lane),
            tenant=tenant,
            agent_id=agent_id,
            deadline_s=deadline_s,
            policy=retry,
            check=check,
        )

    def _in_flight_bound(self, model: str) -> int:
        """As many as the model's slots take, and a few more that wait so that no slot idles."""
        route = self.routes.find(model)
        shared = route.upstreams if route.balance is Balance.LEAST_BUSY else route.upstreams[:1]
        slots = sum(upstream.gate.rules.slots for upstream in shared)
        return (slots + max(1, slots // 4)) * route.max_calls

    def _item(
        self, item: Request | Mapping[str, Any], *, model: str | None, lane: Lane | str
    ) -> Request | HeadgateError:
        try:
            request = item if isinstance(item, Request) else self._from_mapping(item, model, lane)
            check_names(request.id, request.model, request.tenant, request.agent_id)
            check_messages(request.messages)
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
        known["lane"] = read_lane(known["lane"])
        request_id = known.pop("request_id")
        return Request(
            id=self._new_id() if request_id is None else request_id,
            messages=item.get("messages", ()),
            params=params,
            **known,
        )


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
