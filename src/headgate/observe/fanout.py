"""Hands each event to everybody who listens. Knows no listener by name and survives all of them."""

import asyncio
import logging
import threading
from collections.abc import Callable

from headgate.core.events import Event, Listener

_log = logging.getLogger("headgate")


class _Seat:
    """One listener's place, and the kinds of error it was already blamed for."""

    __slots__ = ("blamed_for", "listener")

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.blamed_for: set[type[BaseException]] = set()


class EventFanout:
    """Call it with an event and every listener gets it, in the order they came. Safe from any thread."""

    __slots__ = ("_door", "_seats")

    def __init__(self) -> None:
        self._door = threading.Lock()
        # Replaced, never changed: who comes or goes during an event does not disturb the round.
        self._seats: tuple[_Seat, ...] = ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; the answer takes it away again, and may be called more than once."""
        seat = _Seat(listener)
        with self._door:
            self._seats = (*self._seats, seat)

        def unlisten() -> None:
            with self._door:
                self._seats = tuple(other for other in self._seats if other is not seat)

        return unlisten

    def __call__(self, event: Event) -> None:
        for seat in self._seats:
            try:
                seat.listener(event)
            # A place for a broad except: a listener is anybody's code, and no call may fail
            # by it. CancelledError too: here it comes from a listener's own future, the caller is not cancelled.
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
                _blame(seat, error)


def _blame(seat: _Seat, error: BaseException) -> None:
    if type(error) in seat.blamed_for:
        return
    seat.blamed_for.add(type(error))
    _log.error(
        "event listener %r raised %s; it stays, and its next %s will not be logged",
        seat.listener,
        type(error).__name__,
        type(error).__name__,
        exc_info=error,
    )
