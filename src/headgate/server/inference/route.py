"""The inference routes: read a request, ask the gateway, answer. No framework, nothing decoded that need not be."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from headgate.core.access import Action
from headgate.core.messages import Lane
from headgate.core.wire import Endpoint, WireReply, WireRequest
from headgate.dispatch.relaying import LARGE_BYTES, Relaying, Stream
from headgate.server.access import Access, Caller
from headgate.server.asgi import CancelledWhenGone, ClientGone, read_whole, respond
from headgate.server.errors import Header, crash_story, going_away, is_crash, read_error
from headgate.server.http.exchange import Receive, Scope, Send
from headgate.server.inference.body import peek_model, read_body
from headgate.server.inference.head import Head, read_head
from headgate.server.inference.stream import Delivery

logger = logging.getLogger("headgate")
ROUTES: Final = {f"/v1/{endpoint}": endpoint for endpoint in Endpoint}
_JSON: Final = (b"content-type", b"application/json")
_REPLAYED: Final = (b"idempotent-replayed", b"true")


class Submitted(NamedTuple):
    """The job that a request became."""

    job_id: str
    record: bytes
    created: bool
    """False when its idempotency key had one already."""


Submit = Callable[[WireRequest, Head, bytes], Awaitable[Submitted]]


class Inference:
    """One request to a model over HTTP."""

    def __init__(
        self,
        relaying: Relaying,
        access: Access,
        *,
        now: Callable[[], float],
        new_id: Callable[[], str],
        mismatch_status: int,
        submit: Submit,
        draining: Callable[[], bool],
    ) -> None:
        self._relaying = relaying
        self._access = access
        self._now = now
        self._new_id = new_id
        self._mismatch_status = mismatch_status
        self._submit = submit
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at = self._now()
        request_id = f"req_{self._new_id()}"
        caller: Caller | None = None
        try:
            if self._draining():
                raise going_away()  # noqa: TRY301 - answered below, like everything
            caller = self._access.admit(scope["headers"], Action.CALL)
            with CancelledWhenGone(scope):
                await self._serve(caller, request_id, scope, receive, send, started_at)
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - the HTTP edge: everything becomes an answer
            await self._fail(error, request_id, send)
            # A frame it went through holds it: uncut, the whole request would wait for the garbage collector.
            error.__traceback__ = None
        finally:
            if caller is not None:
                caller.leave()

    async def _serve(
        self, caller: Caller, request_id: str, scope: Scope, receive: Receive, send: Send, started_at: float
    ) -> None:
        head = read_head(scope["headers"])
        endpoint = ROUTES[scope["path"]]

        body = await read_whole(
            receive, lambda beginning: self._look(beginning, endpoint, head, caller, request_id)
        )
        # Who asks for a job does not wait for it.
        lane = Lane.BATCH if head.respond_async else caller.lane
        request = read_body(body, endpoint, head, request_id=request_id, tenant=caller.tenant, lane=lane)
        caller.check_model(request.model)
        if len(body) > LARGE_BYTES:
            await asyncio.sleep(0)
        if head.respond_async:
            submitted = await self._submit(request, head, body)
            await respond(send, 202, _job_story(submitted, request_id), submitted.record)
        elif request.stream:
            stream = await self._stream(request, head, body)
            delivery = Delivery(send, lambda: self._stream_story(stream, started_at))
            try:
                await delivery.run(stream)
            finally:
                # Who leaves in the middle has used what came until then.
                caller.used(stream.spent.total_tokens)
        else:
            reply = await self._reply(request, head, body)
            if not reply.replayed:
                caller.used(reply.usage.total_tokens)
            await respond(send, 200, self._story(reply, request_id, started_at), reply.body)

    def _look(
        self, beginning: bytes, endpoint: Endpoint, head: Head, caller: Caller, request_id: str
    ) -> None:
        """Refuse a long body by its first bytes: under a flood of them, reading all would leave no time to serve."""
        model = peek_model(beginning)
        if model is None or head.key is not None or head.respond_async:
            return
        caller.check_model(model)
        asked = WireRequest(
            id=request_id,
            endpoint=endpoint,
            model=model,
            fields={},
            size_bytes=len(beginning),
            lane=head.lane or caller.lane,
            tenant=caller.tenant,
            agent_id=head.agent_id,
        )
        self._relaying.check_room(asked)

    async def _reply(self, request: WireRequest, head: Head, body: bytes) -> WireReply:
        if head.key is None:
            return await self._relaying.answer(request, deadline_s=head.deadline_s)
        return await self._relaying.answer_once(request, head.key, body, deadline_s=head.deadline_s)

    async def _stream(self, request: WireRequest, head: Head, body: bytes) -> Stream:
        if head.key is None:
            return self._relaying.stream(request, deadline_s=head.deadline_s)
        return await self._relaying.stream_once(request, head.key, body, deadline_s=head.deadline_s)

    # ---- What an answer says of itself -------------------------------------------------------------------

    def _story(self, reply: WireReply, request_id: str, started_at: float) -> list[Header]:
        spent_ms = (self._now() - started_at) * 1000 - reply.queue_ms - reply.upstream_ms
        headers = [
            _JSON,
            _named(request_id),
            (b"x-headgate-attempts", b"%d" % reply.attempts),
            (b"x-headgate-upstream", reply.upstream.encode("latin-1", "replace")),
            (b"x-headgate-queue-ms", b"%d" % reply.queue_ms),
            (b"x-headgate-overhead-ms", b"%.2f" % max(0.0, spent_ms)),
        ]
        if reply.replayed:
            headers.append(_REPLAYED)
        elif reply.cost_usd is not None:
            headers.append((b"x-headgate-cost-usd", b"%.8f" % reply.cost_usd))
        return headers

    def _stream_story(self, stream: Stream, started_at: float) -> list[Header]:
        headers = [
            _named(stream.request_id),
            (b"x-headgate-attempts", b"%d" % stream.attempts),
            (b"x-headgate-queue-ms", b"%d" % stream.queue_ms),
        ]
        if stream.upstream is not None:
            # Before the first content nobody knows whose answer it will be.
            spent_ms = (self._now() - started_at) * 1000 - stream.queue_ms - stream.upstream_ms
            headers.append((b"x-headgate-upstream", stream.upstream.encode("latin-1", "replace")))
            headers.append((b"x-headgate-overhead-ms", b"%.2f" % max(0.0, spent_ms)))
        if stream.replayed:
            headers.append(_REPLAYED)
        return headers

    async def _fail(self, error: Exception, request_id: str, send: Send) -> None:
        failed = read_error(error, mismatch_status=self._mismatch_status)
        if is_crash(error):
            logger.error("request %s broke\n%s", request_id, crash_story(error))
        headers = [*failed.headers(), _named(request_id), *_failed_story(error)]
        await respond(send, failed.status, headers, failed.body)


def _job_story(submitted: Submitted, request_id: str) -> list[Header]:
    location = (b"location", f"/v1/jobs/{submitted.job_id}".encode())
    replayed = [] if submitted.created else [_REPLAYED]
    return [_JSON, location, _named(request_id), *replayed]


def _failed_story(error: Exception) -> list[Header]:
    """How often providers were asked, and which one failed, where one can be named."""
    story = [(b"x-headgate-attempts", b"%d" % getattr(error, "attempts", 0))]
    upstream = getattr(error, "upstream", None)
    if upstream is not None:
        story.append((b"x-headgate-upstream", upstream.encode("latin-1", "replace")))
    return story


def _named(request_id: str) -> Header:
    return (b"x-request-id", request_id.encode())
