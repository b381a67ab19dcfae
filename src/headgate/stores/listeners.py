"""Who wants to hear from a store: that jobs may be ready, how long it takes, that it went down or came back."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from headgate.core.errors import StoreUnavailable
from headgate.core.ports.store import StoreHealth

logger = logging.getLogger("headgate")
SOON_S: Final = 1.0
"""Jobs that get due within this time are worth a ring: a worker looks by itself only that often."""
Tell = Callable[[StoreHealth, str], None]


class Listeners:
    """Rings in the event loop; tells of health from whichever thread met the trouble."""

    def __init__(self, name: str) -> None:
        self.health = StoreHealth.OK
        self._name = name
        self._ready: list[Callable[[], None]] = []
        self._trips: list[Callable[[float], None]] = []
        self._told: list[tuple[Tell, asyncio.AbstractEventLoop]] = []

    def on_ready(self, ring: Callable[[], None]) -> Callable[[], None]:
        self._ready.append(ring)
        return lambda: self._ready.remove(ring)

    def on_health(self, tell: Tell) -> Callable[[], None]:
        listener = (tell, asyncio.get_running_loop())
        self._told.append(listener)
        return lambda: self._told.remove(listener)

    def on_trip(self, tell: Callable[[float], None]) -> Callable[[], None]:
        self._trips.append(tell)
        return lambda: self._trips.remove(tell)

    def trip(self, took_s: float) -> None:
        for tell in self._trips:
            tell(took_s)

    def ring(self) -> None:
        for ring in tuple(self._ready):
            ring()

    def trouble(self, error: BaseException | None) -> None:
        """None: the last operation went well."""
        health = StoreHealth.OK if error is None else StoreHealth.DOWN
        if health is self.health:
            return
        self.health = health
        if error is None:
            logger.warning("%s works again", self._name)
        else:
            what = str(error).removeprefix(f"{self._name}: ")
            logger.error("%s does not work: %s. %s", self._name, what, _outlook(error))
        for tell, loop in tuple(self._told):
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, health, "" if error is None else str(error))


def _outlook(error: BaseException) -> str:
    if isinstance(error, StoreUnavailable) and not error.waiting_helps:
        return "It does not mend by itself."
    return "It is tried again; nothing accepted is lost."
