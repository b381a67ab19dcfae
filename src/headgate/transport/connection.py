"""One connection: a request out, an answer in, its deadlines kept by a single lazy timer.

Knows HTTP/1.1 framing (through httptools) and when a connection may be used again. Knows nothing of names, TLS or
pools: it gets a transport and tells its keeper when it is free and when it is gone.
"""

import asyncio
import math
import select
from typing import Final, Protocol, cast

import httptools

from headgate.transport.errors import (
    BadResponse,
    ConnectionCut,
    FirstByteTimedOut,
    IdleTimedOut,
    TotalTimedOut,
    TransportError,
)
from headgate.transport.framing import read_framing, read_plain
from headgate.transport.headers import RawHeader
from headgate.transport.limits import MAX_BARREN_BYTES, MAX_HEAD_BYTES, MAX_HEADERS, MAX_INTERIM, Limits
from headgate.transport.response import Response

_CAN_POLL: Final = hasattr(select, "poll")


class Keeper(Protocol):
    """Whoever owns the connection between two requests."""

    keep_alive_s: float

    def freed(self, connection: "Connection") -> None: ...

    def lost(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """Used by one request at a time, and again only after an answer that was whole and clean."""

    __slots__ = (
        "_barren_bytes",
        "_begun",
        "_complete",
        "_ends_at",
        "_fed",
        "_first_byte_s",
        "_framed",
        "_head_bytes",
        "_head_done",
        "_heard_at",
        "_idle_s",
        "_interim",
        "_interims",
        "_keep",
        "_keeper",
        "_loop",
        "_parser",
        "_paused",
        "_poll",
        "_raw_headers",
        "_refusal",
        "_response",
        "_sent_at",
        "_timer",
        "_timer_at",
        "_transport",
        "_write",
        "host",
    )

    def __init__(self, host: str, keeper: Keeper, loop: asyncio.AbstractEventLoop) -> None:
        self.host = host
        self._keeper = keeper
        self._loop = loop
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._response: Response | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._paused = False
        self._poll: select.poll | None = None
        self._transport: asyncio.Transport | None = None
        self._heard_at = loop.time()

    # --- For the pool and the response ---

    def begin(self, data: bytes, limits: Limits, ends_at: float) -> Response:
        """Write a request; the answer fills the response that is returned."""
        now = self._loop.time()
        self._sent_at = now
        self._ends_at = ends_at
        self._first_byte_s = math.inf if limits.first_byte_s is None else limits.first_byte_s
        self._idle_s = math.inf if limits.idle_s is None else limits.idle_s
        self._begun = self._complete = self._interim = self._head_done = False
        self._framed = self._keep = self._fed = False
        self._interims = self._barren_bytes = self._head_bytes = 0
        self._refusal: TransportError | None = None
        self._raw_headers: list[RawHeader] = []
        response = self._response = Response(self, self.host)
        self._write(data)
        due_at = min(now + self._first_byte_s, ends_at)
        if due_at < self._timer_at:
            self._set_timer(due_at)
        return response

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def usable(self) -> bool:
        """Nothing has happened on this idle connection: no end, no stray byte. Asks the kernel, not the loop,
        because the end of a connection may have come since the loop last looked.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        return self._poll is None or not self._poll.poll(0)

    def give_up(self, response: Response) -> None:
        """The reader has left: stop the sender at once, whatever is still on its way."""
        if self._response is response:
            self._response = None
            self.abort()

    def resume(self, response: Response) -> None:
        """The reader has caught up."""
        if self._paused and self._response is response and self._transport is not None:
            self._paused = False
            self._heard_at = self._loop.time()
            self._transport.resume_reading()
            self._watch()

    def abort(self, error: TransportError | None = None) -> None:
        """Drop the connection without a farewell. `error` is what its reader gets."""
        if error is not None:
            self._end(error)
        if self._transport is not None:
            self._transport.abort()

    # --- For the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._write = self._transport.write
        sock = transport.get_extra_info("socket")
        if _CAN_POLL and sock is not None:
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._parser is None:
            self.abort()  # Nobody asked for this: the next request's answer would be out of step.
            return
        self._heard_at = self._loop.time()
        if not self._fed and (plain := read_plain(data, MAX_HEAD_BYTES, MAX_HEADERS)) is not None:
            # Most answers: no need of a parser that calls back for each header.
            self._keep = True
            self._response.arrived(*plain)
            self._response = None
            self._finish()
            return
        self._fed = True
        self._barren_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep = False
            if not self._complete:
                self.abort(self._refusal or BadResponse(f"{self.host} sent what is no HTTP answer: {error}"))
                return
        if self._complete:
            self._finish()
        elif self._barren_bytes > MAX_BARREN_BYTES:
            self.abort(BadResponse(f"{self.host} sent {self._barren_bytes} bytes without an end or a body"))

    def eof_received(self) -> None:
        # A request still being written would delay `connection_lost`; the reader must not wait for that.
        self._ended(None)
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._parser = None  # Ends the circle of parser and callbacks.
        self._poll = None
        self._keeper.lost(self)

    # --- For the parser ---

    def on_message_begin(self) -> None:
        if self._complete:
            raise self._refused("sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._raw_headers.append((name.lower(), value))
        self._head_bytes += len(name) + len(value)
        if len(self._raw_headers) > MAX_HEADERS or self._head_bytes > MAX_HEAD_BYTES:
            raise self._refused(f"sent more than {MAX_HEADERS} headers or {MAX_HEAD_BYTES} bytes of them")

    def on_headers_complete(self) -> None:
        response, parser = self._response, self._parser
        if response is None or parser is None:
            return
        status = parser.get_status_code()
        if status < 200:
            self._skip_interim(status)
            return
        self._framed, refused = read_framing(self._raw_headers, status)
        if refused is not None:
            raise self._refused(refused)
        # Trailers come through `on_header`, too; they must not be taken for headers.
        response.raw_headers, self._raw_headers = self._raw_headers, []
        response.status = status
        self._head_done = True
        self._barren_bytes = 0
        response.wake()

    def on_body(self, chunk: bytes) -> None:
        response = self._response
        if response is None:
            return
        self._barren_bytes = 0
        if response.add(chunk) and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if not self._begun:
            self._begun = True
            if self._heard_at + self._idle_s < self._timer_at:
                self._watch()

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif self._parser is not None:
            self._complete = True
            self._keep = self._parser.should_keep_alive()

    # --- Within ---

    def _skip_interim(self, status: int) -> None:
        self._interims += 1
        if status < 100 or status == 101 or self._interims > MAX_INTERIM:
            raise self._refused(f"answered with status {status} where a final one was due")
        self._interim = True
        self._raw_headers = []

    def _refused(self, what: str) -> TransportError:
        self._refusal = BadResponse(f"{self.host} {what}")
        return self._refusal

    def _finish(self) -> None:
        """The answer is whole. Its reader may take its time; the connection is free, if it is clean."""
        response, transport = self._response, self._transport
        self._response = None
        if response is not None:
            response.end()
        if transport is None:
            return
        if self._keep and not transport.get_write_buffer_size() and not transport.is_closing():
            if self._paused:
                self._paused = False
                transport.resume_reading()
            self._keeper.freed(self)
            if self._heard_at + self._keeper.keep_alive_s < self._timer_at:
                self._watch()
        else:
            transport.abort()

    def _ended(self, error: Exception | None) -> None:
        """The peer has closed. For an answer without a length that is its regular end."""
        if self._response is None:
            return
        if self._head_done and not self._framed and error is None:
            self._end(None)
            return
        where = "within its answer" if self._head_done or self._barren_bytes else "before it answered"
        cut = ConnectionCut(f"{self.host} closed the connection {where}")
        cut.__cause__ = error
        self._end(cut)

    def _end(self, error: TransportError | None) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.end(error)

    # --- The timer: armed for the nearest deadline, moved only when a nearer one comes up ---

    def _due(self) -> tuple[float, type[TransportError] | None]:
        if self._response is None:
            return self._heard_at + self._keeper.keep_alive_s, None
        if not self._begun:
            first_byte_at = self._sent_at + self._first_byte_s
            return (
                (first_byte_at, FirstByteTimedOut)
                if first_byte_at < self._ends_at
                else (self._ends_at, TotalTimedOut)
            )
        idle_at = math.inf if self._paused else self._heard_at + self._idle_s
        return (idle_at, IdleTimedOut) if idle_at < self._ends_at else (self._ends_at, TotalTimedOut)

    def _watch(self) -> None:
        due_at, _ = self._due()
        if due_at < self._timer_at:
            self._set_timer(due_at)

    def _set_timer(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due_at
        self._timer = self._loop.call_at(due_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        due_at, kind = self._due()
        # A loop may run a timer 2.5 ms early: it rounds to milliseconds, and so may its clock.
        if due_at > self._loop.time() + 0.003:
            self._watch()
        else:
            self.abort(None if kind is None else kind(self._told(kind)))

    def _told(self, kind: type[TransportError]) -> str:
        if kind is FirstByteTimedOut:
            return f"{self.host} sent nothing for {self._first_byte_s:g} s"
        if kind is IdleTimedOut:
            return f"{self.host} fell silent for {self._idle_s:g} s within its answer"
        return f"{self.host} had not finished its answer when the time was up"
