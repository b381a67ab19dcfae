"""ASGI by hand: reading a body, sending an answer, knowing at once when the client has gone."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from headgate.server.errors import Header

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class ClientGone(Exception):
    """The client left before it had sent everything: nobody is there to be answered."""


async def read_whole(receive: Receive) -> bytes:
    """The whole body. How large it may be is the front door's business."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
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


@contextmanager
def cancelled_when_gone(scope: Scope) -> Iterator[None]:
    """Inside, the running task is cancelled the moment the client leaves. Our own server offers that; others do not."""
    watch = (scope.get("extensions") or {}).get("headgate")
    task = asyncio.current_task()
    if watch is None or task is None:
        yield
        return
    watch.on_disconnect(task.cancel)
    try:
        yield
    finally:
        watch.on_disconnect(None)
