"""Asking a URL that a stranger gave: every address is checked, and the checked one is the one connected to.

Builds on `guard` (may we?) and `connecting` (how). No pool, no proxy, no cookies, no credentials carried on.
"""

import asyncio
import ssl
import urllib.parse
from collections.abc import Sequence
from typing import Final

import msgspec

from headgate.transport.connecting import Dialer
from headgate.transport.connection import Connection
from headgate.transport.endpoint import Endpoint, Origin, check_spelling, split_url
from headgate.transport.errors import AddressRefused, PageTooLarge, TooLarge, TotalTimedOut, UrlRefused
from headgate.transport.guard import why_refused
from headgate.transport.headers import Headers, RawHeader
from headgate.transport.limits import Limits
from headgate.transport.names import STRANGERS, Resolve
from headgate.transport.response import Response

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class FetchRules(msgspec.Struct, frozen=True, kw_only=True):
    """What strangers may ask for. `allow_private` opens intranets and this machine, never metadata services."""

    allow_private: bool = False
    ports: frozenset[int] | None = frozenset({80, 443})
    """None: any."""
    max_redirects: int = 5
    max_bytes: int = 5 * 1024 * 1024
    connect_s: float = 5.0
    idle_s: float = 10.0
    total_s: float = 20.0
    """Over all redirects."""
    tenant: str | None = None
    """Who gave the URL: one tenant's lookups of names never wait for another's. None: the operator."""


class Fetched(msgspec.Struct, frozen=True):
    """What came back, and from where after all redirects."""

    url: str
    status: int
    headers: Headers
    body: bytes


class Posted(msgspec.Struct, frozen=True):
    """How a message was taken. What else the answer said was not read."""

    status: int
    headers: Headers


class _Once:
    """Keeps nothing: each connection serves one request."""

    keep_alive_s = 0.0

    def freed(self, connection: Connection) -> None:
        connection.abort()

    def lost(self, connection: Connection) -> None:
        pass


class Fetcher:
    """`fetch` refuses with `UrlRefused` or `AddressRefused`, before anything is sent."""

    def __init__(
        self,
        rules: FetchRules | None = None,
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._rules = rules or FetchRules()
        self._dialer = Dialer(tls=tls, resolve=resolve or STRANGERS.of(self._rules.tenant))

    async def fetch(
        self, url: str, *, method: str = "GET", body: bytes = b"", headers: Sequence[RawHeader] = ()
    ) -> Fetched:
        """Ask once. A GET follows redirects, each checked like the first; headers stay with the first origin."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._rules.total_s
        first, _ = split_url(url)
        for _ in range(self._rules.max_redirects + 1):
            origin, _ = split_url(url)
            endpoint = Endpoint(url, method=method, headers=headers if origin == first else ())
            with await self._send(endpoint, body, ends_at) as response:
                location = response.headers.get("location") if response.status in _REDIRECTS else None
                if location is None or method != "GET" or self._rules.max_redirects == 0:
                    return Fetched(url, response.status, response.headers, await self._body(response))
                # Headers are read as Latin-1; what sites put there raw is UTF-8.
                location = location.encode("latin-1").decode("utf-8", "replace")
                check_spelling(location)
                url = urllib.parse.urljoin(url, location)
        raise UrlRefused(f"{first} redirects more than {self._rules.max_redirects} times")

    async def _body(self, response: Response) -> bytes:
        try:
            return await response.read(self._rules.max_bytes)
        except TooLarge as error:
            raise PageTooLarge(str(error)) from error

    async def post(self, url: str, body: bytes, headers: Sequence[RawHeader] = ()) -> Posted:
        """Send once and look at the head of the answer; its body is left unread. Nothing is followed."""
        ends_at = asyncio.get_running_loop().time() + self._rules.total_s
        with await self._send(Endpoint(url, headers=headers), body, ends_at) as response:
            return Posted(response.status, response.headers)

    async def _send(self, endpoint: Endpoint, body: bytes, ends_at: float) -> Response:
        rules, loop = self._rules, asyncio.get_running_loop()
        if loop.time() >= ends_at:
            raise TotalTimedOut(
                f"{endpoint.origin} came too late: {rules.total_s:g} s were gone after redirects"
            )
        until = min(loop.time() + rules.connect_s, ends_at)
        addresses = await self._checked(endpoint.origin, until)
        connection = await self._dialer.dial_addresses(endpoint.origin, addresses, _Once(), until)
        data = b"%b%d\r\n\r\n%b" % (endpoint.head(extra=b"Connection: close\r\n"), len(body), body)
        response = connection.begin(data, Limits(idle_s=rules.idle_s), ends_at)
        await response.head_arrived()
        return response

    async def _checked(self, origin: Origin, until: float) -> Sequence[str]:
        """The addresses of the origin, all of them fit to be connected to. One bad address spoils the name."""
        ports = self._rules.ports
        if ports is not None and origin.port not in ports:
            allowed = ", ".join(str(port) for port in sorted(ports))
            raise UrlRefused(f"{origin} uses port {origin.port}; only {allowed} may be asked")
        addresses = await self._dialer.addresses(origin.host, origin.port, until)
        for address in addresses:
            why = why_refused(address, allow_private=self._rules.allow_private)
            if why is not None:
                message = f"{origin} leads to an address that is not allowed"
                raise AddressRefused(message, detail=f"{origin} leads to {address}: {why}")
        return addresses
