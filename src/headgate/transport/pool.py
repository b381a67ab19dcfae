"""The connections to one origin: the idle ones, the number of all, and who waits for one.

Knows how connections are lent and counted; how they are made is handed in.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from headgate.transport.connection import Connection
from headgate.transport.errors import ConnectionCut, ConnectTimedOut, TransportClosed
from headgate.transport.proxies import Proxy

Dial = Callable[["OriginPool", float], Awaitable[Connection]]
"""Opens a connection for a pool, until a loop time."""


class OriginPool:
    """The last one freed is lent first, so that those not needed grow old and close."""

    def __init__(
        self, host: str, dial: Dial, *, most: int, keep_alive_s: float, plain_proxy: Proxy | None = None
    ) -> None:
        self.host = host
        self.plain_proxy = plain_proxy
        """A proxy that forwards the requests themselves, and therefore needs them spelled its way."""
        self.keep_alive_s = keep_alive_s
        self._dial = dial
        self._most = most
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._dialing = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._emptied: asyncio.Future[None] | None = None

    def take(self) -> Connection | None:
        """An idle connection on which nothing has happened, if there is one.

        This check is all the stale-connection handling there is. A request that was written to a connection which
        then ended may have been carried out: whether to repeat it is for the owner of retries to decide.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.abort()
        return None

    async def obtain(self, until: float) -> Connection:
        """An idle connection or a new one; waits its turn where `most` are open."""
        overtaken = False
        while not self._closed:
            connection = self.take()
            if connection is not None:
                return connection
            if len(self._all) + self._dialing < self._most:
                return await self._open(until)
            await self._turn(until, first=overtaken)
            overtaken = True
        raise self._going_away()

    def freed(self, connection: Connection) -> None:
        if self._closed:
            connection.abort()
            return
        self._idle.append(connection)
        if self._waiters:
            self._wake_one()

    def lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake_one()
        if self._emptied is not None and not self._all and not self._emptied.done():
            self._emptied.set_result(None)

    async def aclose(self) -> None:
        """Abort everything; readers get `TransportClosed`."""
        self._closed = True
        for connection in list(self._all):
            connection.abort(TransportClosed(f"the connection to {self.host} was closed by this process"))
        while self._waiters:
            self._wake_one()
        if self._all:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    async def _open(self, until: float) -> Connection:
        self._dialing += 1
        try:
            connection = await self._dial(self, until)
        except BaseException:
            self._dialing -= 1
            self._wake_one()
            raise
        self._dialing -= 1
        if connection.closed:
            self._wake_one()
            raise ConnectionCut(f"{self.host} closed the connection as soon as it was open")
        self._all.add(connection)
        if self._closed:
            connection.abort()
            raise self._going_away()
        return connection

    def _going_away(self) -> TransportClosed:
        return TransportClosed(f"no connections to {self.host} any more: this process is going away")

    async def _turn(self, until: float, *, first: bool) -> None:
        """Wait until a connection is free or may be opened. Who was overtaken goes `first` the next time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiters.appendleft if first else self._waiters.append)(waiter)
        try:
            async with asyncio.timeout_at(until):
                await waiter
        except TimeoutError:
            self._pass_on(waiter)
            message = f"all {self._most} connections to {self.host} were busy; raise the limit or send less at a time"
            raise ConnectTimedOut(message) from None
        except asyncio.CancelledError:
            self._pass_on(waiter)
            raise

    def _pass_on(self, waiter: asyncio.Future[None]) -> None:
        """A turn that came to somebody who has left belongs to the next in line."""
        if waiter.done() and not waiter.cancelled():
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
