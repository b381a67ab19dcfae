"""Which proxy stands between us and an origin, as the environment tells it: HTTPS_PROXY, HTTP_PROXY, NO_PROXY.

Pure: the environment is handed in. Only plain HTTP proxies; the way through them is in `tunnel`.
"""

import base64
import ipaddress
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple, Self

from headgate.core.errors import SettingsError
from headgate.transport.endpoint import Origin


class Proxy(NamedTuple):
    """A plain HTTP proxy. `authorization` is a ready header line, or nothing."""

    host: str
    port: int
    authorization: bytes = b""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Proxy({self})"


class Proxies(NamedTuple):
    """The proxies per scheme, and the hosts that are reached without."""

    http: Proxy | None = None
    https: Proxy | None = None
    exempt: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Lower-case names win, as with curl. Raises `SettingsError` for a proxy we cannot use."""

        def read(name: str) -> str:
            return (environment.get(name) or environment.get(name.upper()) or "").strip()

        exempt = tuple(entry for entry in read("no_proxy").lower().replace(",", " ").split() if entry)
        return cls(
            _proxy("http_proxy", read("http_proxy")), _proxy("https_proxy", read("https_proxy")), exempt
        )

    def between(self, origin: Origin) -> Proxy | None:
        proxy = self.https if origin.tls else self.http
        if proxy is None or any(_covers(entry, origin) for entry in self.exempt):
            return None
        return proxy


def _proxy(name: str, url: str) -> Proxy | None:
    if not url:
        return None
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(f"{name.upper()} is no URL; write it as http://host:port") from None
    if parts.scheme != "http":
        raise SettingsError(
            f"{name.upper()} names a proxy of the kind {parts.scheme[:20]!r}; only plain http:// proxies can be used"
        )
    if not host:
        raise SettingsError(f"{name.upper()} names no host; write it as http://host:port")
    return Proxy(host, port or 80, _authorization(parts.username, parts.password))


def _authorization(user: str | None, password: str | None) -> bytes:
    if user is None:
        return b""
    secret = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password or '')}".encode()
    return b"Proxy-Authorization: Basic %b\r\n" % base64.b64encode(secret)


def _covers(entry: str, origin: Origin) -> bool:
    """One entry of NO_PROXY: `*`, a name with all below it, an address or a network, each with an optional port."""
    if entry == "*":
        return True
    if _in_network(entry.strip("[]"), origin.host):
        return True
    name, _, port = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
    if port and port != str(origin.port):
        return False
    name = name.removeprefix("*").removeprefix(".")
    return bool(name) and (origin.host == name or origin.host.endswith(f".{name}"))


def _in_network(entry: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
