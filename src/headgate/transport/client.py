"""The transport's face: `send` a request, get its response. One per gateway; it retries and follows nothing."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from headgate.transport.connecting import Dialer, tls_context
from headgate.transport.connection import Connection, Keeper
from headgate.transport.endpoint import Endpoint, Origin, render_headers
from headgate.transport.errors import TransportClosed
from headgate.transport.headers import RawHeader
from headgate.transport.limits import Limits
from headgate.transport.names import Resolve, UpstreamNames
from headgate.transport.pool import OriginPool
from headgate.transport.proxies import Proxies, Proxy
from headgate.transport.response import Response

_DEFAULT: Final = Limits()


class Transport:
    """Connections are kept per origin and lent to one request at a time.

    `keep_alive_s` should be shorter than the servers' own patience, so that we are the ones who close. `stamp` gives
    header lines, each with its end, for the request that is being sent; `listen` is given the headers of its answer.
    """

    def __init__(
        self,
        *,
        keep_alive_s: float = 60.0,
        connections_per_origin: int = 1000,
        ca_file: str | None = None,
        proxies: Proxies | None = None,
        resolve: Resolve | None = None,
        stamp: Callable[[], bytes] | None = None,
        listen: Callable[[Sequence[RawHeader]], None] | None = None,
    ) -> None:
        self._keep_alive_s = keep_alive_s
        self._connections_per_origin = connections_per_origin
        self._proxies = proxies or Proxies()
        tls = None if ca_file is None else tls_context(ca_file)
        self._dialer = Dialer(tls=tls, resolve=resolve or UpstreamNames())
        self._pools: dict[Origin, OriginPool] = {}
        self._stamp = stamp
        self._listen = listen
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
        ends_at = math.inf if limits.total_s is None else now + limits.total_s
        pool = self._pools.get(endpoint.origin) or self._add_pool(endpoint.origin)
        more = render_headers(headers) if headers else b""
        if self._stamp is not None:
            more += self._stamp()
        connection = pool.take() or await pool.obtain(min(now + limits.connect_s, ends_at))
        start = endpoint.start if pool.plain_proxy is None else _start_for(endpoint, pool.plain_proxy)
        data = b"%b%d\r\n%b\r\n%b" % (start, len(body), more, body)
        response = connection.begin(data, limits, ends_at)
        while not response.status:
            await response.more()
        if self._listen is not None:
            self._listen(response.raw_headers)
        return response

    async def aclose(self) -> None:
        """Close all connections, the busy ones too."""
        self._closed = True
        for pool in self._pools.values():
            await pool.aclose()

    def _add_pool(self, origin: Origin) -> OriginPool:
        if self._closed:
            raise TransportClosed("the transport is closed: this process is going away")

        proxy = self._proxies.between(origin)

        async def dial(keeper: Keeper, until: float) -> Connection:
            return await self._dialer.dial(origin, keeper, until, proxy)

        pool = self._pools[origin] = OriginPool(
            str(origin),
            dial,
            most=self._connections_per_origin,
            keep_alive_s=self._keep_alive_s,
            plain_proxy=None if origin.tls else proxy,
        )
        return pool


def _start_for(endpoint: Endpoint, proxy: Proxy) -> bytes:
    return endpoint.head(f"http://{endpoint.origin.authority}", proxy.authorization)
