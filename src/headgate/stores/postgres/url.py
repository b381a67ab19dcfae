"""Reading a database URL: what asyncpg gets, what is ours, and what people may see of it (never the password).

Ours are two parameters: `statement_cache_size` (0 behind PgBouncer) and
`listen` (on or off). Without a word about it, whoever has no statement cache does not listen either: behind a
pooler in transaction mode, LISTEN would reach somebody else.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

from headgate.core.errors import SettingsError

USUAL_CACHE_SIZE: Final = 256
_URL: Final = re.compile(
    r"(?P<scheme>postgres(?:ql)?)://"
    r"(?:(?P<user>[^:@/?#]*)(?::[^@/?#]*)?@)?"
    r"(?P<hosts>[^@/?#]*)(?P<name>/[^@?#]*)?(?:\?(?P<query>[^@#]*))?"
)
_FLAGS: Final = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Address:
    """Where the database is and how to talk to it."""

    dsn: str
    shown: str
    statement_cache_size: int
    listen: bool


def read_url(url: str) -> Address:
    """Raises `SettingsError`, which quotes nothing of the URL."""
    parts = _URL.fullmatch(url)
    if parts is None:
        raise SettingsError(
            "the database's URL must be postgresql://user:password@host:5432/name, percent-encoded"
        )
    asked = dict(parse_qsl(parts["query"] or "", keep_blank_values=True))
    cache_size = _cache_size(asked.pop("statement_cache_size", None))
    listen = _flag(asked.pop("listen", "on" if cache_size else "off"))
    query = f"?{urlencode(asked)}" if asked else ""
    user = f"{parts['user']}@" if parts["user"] else ""
    return Address(
        dsn=url.partition("?")[0] + query,
        shown=f"{parts['scheme']}://{user}{parts['hosts']}{parts['name'] or ''}",
        statement_cache_size=cache_size,
        listen=listen,
    )


def _cache_size(text: str | None) -> int:
    if text is None:
        return USUAL_CACHE_SIZE
    if not text.isdecimal():
        raise SettingsError("the database's URL: statement_cache_size must be a whole number, 0 for none")
    return int(text)


def _flag(text: str) -> bool:
    if text not in _FLAGS:
        raise SettingsError("the database's URL: listen must be on or off")
    return _FLAGS[text]
