"""Where an answer's body ends, as its headers say it, and what we cannot vouch for although the parser lets it through.

Pure. llhttp has refused conflicting and malformed lengths by the time this is asked.
"""

from collections.abc import Iterable
from typing import NamedTuple

from headgate.transport.headers import RawHeader


class Framing(NamedTuple):
    """`framed`: the body says where it ends; else it lasts as long as its connection."""

    framed: bool = False
    refused: str | None = None


def read_framing(headers: Iterable[RawHeader], status: int) -> Framing:
    """Names are lower-case. An encoded error keeps its status: its body cannot be read, and need not be."""
    framed = False
    for name, value in headers:
        if name == b"content-length":
            framed = True
        elif name == b"transfer-encoding":
            if framed or value.lower() != b"chunked":
                return Framing(refused="uses a transfer encoding other than chunked")
            framed = True
        elif name == b"content-encoding" and status < 300 and value.lower() != b"identity":
            return Framing(refused="encoded its answer although asked not to; look for a proxy in between")
    return Framing(framed)
