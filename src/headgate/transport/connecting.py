"""From an origin to an open connection: names, addresses in turn, TLS, a tunnel where a proxy stands between.

Knows sockets and certificates; knows nothing of requests.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from headgate.transport.connection import Connection, Keeper
from headgate.transport.endpoint import Origin
from headgate.transport.errors import CertificateRefused, ConnectFailed, ConnectTimedOut

Address = tuple[str, int]
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""The addresses of a host name, in the order in which they are tried."""
_MOST_ADDRESSES: Final = 8


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Certificates are always checked; `ca_file` takes the place of the system's authorities."""
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Ask the system. Addresses written as such need no asking, but the system accepts them, too."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name that can be looked up"
        raise ConnectFailed(f"the name {host} could not be looked up: {reason}") from error
    return list(dict.fromkeys((str(entry[4][0]), port) for entry in found))


class Dialer:
    """Opens connections. One TLS context for all of them."""

    def __init__(self, *, tls: ssl.SSLContext, resolve: Resolve = resolve) -> None:
        self._tls = tls
        self._resolve = resolve

    async def dial(self, origin: Origin, keeper: Keeper, until: float) -> Connection:
        """A connection to the origin before the loop time `until`."""
        try:
            async with asyncio.timeout_at(until):
                addresses = await self._resolve(origin.host, origin.port)
                return await self.dial_addresses(origin, addresses, keeper, until)
        except TimeoutError as error:
            raise ConnectTimedOut(f"{origin} did not take a connection in time") from error

    async def dial_addresses(
        self, origin: Origin, addresses: Sequence[Address], keeper: Keeper, until: float
    ) -> Connection:
        """The first address that takes the connection. One that is silent must leave time for the others."""
        loop = asyncio.get_running_loop()
        tried = addresses[:_MOST_ADDRESSES]
        failure: Exception = ConnectFailed(f"the name {origin.host} has no address")
        for index, address in enumerate(tried):
            share_until = loop.time() + (until - loop.time()) / (len(tried) - index)
            try:
                async with asyncio.timeout_at(share_until):
                    return await self._connect(origin, address, keeper)
            except ssl.SSLCertVerificationError as error:
                raise CertificateRefused(
                    f"the certificate of {origin} is not accepted: {error.verify_message}; "
                    "give the authority that signed it as ca_file, or correct the URL"
                ) from error
            except TimeoutError as error:
                failure = ConnectTimedOut(f"{origin} did not take a connection in time")
                failure.__cause__ = error
            except OSError as error:
                failure = ConnectFailed(
                    f"{origin} could not be reached: {error.strerror or type(error).__name__}"
                )
                failure.__cause__ = error
        raise failure

    async def _connect(self, origin: Origin, address: Address, keeper: Keeper) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = address
        _, connection = await loop.create_connection(
            lambda: Connection(str(origin), keeper, loop),
            host,
            port,
            ssl=self._tls if origin.tls else None,
            server_hostname=origin.host if origin.tls else None,
        )
        return connection
