"""One request and its answer, as an ASGI application sees them. Knows the messages; the connection knows the wire."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol, TypeAlias

from headgate.server.http.answer import Answer
from headgate.server.http.head import Head

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_log = logging.getLogger(__name__)


class Client(Protocol):
    """What `scope["extensions"]["headgate"]` offers."""

    def on_disconnect(self, callback: Callable[[], object] | None) -> None:
        """Call this the moment the client leaves; at once if it has left. `None` takes the wish back."""
        ...


class Wire(Protocol):
    """What an exchange needs of its connection."""

    peer: tuple[str, int] | None
    local: tuple[str, int] | None
    room: asyncio.Event | None

    def write(self, data: bytes) -> None: ...

    def date(self) -> bytes: ...

    def must_close(self) -> bool: ...

    def want_body(self) -> None: ...

    def answered(self, exchange: "Exchange") -> None: ...

    def ended(self, exchange: "Exchange") -> None: ...


class Exchange:
    """Over when it is answered or when the client is gone, whichever comes first."""

    __slots__ = (
        "_answer",
        "_arrival",
        "_callback",
        "_head",
        "_more",
        "_pieces",
        "_told",
        "_wire",
        "answered",
        "gone",
        "task",
        "unread_bytes",
    )

    task: asyncio.Task[None]

    def __init__(self, wire: Wire, head: Head, body: bytes, *, more: bool) -> None:
        self.answered = False
        self.gone = False
        self.unread_bytes = len(body)
        self._wire = wire
        self._head = head
        self._pieces = [body] if body else []
        self._more = more
        self._told = False
        self._answer: Answer | None = None
        self._arrival: asyncio.Event | None = None
        self._callback: Callable[[], object] | None = None

    # --- For the connection ---

    @property
    def begun(self) -> bool:
        """The first byte of the answer is out: nothing else can be said any more."""
        return self._answer is not None and self._answer.begun

    @property
    def closes(self) -> bool:
        return self._answer is not None and self._answer.closes

    @property
    def keep_alive(self) -> bool:
        return self._head.keep_alive

    def arrived(self, piece: bytes, *, more: bool) -> None:
        if piece:
            self._pieces.append(piece)
            self.unread_bytes += len(piece)
        self._more = more
        self._wake()

    def disconnected(self) -> None:
        if self.answered or self.gone:
            return
        self.gone = True
        self._pieces.clear()
        self._wake()
        if self._callback is not None:
            self._callback()

    async def run(self, app: App) -> None:
        """The application's whole life with this request. Whatever it raises ends here."""
        try:
            await app(self._scope(), self.receive, self.send)
            if not self.answered and not self.gone:
                raise RuntimeError("the application returned without a whole answer")  # noqa: TRY301 - same fate
        except asyncio.CancelledError:
            pass  # The client left, or the server ends: somebody asked for it.
        except Exception:  # noqa: BLE001 - an application may fail in any way; the server goes on
            _log.exception("the application failed on %s %s", self._head.method, self._head.path)
        finally:
            self._callback = None
            self._wire.ended(self)

    # --- For the application ---

    def on_disconnect(self, callback: Callable[[], object] | None) -> None:
        self._callback = callback
        if self.gone and callback is not None:
            callback()

    async def receive(self) -> Message:
        while not (self.answered or self.gone):
            if not self._told:
                if self._pieces or not self._more:
                    return self._request()
                self._wire.want_body()
            if self._arrival is None:
                self._arrival = asyncio.Event()
            await self._arrival.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """A client that has gone is no error: `receive` and `on_disconnect` tell."""
        if self._wire.room is not None:
            await self._wire.room.wait()
        if self.gone:
            return
        match message["type"]:
            case "http.response.body" if self._answer is not None and not self.answered:
                self._send_body(self._answer, message.get("body", b""), more=message.get("more_body", False))
            case "http.response.start" if self._answer is None:
                # It goes out with the first piece of the body, in one write.
                to_head = self._head.method == "HEAD"
                self._answer = Answer(message["status"], message.get("headers", ()), to_head=to_head)
            case kind:
                raise RuntimeError(f"the message {kind!r} is not expected here")

    def _send_body(self, answer: Answer, body: bytes, *, more: bool) -> None:
        wire = self._wire
        if answer.begun:
            data = answer.next(body, more=more)
        else:
            data = answer.first(body, more=more, date=wire.date(), closes=wire.must_close())
        if data:
            wire.write(data)
        if not more:
            self.answered = True
            self._pieces.clear()
            self._wake()
            wire.answered(self)

    def _request(self) -> Message:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self.unread_bytes = 0
        self._told = not self._more
        return {"type": "http.request", "body": body, "more_body": self._more}

    def _wake(self) -> None:
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None

    def _scope(self) -> Scope:
        head = self._head
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": "1.1",
            "method": head.method,
            "scheme": "http",
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": self._wire.peer,
            "server": self._wire.local,
            "extensions": {"headgate": self},
        }
