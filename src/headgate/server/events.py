"""`GET /events`: what happens, as server-sent events. A reader sees what is its own, and goes on where it was."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headgate.core.access import Action
from headgate.core.errors import InvalidRequest, RateLimited
from headgate.core.events import Event, ModelPauseChanged
from headgate.core.ports.clock import Clock
from headgate.core.spelling import did_you_mean
from headgate.observe.ring import EventRing, Numbered
from headgate.server.access import Access, Caller
from headgate.server.errors import going_away
from headgate.server.reading import LONGEST_SHOWN_CHARS, Word, read_query
from headgate.server.replies import admit, route

HEARTBEAT_S: Final = 15.0
GATHER_S: Final = 0.1
"""Between two pieces to one reader: under load many events share one."""
MOST_AT_ONCE: Final = 500
"""Events in one piece. With the rest above, what one reader can cost is bounded, however much happens."""
MOST_READERS: Final = 20
"""Of one tenant, and of all operators."""
ALL_KEPT: Final = "0"
TYPES: Final = {kind.__name__: kind for kind in get_args(Event)}
_SSE: Final = "text/event-stream"
_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_BEGINNING: Final = b"retry: 2000\n\n"
_encode: Final = msgspec.json.Encoder().encode

Wanted = Callable[[Event], bool]


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `GET /events`."""

    types: Word | None = None
    model: Word | None = None
    after: Word | None = None


class EventRoutes:
    """Over one ring. `run` names this run of the process: numbers of another mean nothing here."""

    def __init__(
        self, ring: EventRing, access: Access, closing: asyncio.Event, *, clock: Clock, run: str
    ) -> None:
        self._ring = ring
        self._access = access
        self._closing = closing
        self._clock = clock
        self._run = run.encode()
        self._readers: Counter[str | None] = Counter()

    def routes(self) -> list[Route]:
        return [route("/events", GET=self._follow)]

    async def _follow(self, request: Request) -> Response:
        if self._closing.is_set():
            raise going_away()
        caller = admit(self._access, request, Action.LOOK)
        asked = read_query(request, Asked)
        wanted = wanted_by(caller, asked)
        # A client that connects again sends the header, with the query of its first time.
        after = request.headers.get("last-event-id") or asked.after
        whose = None if caller.may(Action.OPERATE) else caller.tenant
        if self._readers[whose] >= MOST_READERS:
            raise RateLimited(f"{MOST_READERS} are reading the events already", retry_after_s=10.0)
        if request.method == "HEAD":
            return Response(media_type=_SSE, headers=_HEADERS)
        upto, strange = self._start(after)
        welcome = partial(self._access.still_admits, caller)
        shown = _whole if whose is None else _without_key
        pieces = self.pieces(upto, wanted, strange=strange, welcome=welcome, shown=shown)
        self._readers[whose] += 1
        return _Following(pieces, partial(self._leave, whose))

    def _leave(self, whose: str | None) -> None:
        self._readers[whose] -= 1
        if not self._readers[whose]:
            del self._readers[whose]

    async def pieces(
        self,
        upto: int,
        wanted: Wanted,
        *,
        strange: bool = False,
        welcome: Callable[[], bool],
        shown: Callable[[Event], Event] | None = None,
    ) -> AsyncIterator[bytes]:
        """For as long as it is read: a reader that dawdles is not waited for, and hears what it missed."""
        yield _BEGINNING + (self._gap(None, upto) if strange else b"")
        written_at = self._clock.now()
        while True:
            if not welcome():
                yield self._end(upto, "unauthorized")
                return
            closed = self._ring.closed
            reading = self._ring.read(upto, wanted, MOST_AT_ONCE)
            piece = self._gap(reading.lost, upto + reading.lost) if reading.lost else b""
            piece += b"".join(self._told(one, shown or _whole) for one in reading.found)
            upto = reading.upto
            if piece or self._clock.now() - written_at >= HEARTBEAT_S:
                yield piece or self._heartbeat(upto)
                written_at = self._clock.now()
            if closed and upto == self._ring.last:
                yield self._end(upto, "draining")
                return
            await self._clock.sleep(GATHER_S)
            await self._ring.wait(upto, within_s=written_at + HEARTBEAT_S - self._clock.now())

    def _start(self, after: str | None) -> tuple[int, bool]:
        """Where to go on, and whether nobody knows how much was missed until there: another run's is unknown."""
        if after is None:
            return self._ring.last, False
        if after == ALL_KEPT:
            return self._ring.first - 1, False
        run, _, number = after.rpartition("-")
        if not run.isalnum() or not (number.isascii() and number.isdecimal()) or len(number) > 18:
            raise InvalidRequest(
                f"after: {after[:LONGEST_SHOWN_CHARS]!r} is no id of an event; 0 is for all that are kept",
                param="after",
            )
        if run.encode() != self._run or int(number) > self._ring.last:
            return self._ring.first - 1, True
        return int(number), False

    def _gap(self, lost: int | None, upto: int) -> bytes:
        return self._data(upto, {"type": "gap", "at": self._clock.utc(), "lost": lost})

    def _end(self, upto: int, reason: str) -> bytes:
        return self._data(upto, {"type": "end", "at": self._clock.utc(), "reason": reason})

    def _told(self, one: Numbered, shown: Callable[[Event], Event]) -> bytes:
        return b"id: %b-%d\ndata: %b\n\n" % (self._run, one.number, tell(one.at, shown(one.event)))

    def _data(self, number: int, told: dict[str, Any]) -> bytes:
        return b"id: %b-%d\ndata: %b\n\n" % (self._run, number, _encode(told))

    def _heartbeat(self, upto: int) -> bytes:
        """No event, but it moves the place where the reader will go on."""
        return b": nothing new\nid: %b-%d\n\n" % (self._run, upto)


