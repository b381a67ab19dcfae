"""One client's connection: requests one after the other, in order.

Knows when to read, to wait and to part. What a head or a body means is told by `head` and `body`, what an application
may say by `exchange`. An idle connection has no task and no buffer.
"""

import asyncio
import enum
import math
import re
from typing import Final

from headgate.server.http.body import Body, ChunkedBody, SizedBody
from headgate.server.http.exchange import Exchange
from headgate.server.http.flow import Flow
from headgate.server.http.front import Front, Share
from headgate.server.http.head import CHUNKED, Head, read_head
from headgate.server.http.limits import (
    DISCARD_BYTES,
    HIGH_WATER_BYTES,
    STRANGER_HEAD_BYTES,
    STRANGER_IDLE_S,
)
from headgate.server.http.refusals import Refused, draining, internal, late, malformed, overcrowded

_HEAD_END: Final = b"\r\n\r\n"
_HOPELESS: Final = re.compile(rb"\A[^A-Z\r]|(?<!\r)\n|\r[^\n]|\0")
"""Seen in an unfinished head: no use waiting for its end."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Phase(enum.Enum):
    HEAD = enum.auto()
    """Between requests, or in the middle of a head."""
    BODY = enum.auto()
    """A body is coming in, for the application or, after its answer, for nobody."""
    ANSWER = enum.auto()
    """The request is whole; what else arrives has to wait."""
    PARTING = enum.auto()
    """The last word is said; what else arrives is dropped."""


class Connection(Flow):
    """An exchange at a time."""

    __slots__ = (
        "_body",
        "_body_within_s",
        "_dropped_bytes",
        "_exchange",
        "_front",
        "_held",
        "_owes_continue",
        "_phase",
        "_share",
        "local",
        "peer",
    )

    def __init__(self, front: Front) -> None:
        super().__init__(front.loop, front.limits)
        self.peer: tuple[str, int] | None = None
        self.local: tuple[str, int] | None = None
        self._front = front
        self._phase = _Phase.HEAD
        self._share: Share | None = None  # Of the tenant whose valid key was shown here.
        self._exchange: Exchange | None = None
        self._body: Body | None = None
        self._held: bytearray | None = None  # An unfinished head, or what came too early.
        self._body_within_s = front.limits.body_timeout_s
        self._owes_continue = False
        self._dropped_bytes = 0

    # --- For the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self._front.connections.add(self)
        if self._front.door.has_keys:
            self._be_idle(self._limits.header_timeout_s)
        if self._front.draining:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._phase = _Phase.PARTING
        self._held = self._body = None
        self._lose_exchange()
        self._forget()
        self._front.left()

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.HEAD:
            self._read_head(data)
        elif self._phase is _Phase.BODY:
            self._read_body(data)
        elif self._phase is _Phase.ANSWER:
            self._hold(data)
        else:
            self._drop(data)

    def eof_received(self) -> bool:
        """Who stops sending has left, as with nginx: nothing tells a client that waits from one that is dead."""
        if self._exchange is not None:
            self._lose_exchange()
            self._transport.abort()
        else:
            self._part(linger=False)
        return False

    # --- For the exchange ---

    def date(self) -> bytes:
        return self._front.dates.line()

    def must_close(self) -> bool:
        """Whether the answer that begins now is the last one here."""
        exchange = self._exchange
        if self._front.draining or exchange is None or not exchange.head.keep_alive:
            return True
        return self._body is not None and (self._owes_continue or not self._body.may_discard(DISCARD_BYTES))

    def want_body(self) -> None:
        """The application waits for more of the body: let it come."""
        if self._owes_continue:
            self._owes_continue = False
            self.write(_CONTINUE)
            self._read_within(self._body_within_s)
        self._resume_reading()

    def answered(self, exchange: Exchange) -> None:
        """The last byte of the answer is written."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        if exchange.closes or self._front.draining:
            self._part(linger=self._body is not None or self._held is not None)
        elif self._body is None:
            self._next_request()
        else:
            self._resume_reading()
            self._may_be_closed()

    def ended(self, exchange: Exchange) -> None:
        """The application has returned. An answer it owes is given in its stead, or visibly cut."""
        front = self._front
        if self._exchange is exchange:
            self._refuse(draining() if front.draining else internal())
        front.running.discard(exchange)
        if not front.connections:
            front.left()

    # --- For the server ---

    def drain(self) -> None:
        """No new request is taken; one that is being answered goes on."""
        if self._exchange is not None or self._phase is _Phase.PARTING:
            return
        if self._held is not None:
            self._refuse(draining())
        else:
            self._part(linger=self._body is not None)

    def abort(self) -> None:
        self._transport.abort()

    def dismiss(self) -> None:
        """Make room for another client at once."""
        self._phase = _Phase.PARTING
        self._forget()
        self._transport.abort()

    # --- Reading ---

    def _read_head(self, data: bytes | bytearray) -> None:
        scanned = 0
        if self._held is not None:
            scanned = max(0, len(self._held) - 3)
            self._held += data
            data = self._held
        end = data.find(_HEAD_END, scanned)
        max_bytes = self._limits.head_bytes
        if self._share is None and self._front.door.has_keys:
            max_bytes = min(max_bytes, STRANGER_HEAD_BYTES)
        if (end if end >= 0 else len(data)) > max_bytes:
            message = f"the headers may have at most {max_bytes} bytes together"
            self._refuse(Refused(431, "invalid_request", message))
        elif end < 0:
            self._hold_head(data, scanned)
        else:
            self._held = None
            self._begin(bytes(data[: end + 4]), bytes(data[end + 4 :]))

    def _hold_head(self, data: bytes | bytearray, scanned: int) -> None:
        if _HOPELESS.search(data, scanned):
            self._refuse(malformed("this is not the beginning of an HTTP/1.1 request"))
        elif self._held is None:
            self._held = bytearray(data)
            self._read_within(self._limits.header_timeout_s)

    def _begin(self, data: bytes, rest: bytes) -> None:
        try:
            head = read_head(data, self._limits)
        except Refused as refused:
            self._refuse(refused)
            return
        if self._share is not None:
            self._share.idle.pop(self, None)
        elif self._front.door.has_keys and not self._is_welcome(head):
            self._refuse(overcrowded())
            return
        length = head.length
        self._read_by = math.inf
        more = length == CHUNKED or length > len(rest)
        front = self._front
        exchange = self._exchange = Exchange(self, head, b"" if more else rest[:length], more=more)
        exchange.task = self._loop.create_task(exchange.run(front.serve))
        front.running.add(exchange)
        if more:
            self._await_body(head, rest)
            return
        self._phase = _Phase.ANSWER
        if length < len(rest):
            self._hold(rest[length:])

    def _is_welcome(self, head: Head) -> bool:
        """The last tenth of the connections is for clients that show a key."""
        front = self._front
        front.strangers.pop(self, None)
        tenant = front.tenant_of(head.headers)
        if tenant is None:
            return front.has_room_for_stranger()
        self._share = front.join(tenant)
        return self._share is not None

    def _await_body(self, head: Head, rest: bytes) -> None:
        self._phase = _Phase.BODY
        most_bytes = self._limits.most_bytes(head.path)
        self._body = ChunkedBody(most_bytes) if head.length == CHUNKED else SizedBody(head.length)
        self._body_within_s = self._limits.body_within_s(head.path)
        self._owes_continue = head.expects_continue
        if not head.expects_continue:
            self._read_within(self._body_within_s)
        if rest:
            self._read_body(rest)

    def _read_body(self, data: bytes) -> None:
        body, exchange = self._body, self._exchange
        assert body is not None  # noqa: S101 - the phase says so
        if self._owes_continue:  # It did not wait for it.
            self._owes_continue = False
            self._read_within(self._body_within_s)
        try:
            piece, rest = body.feed(data)
        except Refused as refused:
            self._refuse(refused)
            return
        if exchange is not None:
            exchange.arrived(piece, more=not body.whole)
            if exchange.unread_bytes > HIGH_WATER_BYTES and not body.whole:
                self._pause_reading()
        if body.whole:
            self._body_is_whole(rest)

    def _body_is_whole(self, rest: bytes) -> None:
        self._body = None
        self._phase = _Phase.ANSWER
        self._read_by = math.inf
        if rest:
            self._hold(rest)
        if self._exchange is None:
            self._next_request()

    def _hold(self, data: bytes) -> None:
        """The next request came before the answer to this one."""
        if self._held is None:
            self._held = bytearray()
        self._held += data
        if len(self._held) > self._limits.head_bytes:
            self._pause_reading()

    def _next_request(self) -> None:
        self._phase = _Phase.HEAD
        if self._left_s is not None:
            self._resume_reading()
        if self._share is None and self._front.door.has_keys:
            self._be_idle(self._limits.idle_s)
        else:
            if self._share is not None:
                self._share.idle[self] = None
            self._read_by = self._loop.time() + self._limits.idle_s
            if self._read_by < self._timer_at:
                self._watch()
        if self._held is not None:
            held, self._held = self._held, None
            self._read_head(bytes(held))

    def _be_idle(self, seconds: float) -> None:
        """Without a key: where there are some, this is the first to go."""
        self._may_be_closed()
        self._read_within(min(seconds, STRANGER_IDLE_S))

    def _may_be_closed(self) -> None:
        """It is served nothing now: it is closed where its place is needed."""
        if self._share is not None:
            self._share.idle[self] = None
        elif self._front.door.has_keys:
            self._front.strangers[self] = None

    def _drop(self, data: bytes) -> None:
        self._dropped_bytes += len(data)
        if self._dropped_bytes > self._limits.body_bytes and not self._transport.is_closing():
            self._transport.pause_reading()  # A refused body may cost as much as an accepted one, no more.

    def _reading_is_late(self) -> None:
        if self._phase is _Phase.BODY and self._exchange is not None:
            self._refuse(late("body"))
        elif self._phase is _Phase.HEAD and self._held is not None:
            self._refuse(late("head"))
        else:
            self._part(linger=False)

    # --- Parting ---

    def _refuse(self, refused: Refused) -> None:
        """Say why, once, and part. An answer that has begun can only be cut off, where its reader notices."""
        begun = self._exchange is not None and self._exchange.begun
        self._lose_exchange()
        if not begun:
            self.write(self._front.refusal(refused))
        self._part(linger=self._phase is not _Phase.ANSWER or self._held is not None)

    def _lose_exchange(self) -> None:
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.disconnected()

    def _part(self, *, linger: bool) -> None:
        """Closing while the client still sends would reset the connection, and our last words with it."""
        self._phase = _Phase.PARTING
        self._held = self._body = None
        self._may_be_closed()
        if self._transport.is_closing():
            return
        if linger and self._half_close():
            self._resume_reading()
            self._read_within(self._limits.linger_s)
        else:
            self._read_by = math.inf
            self._transport.close()
            self._write_within_limit()

    def _forget(self) -> None:
        """It takes no place any more."""
        front = self._front
        front.connections.discard(self)
        front.strangers.pop(self, None)
        if self._share is not None:
            self._share.idle.pop(self, None)
            front.leave(self._share)
            self._share = None

    def _half_close(self) -> bool:
        try:
            self._transport.write_eof()
        except OSError:
            return False  # The client was quicker.
        return True


def _address(name: object) -> tuple[str, int] | None:
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return None
