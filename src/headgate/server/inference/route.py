"""The inference routes: read a request, ask the gateway, answer. No framework, nothing decoded that need not be."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from headgate.calls.call import RoutedCall
from headgate.calls.keyed import KeyedRequests
from headgate.calls.keyed_stream import KeyedStream
from headgate.calls.requests import LARGE_BYTES, Requests
from headgate.calls.streams import CallStream
from headgate.core.access import Action
from headgate.core.answer import Reply
from headgate.core.call import Format, Lane
from headgate.core.errors import UnknownModel, is_reported
from headgate.core.events import Event, HttpAnswered
from headgate.core.json_trouble import check_json
from headgate.core.outcomes import error_word
from headgate.core.waiting import REQUEST_BODY, RequestBody, WaitingBytes
from headgate.machine.context import REQUEST_IDS, TRACEPARENT
from headgate.server.access import Access, Caller
from headgate.server.allowance import allowance_headers
from headgate.server.errors import Header, going_away, log_error, read_error
from headgate.server.http import Exchange
from headgate.server.http.answer import header_lines, header_value
from headgate.server.http.exchange import ClientGone
from headgate.server.inference.body import Body, peek_model, read_body
from headgate.server.inference.head import Head, read_head
from headgate.server.inference.stream import Delivery
from headgate.server.whole_body import read_whole

ROUTES: Final = {f"/v1/{wanted}": wanted for wanted in Format}
Stream = CallStream | KeyedStream
LONG_BYTES: Final = 16 * 1024
_REPLAYED: Final = (b"idempotent-replayed", b"true")
_REPLAYED_LINE: Final = b"idempotent-replayed: true\r\n"
_STORY: Final = (
    b"content-type: application/json\r\nx-request-id: %b\r\nx-headgate-attempts: %d\r\n"
    b"x-headgate-upstream: %b\r\nx-headgate-queue-ms: %d\r\nx-headgate-overhead-ms: %.2f\r\n"
)
"""The headers of an answer, made in one go: one by one they would cost several times as much."""


class Submitted(NamedTuple):
    """The job that a request became."""

    job_id: str
    record: bytes
    created: bool
    """False when its idempotency key had one already."""


class JobAsked(NamedTuple):
    """A request that shall be a job."""

    wanted: Format
    body: Body
    data: bytes
    key: str | None
    lane: Lane
    tenant: str


Submit = Callable[[JobAsked], Awaitable[Submitted]]


class Inference:
    """One request to a model over HTTP."""

    def __init__(
        self,
        requests: Requests,
        keyed: KeyedRequests,
        access: Access,
        *,
        now: Callable[[], float],
        new_id: Callable[[], str],
        mismatch_status: int,
        submit: Submit,
        draining: Callable[[], bool],
        emit: Callable[[Event], None],
        bodies: WaitingBytes,
    ) -> None:
        self._requests = requests
        self._keyed = keyed
        self._access = access
        self._now = now
        self._new_id = new_id
        self._mismatch_status = mismatch_status
        self._submit = submit
        self._draining = draining
        self._emit = emit
        self._bodies = bodies

    async def __call__(self, exchange: Exchange) -> None:
        started_at = self._now()
        request_id = f"req_{self._new_id()}"
        REQUEST_IDS.set((request_id,))
        caller: Caller | None = None
        try:
            if self._draining():
                raise going_away()  # noqa: TRY301 - answered below, like everything
            caller = self._access.admit(exchange.head.headers, Action.CALL)
            exchange.on_disconnect(exchange.task.cancel)
            await self._serve(caller, request_id, exchange, started_at)
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - the HTTP edge: everything becomes an answer
            exchange.on_disconnect(None)
            await self._fail(error, request_id, exchange, started_at, caller)
            # A frame it went through holds it: uncut, the whole request would wait for the garbage collector.
            error.__traceback__ = None
        finally:
            if caller is not None:
                caller.leave()
            if (counted := REQUEST_BODY.get()) is not None:
                counted.end()

    async def _serve(self, caller: Caller, request_id: str, exchange: Exchange, started_at: float) -> None:
        head = read_head(exchange.head.headers, exchange.head.known)
        if head.traceparent is not None:
            TRACEPARENT.set(head.traceparent)
        wanted = ROUTES[exchange.head.path]
        data = await exchange.piece()
        if exchange.more or len(data) > LONG_BYTES:
            self._look(data, wanted, head, caller, request_id)
            data = await self._read_long(data, exchange, head, caller.tenant)
        body = read_body(data, wanted)
        if caller.models:
            caller.check_model(body.model)
        if len(data) > LARGE_BYTES:
            await asyncio.sleep(0)
        if head.respond_async:
            await self._respond_later(body, head, wanted, data, caller, request_id, exchange)
            return
        call = self._requests.begin(
            request_id,
            body.model,
            body.fields,
            wanted=wanted,
            size_bytes=len(data),
            stream=body.stream,
            lane=head.lane or body.tier or caller.lane,
            tenant=caller.tenant,
            agent_id=head.agent_id,
            waits=head.wait,
            deadline_s=head.deadline_s,
        )
        if body.stream:
            await self._serve_stream(call, head, data, caller, exchange, started_at)
            return
        if head.key is None:
            reply = await self._requests.answer(call)
        else:
            reply = await self._keyed.answer(call, head.key, data, scope=wanted)
        exchange.on_disconnect(None)
        lines = self._story(reply, request_id, started_at)
        if caller.limited or reply.replayed:
            lines += self._counted(reply, caller, request_id)
        await exchange.answer(200, lines, reply.body)

    def _counted(self, reply: Reply, caller: Caller, request_id: str) -> bytes:
        """Count what a limited caller has used; the headers that tell what is left."""
        if reply.replayed:
            self._report(request_id, 200)
        else:
            caller.used(reply.usage.total_tokens)
        return header_lines(allowance_headers(caller.allowances()))

    async def _serve_stream(
        self,
        call: RoutedCall,
        head: Head,
        data: bytes,
        caller: Caller,
        exchange: Exchange,
        started_at: float,
    ) -> None:
        stream: Stream
        if head.key is None:
            stream = self._requests.stream(call)
        else:
            stream = await self._keyed.stream(call, head.key, data, scope=call.format)
        await self._deliver(stream, caller, exchange, started_at)

    async def _respond_later(
        self,
        body: Body,
        head: Head,
        wanted: Format,
        data: bytes,
        caller: Caller,
        request_id: str,
        exchange: Exchange,
    ) -> None:
        """`Prefer: respond-async`: 202, and the request goes on as a job. No client waits, so its lane is batch."""
        lane = head.lane or Lane.BATCH
        submitted = await self._submit(JobAsked(wanted, body, data, head.key, lane, caller.tenant))
        exchange.on_disconnect(None)
        self._report(request_id, 202)
        lines = _job_story(submitted, request_id)
        if caller.limited:
            lines += header_lines(allowance_headers(caller.allowances()))
        await exchange.answer(202, lines, submitted.record)

    async def _deliver(self, stream: Stream, caller: Caller, exchange: Exchange, started_at: float) -> None:
        delivery = Delivery(
            exchange,
            lambda: [*self._stream_story(stream, started_at), *allowance_headers(caller.allowances())],
        )
        try:
            await delivery.run(stream)
            if stream.shared:
                self._report(stream.request_id, 200)
        finally:
            # Who leaves in the middle has used what came until then.
            caller.used(stream.spent.total_tokens)

    def _look(self, beginning: bytes, wanted: Format, head: Head, caller: Caller, request_id: str) -> None:
        """Refuse a long body by its first bytes: under a flood of them, reading all would leave no time to serve."""
        model = peek_model(beginning)
        if model is None or head.key is not None or head.respond_async:
            return
        caller.check_model(model)
        call = self._requests.begin(
            request_id,
            model,
            {},
            wanted=wanted,
            size_bytes=len(beginning),
            lane=head.lane or caller.lane,
            tenant=caller.tenant,
            agent_id=head.agent_id,
            waits=head.wait,
            read=False,
        )
        self._requests.check_room(call)

    async def _read_long(self, beginning: bytes, exchange: Exchange, head: Head, tenant: str) -> bytes:
        counted = RequestBody(self._bodies, tenant)
        body = await read_whole(exchange, beginning, counted)
        if len(body) > LARGE_BYTES:
            check_json(body)
            await asyncio.sleep(0)
        if head.key is None and not head.respond_async:
            # From here its gate counts it. Others wait for the store, or for a call with the same key, and stay counted.
            counted.end()
        return body

    def _report(self, request_id: str, status: int, error: str | None = None) -> None:
        """Of an answer that is not the end of a call: that is reported as `Responded`."""
        self._emit(HttpAnswered(request_id=request_id, status=status, error=error))

    # ---- What an answer says of itself -------------------------------------------------------------------

    def _story(self, reply: Reply, request_id: str, started_at: float) -> bytes:
        spent_ms = (self._now() - started_at) * 1000 - reply.queue_ms - reply.upstream_ms
        lines = _STORY % (
            request_id.encode(),
            reply.attempts,
            header_value(reply.upstream),
            reply.queue_ms,
            max(0.0, spent_ms),
        )
        if reply.replayed:
            return lines + _REPLAYED_LINE
        if reply.cost_usd is not None:
            return lines + b"x-headgate-cost-usd: %.8f\r\n" % reply.cost_usd
        return lines

    def _stream_story(self, stream: Stream, started_at: float) -> list[Header]:
        headers = [
            _named(stream.request_id),
            (b"x-headgate-attempts", b"%d" % stream.attempts),
            (b"x-headgate-queue-ms", b"%d" % stream.queue_ms),
        ]
        if stream.upstream is not None:
            # Before the first content nobody knows whose answer it will be.
            spent_ms = (self._now() - started_at) * 1000 - stream.queue_ms - stream.upstream_ms
            headers.append((b"x-headgate-upstream", header_value(stream.upstream)))
            headers.append((b"x-headgate-overhead-ms", b"%.2f" % max(0.0, spent_ms)))
        if stream.replayed:
            headers.append(_REPLAYED)
        return headers

    async def _fail(
        self,
        error: Exception,
        request_id: str,
        exchange: Exchange,
        started_at: float,
        caller: Caller | None,
    ) -> None:
        if isinstance(error, UnknownModel) and caller is not None:
            error.narrow(caller.may_use)
        failed = read_error(error, mismatch_status=self._mismatch_status)
        log_error(f"request {request_id}", error)
        if not is_reported(error):
            self._report(request_id, failed.status, error_word(error))
        headers = [*failed.headers(), _named(request_id), *_failed_story(error, self._now() - started_at)]
        if caller is not None and caller.limited:
            headers += allowance_headers(caller.allowances())
        await exchange.answer(failed.status, header_lines(headers), failed.body)


def _job_story(submitted: Submitted, request_id: str) -> bytes:
    lines = b"content-type: application/json\r\nlocation: /v1/jobs/%b\r\nx-request-id: %b\r\n" % (
        submitted.job_id.encode(),
        request_id.encode(),
    )
    return lines if submitted.created else lines + _REPLAYED_LINE


def _failed_story(error: Exception, took_s: float) -> list[Header]:
    """How often providers were asked, where the time went, and which one failed, where one can be named."""
    queue_ms, upstream_ms = getattr(error, "queue_ms", 0.0), getattr(error, "upstream_ms", 0.0)
    story = [
        (b"x-headgate-attempts", b"%d" % getattr(error, "attempts", 0)),
        (b"x-headgate-queue-ms", b"%d" % queue_ms),
        (b"x-headgate-overhead-ms", b"%.2f" % max(0.0, took_s * 1000 - queue_ms - upstream_ms)),
    ]
    upstream = getattr(error, "upstream", None)
    if upstream is not None:
        story.append((b"x-headgate-upstream", header_value(upstream)))
    return story


def _named(request_id: str) -> Header:
    return (b"x-request-id", request_id.encode())
