"""One request and its answer, as whoever serves it sees them. The connection knows the wire; ASGI is an adapter's affair."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from headgate.server.http.answer import Answer, whole_answer
from headgate.server.http.head import Head, RawHeader

_log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client left, or was answered, before it had sent everything: nobody waits for an answer any more."""


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
    """Over when it is answered or when the client is gone, whichever comes first.

    Read it with `piece`, answer it with `answer`, or with `begin`, `write` and `end`. To a client that has gone all of
    them say nothing and do nothing: `on_disconnect` tells.
    """

    __slots__ = (
        "_answer",
        "_callback",
        "_change",
        "_pieces",
        "answered",
        "begun",
        "closes",
        "gone",
        "head",
        "more",
        "task",
        "unread_bytes",
        "wire",
    )

    task: asyncio.Task[None]

    def __init__(self, wire: Wire, head: Head, body: bytes, *, more: bool) -> None:
        self.head = head
        self.wire = wire
        self.more = more
        """Whether more of the body is still to come."""
        self.answered = False
        self.gone = False
        self.begun = False
        """The first byte of the answer is out: nothing else can be said any more."""
        self.closes = False
        """The answer is the last one on its connection."""
        self.unread_bytes = len(body)
        self._pieces = [body] if body else []
        self._answer: Answer | None = None
        self._change: asyncio.Event | None = None
        self._callback: Callable[[], object] | None = None

    # --- For the connection ---

    def arrived(self, piece: bytes, *, more: bool) -> None:
        if piece:
            self._pieces.append(piece)
            self.unread_bytes += len(piece)
        self.more = more
        self._wake()

    def disconnected(self) -> None:
        if self.answered or self.gone:
            return
        self.gone = True
        self._pieces.clear()
        self._wake()
        if self._callback is not None:
            self._callback()

    async def run(self, serve: "Serve") -> None:
        """The whole life of this request. Whatever is raised ends here."""
        try:
            await serve(self)
            if not self.answered and not self.gone:
                raise RuntimeError("the application returned without a whole answer")  # noqa: TRY301 - same fate
        except asyncio.CancelledError:
            pass  # The client left, or the server ends: somebody asked for it.
        except Exception:  # noqa: BLE001 - an application may fail in any way; the server goes on
            _log.exception("the application failed on %s %s (internal)", self.head.method, self.head.path)
        finally:
            self._callback = None
            self.wire.ended(self)

    # --- For whoever serves it ---

    def on_disconnect(self, callback: Callable[[], object] | None) -> None:
        """Call this the moment the client leaves; at once if it has left. `None` takes the wish back."""
        self._callback = callback
        if self.gone and callback is not None:
            callback()

    async def piece(self) -> bytes:
        """What there is of the body and was not read yet; waits for some. `more` tells whether that was all of it."""
        while self.more and not self._pieces and not (self.answered or self.gone):
            self.wire.want_body()
            await self._changed()
        if self.answered or self.gone:
            raise ClientGone
        pieces, self._pieces = self._pieces, []
        self.unread_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def over(self) -> None:
        """Wait until it is answered or the client has gone."""
        while not (self.answered or self.gone):
            await self._changed()

    async def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """A whole answer in one write. `lines` are its headers, each with its line end; the framing is ours."""
        wire = self.wire
        if wire.room is not None:
            await wire.room.wait()
        if self.gone:
            return
        self.closes = wire.must_close()
        self.begun = True
        wire.write(whole_answer(status, lines, body, date=wire.date(), closes=self.closes))
        self._finish()

    async def begin(self, status: int, headers: Sequence[RawHeader]) -> None:
        """The head of an answer that comes in pieces. It goes out with the first of them, in one write."""
        if await self._may_write():
            if self._answer is not None or self.begun:
                raise RuntimeError("this answer has begun already")
            self._answer = Answer(status, headers, to_head=self.head.method == "HEAD")

    async def write(self, piece: bytes, *, more: bool = True) -> None:
        """The next piece of the answer, or its last."""
        if await self._may_write():
            self.push(piece, more=more)

    async def caught_up(self) -> None:
        """Returns when the client has taken enough of what was written before."""
        await self._may_write()

    def push(self, piece: bytes, *, more: bool = True) -> bool:
        """Write at once, however much waits for the client already. True: it is behind."""
        if self.gone:
            return False
        answer, wire = self._answer, self.wire
        if answer is None or self.answered:
            raise RuntimeError("no piece of an answer is expected here")
        if self.begun:
            data = answer.next(piece, more=more)
        else:
            data = answer.first(piece, more=more, date=wire.date(), closes=wire.must_close())
            self.begun, self.closes = True, answer.closes
        if data:
            wire.write(data)
        if not more:
            self._finish()
        return wire.room is not None

    async def _may_write(self) -> bool:
        """When the client has taken enough of what was written before."""
        room = self.wire.room
        if room is not None:
            await room.wait()
        return not self.gone

    def _finish(self) -> None:
        self.answered = True
        self._pieces.clear()
        if self._change is not None:
            self._wake()
        self.wire.answered(self)

    async def _changed(self) -> None:
        if self._change is None:
            self._change = asyncio.Event()
        await self._change.wait()

    def _wake(self) -> None:
        if self._change is not None:
            self._change.set()
            self._change = None


Serve: TypeAlias = Callable[[Exchange], Awaitable[None]]