class _Following(StreamingResponse):
    """One reader's stream."""

    def __init__(self, pieces: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(pieces, headers=_HEADERS, media_type=_SSE)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


def _whole(event: Event) -> Event:
    return event


def _without_key(event: Event) -> Event:
    """Who paused a model is the name of a key, and mostly of another tenant's: that is for operators."""
    return msgspec.structs.replace(event, by=None) if isinstance(event, ModelPauseChanged) else event


def tell(at: datetime, event: Event) -> bytes:
    """An event as one line of JSON: its type, its moment, its fields."""
    try:
        fields = _encode(event)
    except UnicodeEncodeError:
        # An id or a provider's code may hold what UTF-8 cannot, such as half a surrogate pair. Escape it.
        fields = json.dumps(msgspec.to_builtins(event)).encode()
    return b'{"type":"%b","at":%b,%b' % (type(event).__name__.encode(), _encode(at), fields[1:])


def wanted_by(caller: Caller, asked: Asked) -> Wanted:
    kinds = frozenset(_kinds(asked.types.split(",")) if asked.types else TYPES.values())
    sees, model = _sight(caller), asked.model
    if model is None:
        return lambda event: type(event) in kinds and sees(event)
    return lambda event: type(event) in kinds and getattr(event, "model", None) == model and sees(event)


def _kinds(names: Sequence[str]) -> list[type]:
    for name in names:
        if name not in TYPES:
            raise InvalidRequest(
                f"types: there is no event {name[:LONGEST_SHOWN_CHARS]!r}{did_you_mean(name, TYPES)}",
                param="types",
            )
    return [TYPES[name] for name in names]


def _sight(caller: Caller) -> Wanted:
    """Operators see all; who may watch sees its tenant's and what is nobody's; everybody else its tenant's."""
    tenant = caller.tenant
    if caller.may(Action.OPERATE):
        return lambda _: True
    if caller.may(Action.WATCH):
        return lambda event: getattr(event, "tenant", None) in (None, tenant)
    return lambda event: getattr(event, "tenant", None) == tenant
