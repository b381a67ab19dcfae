"""From an origin to an open connection: addresses in turn, TLS, a tunnel where a proxy stands between.

Knows sockets and certificates; knows nothing of requests.
"""

import asyncio
import functools
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headgate.core.errors import SettingsError
from headgate.transport.connection import Connection, Keeper
from headgate.transport.endpoint import Origin
from headgate.transport.errors import CertificateRefused, ConnectFailed, ConnectTimedOut, TransportError
from headgate.transport.names import DaemonThreads, Resolve
from headgate.transport.proxies import Proxy
from headgate.transport.tunnel import Tunnel

_MOST_ADDRESSES: Final = 8
_MAX_CONTEXTS: Final = 64
_READING: Final[DaemonThreads[ssl.SSLContext]] = DaemonThreads("headgate certificates", max_threads=1)


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Certificates are always checked; `ca_file` takes the place of the system's authorities. Blocks.

    One for each file, as long as it does not change: to read it takes tens of milliseconds, and each new member of a
    family of models asks for it in the event loop.
    """
    try:
        found = None if ca_file is None else Path(ca_file).stat()
        return _read_context(ca_file, None if found is None else (found.st_mtime_ns, found.st_size))
    except OSError as error:
        reason = error.strerror or "it holds no certificate"
        raise SettingsError(f"ca_file {ca_file} cannot be used: {reason}") from error


@functools.lru_cache(maxsize=_MAX_CONTEXTS)
def _read_context(ca_file: str | None, _version: tuple[int, int] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def system_tls() -> ssl.SSLContext:
    """Trusts the system's authorities; one for the process. To read them takes tens of milliseconds: not in the loop."""
    return await asyncio.wrap_future(_READING.submit(tls_context))


class Dialer:
    """Opens connections. One TLS context for all of them: without one of its own, the system's."""

    def __init__(self, *, tls: ssl.SSLContext | None, resolve: Resolve) -> None:
        self._tls = tls
        self._resolve = resolve

    async def dial(
        self, origin: Origin, keeper: Keeper, until: float, proxy: Proxy | None = None
    ) -> Connection:
        """A connection to the origin before the loop time `until`."""
        host, port = (proxy.host, proxy.port) if proxy is not None else (origin.host, origin.port)
        addresses = await self.addresses(host, port, until)
        return await self.dial_addresses(origin, addresses, keeper, until, proxy)

    async def addresses(self, host: str, port: int, until: float) -> Sequence[str]:
        try:
            async with asyncio.timeout_at(until):
                return await self._resolve(host, port)
        except TimeoutError as error:
            raise ConnectTimedOut(f"the name {host} could not be looked up in time") from error

    async def dial_addresses(
        self,
        origin: Origin,
        addresses: Sequence[str],
        keeper: Keeper,
        until: float,
        proxy: Proxy | None = None,
    ) -> Connection:
        """The first address that takes the connection. One that is silent must leave time for the others."""
        loop = asyncio.get_running_loop()
        tried = addresses[:_MOST_ADDRESSES]
        failure: TransportError = ConnectFailed(f"the name {origin.host} has no address")
        for index, address in enumerate(tried):
            share_s = (until - loop.time()) / (len(tried) - index)
            try:
                async with asyncio.timeout(share_s):
                    return await self._connect(origin, address, keeper, proxy)
            except OSError as error:
                failure = _translated(error, origin, proxy)
                failure.__cause__ = error
                if isinstance(failure, CertificateRefused):
                    break
        raise failure

    async def _connect(self, origin: Origin, address: str, keeper: Keeper, proxy: Proxy | None) -> Connection:
        loop = asyncio.get_running_loop()
        if proxy is not None and origin.tls:
            return await self._connect_through(proxy, address, origin, keeper)
        _, connection = await loop.create_connection(
            lambda: Connection(str(origin), keeper, loop),
            address,
            origin.port if proxy is None else proxy.port,
            ssl=await self._context() if origin.tls else None,
            server_hostname=origin.host if origin.tls else None,
        )
        return connection

    async def _connect_through(
        self, proxy: Proxy, address: str, origin: Origin, keeper: Keeper
    ) -> Connection:
        loop = asyncio.get_running_loop()
        tls = await self._context()
        raw, tunnel = await loop.create_connection(lambda: Tunnel(proxy, origin, loop), address, proxy.port)
        connection = Connection(str(origin), keeper, loop)
        try:
            await tunnel.opened
            secured = await loop.start_tls(raw, connection, tls, server_hostname=origin.host)
        except BaseException:
            raw.abort()
            raise
        if secured is None:
            raise ConnectFailed(f"{origin} closed the connection as soon as it was open")
        connection.connection_made(secured)
        return connection

    async def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = await system_tls()
        return self._tls


def _translated(error: OSError, origin: Origin, proxy: Proxy | None) -> TransportError:
    where = str(origin) if proxy is None else f"{origin} (through the proxy {proxy})"
    match error:
        case ssl.SSLCertVerificationError():
            return CertificateRefused(
                f"the certificate of {origin} is not accepted: {error.verify_message}; "
                "give the authority that signed it as ca_file, or correct the URL"
            )
        case TimeoutError():
            return ConnectTimedOut(f"{where} did not take a connection in time")
        case ssl.SSLError():
            return ConnectFailed(f"{where} broke off the TLS handshake: {error.reason}")
    return ConnectFailed(f"{where} could not be reached: {error.strerror or type(error).__name__}")
