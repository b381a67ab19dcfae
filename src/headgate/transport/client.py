"""The transport's face: `send` a request, get its response. One per gateway; it retries and follows nothing."""

import asyncio
from collections.abc import Sequence
from typing import Final

from headgate.transport.connecting import Dialer, tls_context
from headgate.transport.connection import Connection, Keeper
from headgate.transport.endpoint import Endpoint, Origin, render_headers
from headgate.transport.errors import TransportClosed
from headgate.transport.headers import RawHeader
from headgate.transport.limits import Limits
from headgate.transport.pool import OriginPool
from headgate.transport.response import Response

_DEFAULT: Final = Limits()


class Transport:
    """Connections are kept per origin and lent to one request at a time.

    `keep_alive_s` should be shorter than the servers' own patience, so that we are the ones who close.
    """

    def __init__(
        self,
        *,
        keep_alive_s: float = 60.0,
        connections_per_origin: int = 1000,
        ca_file: str | None = None,
    ) -> None:
        self._keep_alive_s = keep_alive_s
        self._connections_per_origin = connections_per_origin
        self._dialer = Dialer(tls=tls_context(ca_file))
        self._pools: dict[Origin, OriginPool] = {}
        self._closed = False

    async def send(
        self,
        endpoint: Endpoint,
        body: bytes = b"",
        *,
        headers: Sequence[RawHeader] = (),
        limits: Limits = _DEFAULT,
    ) -> Response:
        """Send one request; returns when status and headers are there. Any status is an answer, 3xx too.

        Cancelling it, or leaving the response early, drops the connection at once.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        ends_at = limits.ends_at(now)
        pool = self._pools.get(endpoint.origin) or self._add_pool(endpoint.origin)
        more = render_headers(headers) if headers else b""
        connection = pool.take() or await pool.obtain(min(now + limits.connect_s, ends_at))
        data = b"%b%d\r\n%b\r\n%b" % (endpoint.start, len(body), more, body)
        response = connection.begin(data, limits, ends_at)
        await response.head_arrived()
        return response

    async def aclose(self) -> None:
        """Close all connections, the busy ones too."""
        self._closed = True
        for pool in self._pools.values():
            await pool.aclose()

    def _add_pool(self, origin: Origin) -> OriginPool:
        if self._closed:
            raise TransportClosed("the transport is closed: this process is going away")

        async def dial(keeper: Keeper, until: float) -> Connection:
            return await self._dialer.dial(origin, keeper, until)

        pool = self._pools[origin] = OriginPool(
            str(origin), dial, most=self._connections_per_origin, keep_alive_s=self._keep_alive_s
        )
        return pool
