"""All routes as one ASGI app: the inference routes by hand, everything else by Starlette."""

import contextlib
from collections.abc import Callable
from typing import Final

from headgate.server.asgi import respond
from headgate.server.errors import Failed, Header
from headgate.server.http.exchange import App, Message, Receive, Scope, Send
from headgate.server.inference.route import ROUTES

_ALLOW: Final = (b"allow", b"POST")
_WRONG_METHOD: Final = Failed(405, "method_not_allowed", "this route takes POST only")


class HttpApp:
    """What the front door serves."""

    def __init__(self, inference: App, rest: App, new_id: Callable[[], str]) -> None:
        self._inference = inference
        self._rest = rest
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ROUTES:
            # Starlette raises once more what it has answered and we have logged.
            with contextlib.suppress(Exception):
                await self._rest(scope, receive, _naming(send, self._name()))
        elif scope["method"] == "POST":
            await self._inference(scope, receive, send)
        else:
            headers = [*_WRONG_METHOD.headers(), _ALLOW, self._name()]
            await respond(send, _WRONG_METHOD.status, headers, _WRONG_METHOD.body)

    def _name(self) -> Header:
        return (b"x-request-id", f"req_{self._new_id()}".encode())


def _naming(send: Send, name: Header) -> Send:
    """Every answer carries the name of its request."""

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), name]
        await send(message)

    return named
