"""Two spellings of one address, told to be one. What a server may tell apart (the path's case, its slashes) stays."""

import re
import urllib.parse
from typing import Final

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_TRACKING: Final = re.compile(
    r"utm_\w+|fbclid|gclid|dclid|msclkid|mc_cid|mc_eid|igshid|_hsenc|_hsmi", re.IGNORECASE
)
_ENCODED: Final = re.compile(r"%[0-9a-fA-F]{2}")
LONGEST: Final = 2000
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9._~-]")


def canonical(url: str) -> str | None:
    """The address without what never changes what it leads to; None when it is no address of a page."""
    try:
        parts = urllib.parse.urlsplit(url.strip())
        host, port = (parts.hostname or "").rstrip("."), parts.port
        host = host if host.isascii() else host.encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        return None
    scheme = parts.scheme.lower()
    if scheme not in _DEFAULT_PORTS or not host or not url.strip().isprintable():
        return None
    place = f"[{host}]" if ":" in host else host
    if port not in {None, _DEFAULT_PORTS[scheme]}:
        place += f":{port}"
    path = _spelled(parts.path) or "/"
    spelled = urllib.parse.urlunsplit((scheme, place, path, _untracked(parts.query), ""))
    return spelled if len(spelled) <= LONGEST else None


def same_page(canonical_url: str) -> str:
    """What two items have in common when they are one: http or https makes no difference."""
    return canonical_url.partition("://")[2]


def domain_of(canonical_url: str) -> str:
    host = urllib.parse.urlsplit(canonical_url).hostname or ""
    return host.removeprefix("www.")


def _untracked(query: str) -> str:
    kept = [pair for pair in query.split("&") if pair and not _TRACKING.fullmatch(pair.partition("=")[0])]
    return _spelled("&".join(kept))


def _spelled(text: str) -> str:
    """One spelling for characters that need no escape, and for the escapes of those that do."""
    quoted = urllib.parse.quote(text, safe="%/:@!$&'()*+,;=?~")
    return _ENCODED.sub(lambda match: _letter(match[0]), quoted)


def _letter(escape: str) -> str:
    char = chr(int(escape[1:], 16))
    return char if _UNRESERVED.fullmatch(char) else escape.upper()
