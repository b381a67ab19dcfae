"""Listening, the cap on connections, and the end. What a connection does is its own affair."""

import asyncio
from typing import Final, cast

from headgate.server.http.connection import Connection
from headgate.server.http.exchange import Serve
from headgate.server.http.files import raise_file_limit
from headgate.server.http.front import Door, Front, Open, TenantOf
from headgate.server.http.limits import CANCEL_GRACE_S, HttpLimits
from headgate.server.http.refusals import Refuse, openai_error, overcrowded

_BACKLOG: Final = 2048


class _Overflow(asyncio.Protocol):
    """Turns a client away without remembering it."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writer = cast("asyncio.WriteTransport", transport)
        writer.write(self._front.refusal(overcrowded()))
        writer.close()


class Server:
    """Hands each request over HTTP/1.1 to `serve` (an ASGI application: `Asgi(app)`). `refuse` formats the bodies of refusals it makes by itself."""

    def __init__(
        self,
        serve: Serve,
        *,
        limits: HttpLimits | None = None,
        refuse: Refuse = openai_error,
        door: Door | None = None,
        tenant_of: TenantOf = lambda _: None,
    ) -> None:
        self._serve = serve
        self._limits = limits or HttpLimits()
        self._refuse = refuse
        self._door = door or Open()
        self._tenant_of = tenant_of
        self._front: Front | None = None
        self._listening: asyncio.Server | None = None
        self._overflow: _Overflow | None = None
        self._most_connections = self._limits.connections

    @property
    def connections(self) -> int:
        return len(self._front.connections) if self._front else 0

    @property
    def most_connections(self) -> int:
        """What was asked for, or what the process's limit of open files leaves."""
        return self._most_connections

    async def start(self, host: str, port: int, *, backlog: int = _BACKLOG) -> int:
        """Listen. Returns the port, which is the system's choice where 0 was asked for."""
        loop = asyncio.get_running_loop()
        self._front = Front(self._serve, self._limits, self._refuse, loop, self._door, self._tenant_of)
        self._overflow = _Overflow(self._front)
        self._most_connections = min(self._limits.connections, raise_file_limit())
        self._front.max_connections = self._most_connections
        self._listening = await loop.create_server(self._welcome, host, port, backlog=backlog)
        return int(self._listening.sockets[0].getsockname()[1])

    async def drain(self, drain_s: float) -> None:
        """Take nothing new, finish what runs, and after `drain_s` cancel it. Returns when everybody has left."""
        front = self._front
        if front is None or self._listening is None:
            return
        front.draining = True
        self._listening.close()
        for connection in list(front.connections):
            connection.drain()
        if not await front.quiet(drain_s):
            for exchange in list(front.running):
                exchange.task.cancel()
            await front.quiet(CANCEL_GRACE_S)
        for connection in list(front.connections):
            connection.abort()
        await front.quiet(CANCEL_GRACE_S)

    async def aclose(self) -> None:
        """Stop at once."""
        await self.drain(0)

    def _welcome(self) -> asyncio.Protocol:
        front, overflow = self._front, self._overflow
        assert front is not None  # noqa: S101 - set before listening
        assert overflow is not None  # noqa: S101 - likewise
        if len(front.connections) >= self._most_connections and not front.make_room():
            return overflow
        return Connection(front)
