"""Applications' routes as HTTP: let in, read strictly, answered, and their errors told as everybody's are."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headgate.core.access import Action
from headgate.mounting import AppCall, AppDoor, AppReply, AppRoute, AppStream
from headgate.server.access import Access, Caller
from headgate.server.errors import going_away
from headgate.server.reading import read_body, read_idempotency_key, read_query
from headgate.server.replies import Handler, cancelled_when_gone, route

_ACTIONS: Final = {AppDoor.CALL: Action.CALL, AppDoor.LOOK: Action.LOOK}


class AppRoutes:
    """The routes of all mounted applications."""

    def __init__(self, mounted: Iterable[AppRoute], access: Access, closing: asyncio.Event) -> None:
        self._mounted = tuple(mounted)
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
            try:
                query = read_query(request, mounted.query) if decoder is None else None
                body = None if decoder is None else await read_body(request, decoder)
                call = AppCall(
                    tenant=caller.tenant if caller else "local",
                    by=caller.name if caller else "local",
                    path=request.path_params,
                    query=query,
                    body=body,
                    key=read_idempotency_key(request),
                    check_model=caller.check_model if caller else _no_model,
                )
                with cancelled_when_gone(request):
                    return _response(await mounted.handle(call))
            finally:
                if caller is not None:
                    caller.leave()

        return handle

    def _admit(self, mounted: AppRoute, request: Request) -> Caller | None:
        action = _ACTIONS.get(mounted.door)
        if action is None:
            return None
        if action is Action.CALL and self._closing.is_set():
            raise going_away()
        return self._access.admit(request.scope["headers"], action)


def _response(told: AppReply | AppStream) -> Response:
    if isinstance(told, AppStream):
        return StreamingResponse(
            told.pieces, media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )
    body = told.value if isinstance(told.value, bytes) else msgspec.json.encode(told.value)
    return Response(body, status_code=told.status, media_type=told.media_type, headers=dict(told.headers))


def _no_model(model: str) -> None:
    raise RuntimeError(f"a route that is open to everybody asks for the model {model!r}")
