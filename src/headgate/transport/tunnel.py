"""A CONNECT through a plain HTTP proxy: bytes that lead to the origin, on which TLS can begin.

Knows the proxy's short answer and nothing of what goes through the tunnel.
"""

import asyncio
import re
from typing import Final, cast

from headgate.transport.endpoint import Origin
from headgate.transport.errors import BadResponse, ConnectFailed, ProxyRefused
from headgate.transport.limits import MAX_HEAD_BYTES
from headgate.transport.proxies import Proxy

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")


class Tunnel(asyncio.Protocol):
    """The protocol of a connection until the proxy has said yes. `opened` tells when, or why not."""

    def __init__(self, proxy: Proxy, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self.opened: asyncio.Future[None] = loop.create_future()
        self._proxy = proxy
        self._origin = origin
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request())

    def _request(self) -> bytes:
        host = f"[{self._origin.host}]" if ":" in self._origin.host else self._origin.host
        target = f"{host}:{self._origin.port}".encode("ascii")
        return b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (target, target, self._proxy.authorization)

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            return
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if end:
            self._judge(head, rest)
        elif len(self._head) > MAX_HEAD_BYTES:
            self._fail(BadResponse(f"the proxy {self._proxy} sent endless headers"))

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.opened.done():
            self._fail(ConnectFailed(f"the proxy {self._proxy} closed the connection before it answered"))

    def _judge(self, head: bytes, rest: bytes) -> None:
        found = _STATUS.match(head + b"\r")
        # TLS begins with us, so nothing can follow the proxy's yes.
        if found is None or (rest and found[1].startswith(b"2")):
            self._fail(BadResponse(f"the proxy {self._proxy} sent what is no answer to a CONNECT"))
        elif found[1].startswith(b"2"):
            self.opened.set_result(None)
        else:
            status = int(found[1])
            hint = "; check the name and password in HTTPS_PROXY" if status == 407 else ""
            message = f"the proxy {self._proxy} refused the way to {self._origin} with status {status}{hint}"
            self._fail(ProxyRefused(message, status=status))

    def _fail(self, error: Exception) -> None:
        self.opened.set_exception(error)
        self.opened.exception()  # Whoever dialled may have left; that is no news for the log.
