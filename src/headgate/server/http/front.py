"""What all connections of one server share."""

import asyncio
from typing import TYPE_CHECKING

from headgate.server.http.answer import Dates
from headgate.server.http.exchange import Exchange, Serve
from headgate.server.http.limits import HttpLimits
from headgate.server.http.refusals import Refuse, Refused, refusal

if TYPE_CHECKING:
    from headgate.server.http.connection import Connection


class Front:
    """The application, the limits, and who is here."""

    __slots__ = (
        "_quiet",
        "_refuse",
        "connections",
        "dates",
        "draining",
        "limits",
        "loop",
        "running",
        "serve",
    )

    def __init__(
        self, serve: Serve, limits: HttpLimits, refuse: Refuse, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.serve = serve
        self.limits = limits
        self.loop = loop
        self.dates = Dates()
        self.draining = False
        self.connections: set[Connection] = set()
        self.running: set[Exchange] = set()
        self._refuse = refuse
        self._quiet = asyncio.Event()

    def refusal(self, refused: Refused) -> bytes:
        return refusal(refused, self._refuse)

    def left(self) -> None:
        """A connection or an exchange has ended."""
        if not self.connections and not self.running:
            self._quiet.set()

    async def quiet(self, within_s: float) -> bool:
        """Wait until nobody is here any more, but not longer than this."""
        if self.connections or self.running:
            self._quiet.clear()
        else:
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True
