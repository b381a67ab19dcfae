"""Applications' routes as HTTP: let in, read strictly, answered, and their errors told as everybody's are."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headgate.core.access import Action
from headgate.core.errors import InvalidRequest
from headgate.mounting import AppCall, AppDoor, AppKeyed, AppReply, AppRoute, AppStream
from headgate.server.access import CALLER, Access, Caller
from headgate.server.errors import going_away, log_error, note_error, read_error
from headgate.server.inference.head import read_head
from headgate.server.reading import read_body, read_query
from headgate.server.replies import Handler, cancelled_when_gone, route

_ACTIONS: Final = {AppDoor.CALL: Action.CALL, AppDoor.LOOK: Action.LOOK}


class AppRoutes:
    """The routes of all mounted applications."""

    def __init__(self, mounted: Sequence[AppRoute], access: Access, closing: asyncio.Event) -> None:
        self._mounted = mounted
        self._access = access
        self._closing = closing

    def routes(self) -> Sequence[Route]:
        by_path: defaultdict[str, dict[str, Handler]] = defaultdict(dict)
        for one in self._mounted:
            by_path[one.path][one.method] = self._handler(one)
        return [route(path, **by_method) for path, by_method in by_path.items()]

    def _handler(self, mounted: AppRoute) -> Handler:
        decoder = None if mounted.body is None else msgspec.json.Decoder(mounted.body)

        async def handle(request: Request) -> Response:
            caller = self._admit(mounted, request)
            leave = _stay if caller is None else caller.leave
            try:
                call = await _read_call(request, mounted, decoder, caller)
                with cancelled_when_gone(request):
                    told = await mounted.handle(call)
            except BaseException:
                leave()
                raise
            if isinstance(told, AppStream):
                return EventStream(told, leave)
            leave()
            return _whole(told)

        return handle

    def _admit(self, mounted: AppRoute, request: Request) -> Caller | None:
        action = _ACTIONS.get(mounted.door)
        if action is None:
            return None
        if action is Action.CALL and self._closing.is_set():
            raise going_away()
        caller = request.scope[CALLER] = self._access.admit(request.scope["headers"], action)
        return caller


async def _read_call(
    request: Request, mounted: AppRoute, decoder: msgspec.json.Decoder[Any] | None, caller: Caller | None
) -> AppCall:
    headers = request.scope["headers"]
    head = read_head(headers, dict(headers))
    _check_key(head.key, mounted)
    query = read_query(request, mounted.query) if decoder is None else None
    body = None if decoder is None else await read_body(request, decoder)
    return AppCall(
        tenant="local" if caller is None else caller.tenant,
        by="local" if caller is None else caller.name,
        route=f"{mounted.method} {mounted.path}",
        path=request.path_params,
        query=query,
        body=body,
        key=head.key,
        deadline_s=head.deadline_s,
        check_model=_no_model if caller is None else caller.check_model,
        used=_no_tokens if caller is None else caller.used,
    )


def _check_key(key: str | None, mounted: AppRoute) -> None:
    if key is None and mounted.keyed is AppKeyed.REQUIRED:
        raise InvalidRequest(
            "this needs an Idempotency-Key: make one per request, and send it again with every retry",
            param="Idempotency-Key",
        )
    if key is not None and mounted.keyed is AppKeyed.REFUSED:
        raise InvalidRequest(
            "answers of this route are not kept under an Idempotency-Key: leave it out",
            param="Idempotency-Key",
        )


class EventStream(StreamingResponse):
    """A stream to one client, who holds its place among its key's parallel requests until the end."""

    def __init__(self, stream: AppStream, leave: Callable[[], None]) -> None:
        headers = {"cache-control": "no-cache"}
        super().__init__(stream.pieces, media_type="text/event-stream", headers=headers)
        self._stream = stream
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's shape
        try:
            with cancelled_when_gone(Request(scope)):
                start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(start)
                try:
                    async for piece in _honest(self._stream.pieces, scope):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                except asyncio.CancelledError:
                    # The client is gone and hears nothing, or this process is going and the client should hear of it.
                    error = going_away()
                    note_error(scope, error)
                    await send({"type": "http.response.body", "body": _event(error)})
                    raise
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._leave()
            if self._stream.close is not None:
                await self._stream.close()


async def _honest(pieces: AsyncIterator[bytes], scope: Scope) -> AsyncIterator[bytes]:
    """After the first byte a failure is an event."""
    try:
        async for piece in pieces:
            yield piece
    except Exception as error:  # noqa: BLE001 - an application may fail in any way
        log_error(scope["path"], error)
        note_error(scope, error)
        yield _event(error)


def _event(error: Exception) -> bytes:
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode({"error": read_error(error).error})


def _whole(told: AppReply) -> Response:
    body = told.value if isinstance(told.value, bytes) else msgspec.json.encode(told.value)
    return Response(body, status_code=told.status, media_type=told.media_type, headers=dict(told.headers))


def _stay() -> None:
    """Who was not counted in is not counted out."""


def _no_tokens(tokens: int) -> None:
    raise RuntimeError(f"a route that is open to everybody has used {tokens} tokens")


def _no_model(model: str) -> None:
    raise RuntimeError(f"a route that is open to everybody asks for the model {model!r}")
