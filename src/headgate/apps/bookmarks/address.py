"""One spelling for one address, so that a page saved twice is one bookmark. Pure: looks nothing up.

Capitals mean nothing in scheme and host and everything after it, so only those are lowered. The fragment never reaches a
server and goes. What cannot be an address is refused with the reason; nothing here can raise anything else.
"""

import re
import urllib.parse
from typing import Final

import headgate

LONGEST_CHARS: Final = 2000
LONGEST_SPELLED_CHARS: Final = 4000
"""A letter outside of ASCII takes up to twelve characters once it is spelled out."""
_PORTS: Final = {"http": 80, "https": 443}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_HOST: Final = re.compile(r"(?=.{1,253}$)(?:[0-9a-z_-]{1,63}\.)*[0-9a-z_-]{1,63}")
_IPV6: Final = re.compile(r"[0-9a-f:.]{2,45}")
_DOT: Final = re.compile(r"[.\u3002\uff0e\uff61]")
"""What IDNA takes for a dot between labels."""
_MAX_HOST_CHARS: Final = 253
_MAX_LABEL_CHARS: Final = 63
_ESCAPE: Final = re.compile(r"%[0-9a-fA-F]{2}")
_SAFE: Final = "!#$%&'()*+,/:;=?@[]~"


def canonical(url: str) -> str:
    """The address as it is kept, fetched and compared."""
    trimmed = url.strip()
    if len(trimmed) > LONGEST_CHARS:
        raise _refused(f"must have at most {LONGEST_CHARS:,} characters")
    if _CONTROL.search(trimmed) or "\\" in trimmed:
        raise _refused("holds a control character or a backslash")
    try:
        parts = urllib.parse.urlsplit(trimmed)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
        path, query = _spelled(parts.path) or "/", _spelled(parts.query)
    except ValueError as error:  # UnicodeError is one: half a character cannot be spelled.
        raise _refused(f"cannot be read: {error}") from None
    if scheme not in _PORTS:
        raise _refused("must begin with http:// or https://")
    if "@" in parts.netloc:
        raise _refused("must not hold a user name or password")
    place = _host(host) if port in {None, _PORTS[scheme]} else f"{_host(host)}:{port}"
    spelled = f"{scheme}://{place}{path}{f'?{query}' if query else ''}"
    if len(spelled) > LONGEST_SPELLED_CHARS:
        raise _refused(f"must have at most {LONGEST_SPELLED_CHARS:,} characters once it is spelled in ASCII")
    return spelled


def _host(host: str) -> str:
    """Lower case, punycode, without the root's dot."""
    if ":" in host:
        if _IPV6.fullmatch(host) is None:
            raise _refused(f"{host[:80]!r} is no IPv6 address")
        return f"[{host}]"
    try:
        name = host if host.isascii() else _punycode(host)
    except UnicodeError:
        name = ""
    name = name.removesuffix(".")
    if _HOST.fullmatch(name) is None:
        raise _refused(f"{host[:80]!r} is no host name" if host else "names no host")
    return name


def _punycode(host: str) -> str:
    """Takes quadratic time, so what is too long for a host name is refused before. Raises `UnicodeError`."""
    if len(host) > _MAX_HOST_CHARS or max(map(len, _DOT.split(host))) > _MAX_LABEL_CHARS:
        raise UnicodeError("too long")
    return host.encode("idna").decode("ascii").lower()


def _spelled(text: str) -> str:
    """In ASCII; what is spelled already stays, with its hex digits in one case."""
    return _ESCAPE.sub(lambda found: found[0].upper(), urllib.parse.quote(text, safe=_SAFE))


def _refused(why: str) -> headgate.InvalidRequest:
    return headgate.InvalidRequest(f"url {why}", param="url")
