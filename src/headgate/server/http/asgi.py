"""An ASGI application on our server. Exchanges become scopes and messages; who needs them not is spared them."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from headgate.server.http.exchange import ClientGone, Exchange

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


class Asgi:
    """Serves exchanges through an ASGI application."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, exchange: Exchange) -> None:
        messages = _Messages(exchange)
        await self._app(_scope(exchange), messages.receive, messages.send)


class _Messages:
    """One exchange's."""

    __slots__ = ("_begun", "_exchange", "_told")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._begun = False
        self._told = False

    async def receive(self) -> Message:
        exchange = self._exchange
        if not self._told and not exchange.answered:
            try:
                body = await exchange.piece()
            except ClientGone:
                return {"type": "http.disconnect"}
            self._told = not exchange.more
            return {"type": "http.request", "body": body, "more_body": exchange.more}
        await exchange.over()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """A client that has gone is no error: `receive` and `on_disconnect` tell."""
        match message["type"]:
            case "http.response.body" if self._begun:
                await self._exchange.write(message.get("body", b""), more=message.get("more_body", False))
            case "http.response.start" if not self._begun:
                self._begun = True
                await self._exchange.begin(message["status"], message.get("headers", ()))
            case kind:
                raise RuntimeError(f"the message {kind!r} is not expected here")


def _scope(exchange: Exchange) -> Scope:
    head = exchange.head
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": "1.1",
        "method": head.method,
        "scheme": "http",
        "path": unquote(head.path),
        "raw_path": head.path.encode("ascii"),
        "query_string": head.query,
        "root_path": "",
        "headers": head.headers,
        "client": exchange.wire.peer,
        "server": exchange.wire.local,
        "extensions": {"headgate": exchange},
    }
