"""The flow and the clock of one connection: who has to wait for whom, and for how long. Knows no HTTP.

One lazy timer keeps both deadlines, that of what the client owes us and that of what it takes from us.
"""

import abc
import asyncio
import math
from typing import Final, cast

from headgate.server.http.limits import HttpLimits

_LEAST_PROGRESS_BYTES: Final = 16 * 1024
"""A client that takes less of its answer within `write_timeout_s` is as good as gone."""


class Flow(asyncio.Protocol, abc.ABC):
    """A connection's lower half."""

    __slots__ = (
        "_left_s",
        "_limits",
        "_loop",
        "_read_by",
        "_timer",
        "_timer_at",
        "_transport",
        "_unsent_bytes",
        "_write_by",
        "room",
        "write",
    )

    _transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: HttpLimits) -> None:
        self.room: asyncio.Event | None = None
        """While the client does not read: set when it does again."""
        self._loop = loop
        self._limits = limits
        self._read_by = math.inf
        self._write_by = math.inf
        self._left_s: float | None = None  # Of `_read_by`, while reading is paused.
        self._unsent_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        self._read_within(self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # Why a client leaves is its own business.
        self._read_by = self._write_by = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._open_room()

    # --- What the client takes from us ---

    def pause_writing(self) -> None:
        self.room = asyncio.Event()
        self._write_within_limit()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():  # The last bytes of a closing connection stay bound in time.
            self._write_by = math.inf
        self._open_room()

    def _write_within_limit(self) -> None:
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._write_by = self._loop.time() + self._limits.write_timeout_s
        self._watch()

    def _open_room(self) -> None:
        if self.room is not None:
            self.room.set()
            self.room = None

    # --- What the client owes us ---

    def _read_within(self, seconds: float) -> None:
        self._read_by = self._loop.time() + seconds
        self._watch()

    def _pause_reading(self) -> None:
        """Only the time in which we listen is the client's."""
        if self._left_s is None and not self._transport.is_closing():
            self._left_s = self._read_by - self._loop.time()
            self._read_by = math.inf
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._left_s is not None and not self._transport.is_closing():
            left_s, self._left_s = self._left_s, None
            self._transport.resume_reading()
            self._read_within(left_s)

    @abc.abstractmethod
    def _reading_is_late(self) -> None: ...

    # --- The timer ---

    def _watch(self) -> None:
        """Deadlines move often, mostly later; the timer is moved only when it would ring too late."""
        due = min(self._read_by, self._write_by)
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        now = self._loop.time()
        if self._write_by <= now:
            self._look_at_writing()
        elif self._read_by <= now:
            self._read_by = math.inf
            self._reading_is_late()
        self._watch()

    def _look_at_writing(self) -> None:
        if self._unsent_bytes - self._transport.get_write_buffer_size() < _LEAST_PROGRESS_BYTES:
            self._write_by = math.inf
            self._transport.abort()
        else:
            self._write_within_limit()
