"""All routes as one ASGI app: the inference routes by hand, everything else by Starlette."""

import contextlib
from typing import Final

from headgate.server.asgi import App, Receive, Scope, Send, respond
from headgate.server.errors import Failed
from headgate.server.inference.route import ROUTES

_ALLOW: Final = (b"allow", b"POST")
_WRONG_METHOD: Final = Failed(405, "method_not_allowed", "this route takes POST only")


class HttpApp:
    """What the front door serves."""

    def __init__(self, inference: App, rest: App) -> None:
        self._inference = inference
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ROUTES:
            # Starlette raises once more what it has answered and we have logged.
            with contextlib.suppress(Exception):
                await self._rest(scope, receive, send)
        elif scope["method"] == "POST":
            await self._inference(scope, receive, send)
        else:
            await respond(
                send, _WRONG_METHOD.status, [*_WRONG_METHOD.headers(), _ALLOW], _WRONG_METHOD.body
            )
