"""ASGI by hand: reading a body, sending an answer, knowing at once when the client has gone."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

from headgate.server.errors import Header
from headgate.server.http.exchange import Receive, Scope, Send

LONG_BYTES: Final = 16 * 1024


class ClientGone(Exception):
    """The client left before it had sent everything: nobody is there to be answered."""


async def read_whole(receive: Receive, look: Callable[[bytes], None]) -> bytes:
    """The whole body. How large it may be is the front door's business.

    A long one is shown to `look` by its beginning: if that raises, the rest is not read.
    """
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if len(body) > LONG_BYTES or message.get("more_body"):
        look(body)
    if not message.get("more_body"):
        return body
    parts = [body]
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
    return b"".join(parts)


async def respond(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    """A whole answer."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class CancelledWhenGone:
    """Inside, the running task is cancelled the moment the client leaves. Our own server offers that; others do not."""

    __slots__ = ("_client",)

    def __init__(self, scope: Scope) -> None:
        self._client = (scope.get("extensions") or {}).get("headgate")

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if self._client is not None and task is not None:
            self._client.on_disconnect(task.cancel)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.on_disconnect(None)
