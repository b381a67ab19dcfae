"""Which database: `sqlite`, or the URL of a Postgres. The URL may hold a password, so nothing here ever quotes it."""

import re
from ipaddress import IPv6Address
from typing import Final

from headgate.core.spelling import did_you_mean

SQLITE: Final = "sqlite"
_SCHEMES: Final = ("postgresql://", "postgres://")
_ANY_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://")
# One @ at most, in front of the hosts: a password with an @ or a / in it would else be taken for a host or a name.
_URL: Final = re.compile(
    r"(?P<scheme>\w+)://"
    r"(?:(?P<user>[^:@/?#\[\]]*)(?::[^@/?#\[\]]*)?@)?"
    r"(?P<hosts>[^@/?#]*)(?P<name>/[^@?#]*)?(?:\?(?P<query>[^@#]*))?"
)
_HOST: Final = re.compile(r"(?:[^:\[\]]*|\[(?P<address>[^\[\]]*)\])(?::(?P<port>[0-9]{1,5}))?")
_PAIRS: Final = re.compile(r"[^=&]+=[^&]*(?:&[^=&]+=[^&]*)*")


def database_mistake(value: object) -> str | None:
    """Why this names no database."""
    if not isinstance(value, str):
        return f"must be text, not of type {type(value).__name__}"
    if value == SQLITE:
        return None
    return _url_mistake(value) if value.startswith(_SCHEMES) else _unknown(value)


def shown_database(database: str) -> str:
    """The database for people to read: `postgresql://user@host:5432/name`, without password and parameters."""
    url = _URL.fullmatch(database)
    if url is None:
        return SQLITE
    user = f"{url['user']}@" if url["user"] else ""
    return f"{url['scheme']}://{user}{url['hosts']}{url['name'] or ''}"


def _unknown(text: str) -> str:
    wanted = f"must be {SQLITE} or a URL {_SCHEMES[0]}…"
    scheme = _ANY_SCHEME.match(text)
    return f"{wanted}, not {scheme.group()}…" if scheme else f"{wanted}{did_you_mean(text, [SQLITE])}"


def _url_mistake(text: str) -> str | None:
    if not text.isascii() or not text.isprintable() or " " in text:
        return "must be a URL without spaces, accents and control characters: percent-encode them"
    url = _URL.fullmatch(text)
    if url is None:
        return "is no URL: percent-encode what is special in a user, password or name (@ is %40, / is %2F)"
    # No host at all is the local socket.
    if url["hosts"] and not all(map(_is_host, url["hosts"].split(","))):
        return "must have hosts such as db, db:5432 or [::1]:5432, with ports from 1 to 65535"
    if url["query"] and not _PAIRS.fullmatch(url["query"]):
        return "must have parameters such as sslmode=require after its ?, joined by &"
    return None


def _is_host(text: str) -> bool:
    host = _HOST.fullmatch(text)
    if host is None or not text or not 1 <= int(host["port"] or 1) <= 65_535:
        return False
    return host["address"] is None or _is_address(host["address"])


def _is_address(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
