"""Where a request goes, rendered once: origin, request line and the headers that never change.

Knows how URLs and headers are spelled; opens nothing.
"""

import ipaddress
import re
import urllib.parse
from collections.abc import Iterable
from typing import Final, NamedTuple

from headgate.transport.errors import HeaderRefused, UrlRefused
from headgate.transport.headers import RawHeader

_PORTS: Final = {"http": 80, "https": 443}
_METHOD: Final = re.compile(r"[A-Z]{1,20}")
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_ODD: Final = re.compile(r"[\x00-\x20\x7f\\]")
_HOST_NAME: Final = re.compile(r"(?=.{1,253}$)(?:[0-9a-z_-]{1,63}\.)*[0-9a-z_-]{1,63}\.?")
_AUTHORITY: Final = re.compile(r"[^/?#]*//([^/?#]*)")
_DOT: Final = re.compile(r"[.\u3002\uff0e\uff61]")
"""What IDNA takes for a dot between labels."""
MAX_URL_CHARS: Final = 8192
MAX_HOST_CHARS: Final = 253
MAX_LABEL_CHARS: Final = 63
_MAX_AUTHORITY_CHARS: Final = MAX_HOST_CHARS + len(".:65535")
_TARGET_SAFE: Final = "!#$%&'()*+,/:;=?@[]~"
_OURS: Final = frozenset(
    {
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"accept-encoding",
        b"expect",
        b"upgrade",
        b"te",
    }
)


class Origin(NamedTuple):
    """Scheme, host and port: what connections are kept by."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


class Endpoint:
    """A prepared request: everything but the body and the headers of one call. Make it once, send it often."""

    __slots__ = ("method", "origin", "start", "static", "target")

    def __init__(self, url: str, *, method: str = "POST", headers: Iterable[RawHeader] = ()) -> None:
        if _METHOD.fullmatch(method) is None or method in {"HEAD", "CONNECT"}:
            raise ValueError(f"{method!r} is no method this transport can send")
        self.method = method
        self.origin, self.target = split_url(url)
        self.static = render_headers(headers)
        self.start = self.head()

    def head(self, target_prefix: str = "", extra: bytes = b"") -> bytes:
        """Everything up to the length of the body. A proxy wants the whole URL and `extra` lines."""
        return (
            f"{self.method} {target_prefix}{self.target} HTTP/1.1\r\n"
            f"Host: {self.origin.authority}\r\nAccept-Encoding: identity\r\n"
        ).encode("ascii") + b"%b%bContent-Length: " % (extra, self.static)

    def __repr__(self) -> str:
        return f"Endpoint({self.method} {self.origin})"


def split_url(url: str) -> tuple[Origin, str]:
    """The origin and the request target of an http(s) URL, spelled for the wire. Raises `UrlRefused`."""
    check_spelling(url)
    try:
        parts = urllib.parse.urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise UrlRefused(f"the URL cannot be read: {error}") from None
    if parts.scheme not in _PORTS:
        raise UrlRefused(f"the URL must begin with http:// or https://, not {parts.scheme[:20]!r}")
    if "@" in parts.netloc:
        raise UrlRefused("the URL must not hold a user name or password")
    if not host or port == 0:
        raise UrlRefused("the URL names no host" if not host else "port 0 cannot be reached")
    path = urllib.parse.quote(parts.path or "/", safe=_TARGET_SAFE)
    query = f"?{urllib.parse.quote(parts.query, safe=_TARGET_SAFE)}" if parts.query else ""
    return Origin(parts.scheme, _host_name(host), port or _PORTS[parts.scheme]), path + query


def check_spelling(url: str) -> None:
    """Refuse what takes long to parse, before anything parses it: `urllib` normalizes an authority in quadratic time."""
    if len(url) > MAX_URL_CHARS:
        raise UrlRefused(f"the URL has more than {MAX_URL_CHARS:,} characters")
    if _ODD.search(url):
        raise UrlRefused("the URL holds a space, a backslash or a control character; percent-encode it")
    authority = _AUTHORITY.match(url)
    if authority is not None and len(authority[1]) > _MAX_AUTHORITY_CHARS:
        raise UrlRefused(f"the host of the URL has more than {MAX_HOST_CHARS} characters")


def _host_name(host: str) -> str:
    """The host as names are looked up: lower case, punycode. Brackets are gone already."""
    if ":" in host:
        return _ipv6_address(host)
    try:
        name = host if host.isascii() else _punycode(host)
    except UnicodeError:
        raise UrlRefused(f"{host[:80]!r} is no host name") from None
    if _HOST_NAME.fullmatch(name) is None:
        raise UrlRefused(f"{host[:80]!r} is no host name")
    return name


def _punycode(host: str) -> str:
    """Takes quadratic time, so what is too long for a host name is refused before. Raises `UnicodeError`."""
    if len(host) > MAX_HOST_CHARS or max(map(len, _DOT.split(host))) > MAX_LABEL_CHARS:
        raise UnicodeError("too long")
    return host.encode("idna").decode("ascii")


def _ipv6_address(host: str) -> str:
    if "%" in host:
        raise UrlRefused("an IPv6 address with a zone cannot be reached from here")
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        raise UrlRefused(f"{host[:80]!r} is no IPv6 address") from None


def render_headers(headers: Iterable[RawHeader]) -> bytes:
    """Header lines for the wire. What would break or double the request is refused, without its value."""
    lines = []
    for name, value in headers:
        if _TOKEN.fullmatch(name) is None:
            raise HeaderRefused(f"{name[:80]!r} is no header name")
        if name.lower() in _OURS:
            raise HeaderRefused(
                f"the header {name.decode()} is written by the transport itself; leave it out"
            )
        if _VALUE.fullmatch(value) is None:
            raise HeaderRefused(
                f"the value of the header {name.decode()} holds a line break or control character; "
                "if it is a key, look for a line break at its end"
            )
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)
