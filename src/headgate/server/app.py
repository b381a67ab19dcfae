"""All routes together: the inference routes take exchanges as they are, everything else goes through Starlette."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from headgate.core.events import Event, HttpAnswered
from headgate.core.waiting import REQUEST_BODY, WaitingBytes
from headgate.machine.context import REQUEST_IDS
from headgate.server.errors import ERROR, Failed, Header
from headgate.server.http import Asgi, Exchange
from headgate.server.http.asgi import App, Message, Receive, Scope, Send
from headgate.server.http.exchange import Serve
from headgate.server.inference.route import ROUTES
from headgate.server.whole_body import BODIES

_API: Final = ("/v1/", "/api/")
"""What callers ask. The rest is asked by operators and their machines: probes, scrapes, pages."""
_PROBE: Final = "/api/v1/health"
_ALLOW: Final = (b"allow", b"POST")
_WRONG_METHOD: Final = Failed(405, "method_not_allowed", "this route takes POST only")


class HttpApp:
    """What the front door serves."""

    def __init__(
        self,
        inference: Serve,
        rest: App,
        new_id: Callable[[], str],
        emit: Callable[[Event], None],
        bodies: WaitingBytes,
    ) -> None:
        self._inference = inference
        self._rest = Asgi(_Named(rest, new_id, emit, bodies))
        self._new_id = new_id
        self._emit = emit

    def __call__(self, exchange: Exchange) -> Awaitable[None]:
        # Handed on, not awaited here: a coroutine more would be gone through at every step of every request.
        if exchange.head.path not in ROUTES:
            return self._rest(exchange)
        if exchange.head.method == "POST":
            return self._inference(exchange)
        return self._refuse(exchange)

    async def _refuse(self, exchange: Exchange) -> None:
        request_id = f"req_{self._new_id()}"
        self._emit(HttpAnswered(request_id=request_id, status=_WRONG_METHOD.status))
        name = (b"x-request-id", request_id.encode())
        await exchange.begin(_WRONG_METHOD.status, [*_WRONG_METHOD.headers(), _ALLOW, name])
        await exchange.write(_WRONG_METHOD.body, more=False)


class _Named:
    """Every answer carries the name of its request, and those of the API are events."""

    def __init__(
        self, app: App, new_id: Callable[[], str], emit: Callable[[Event], None], bodies: WaitingBytes
    ) -> None:
        self._app = app
        self._new_id = new_id
        self._emit = emit
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = f"req_{self._new_id()}"
        REQUEST_IDS.set((request_id,))
        # Routes match the path as it was sent, as rules of a proxy before us do: `/v1%2Fmodels` is none of them.
        scope["path"] = scope["raw_path"].decode("ascii")
        scope[BODIES] = self._bodies
        name: Header = (b"x-request-id", request_id.encode())
        is_api = scope["path"].startswith(_API) and scope["path"] != _PROBE
        status = 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), name]
            elif is_api and not message.get("more_body"):
                self._emit(HttpAnswered(request_id=request_id, status=status, error=scope.get(ERROR)))
            await send(message)

        # Starlette raises once more what it has answered and we have logged.
        try:
            with contextlib.suppress(Exception):
                await self._app(scope, receive, named)
        finally:
            if (body := REQUEST_BODY.get()) is not None:
                body.end()
