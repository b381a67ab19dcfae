"""Where an answer's body ends, as its headers say it, and what we cannot vouch for although the parser lets it through.

Pure. llhttp has refused conflicting and malformed lengths by the time this is asked.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from headgate.transport.headers import RawHeader

_PLAIN_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t -~\x80-\xff]*+)?\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t -~\x80-\xff]*+\r\n)*+)\r\n"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,9}")
_WITHOUT_BODY: Final = frozenset({204, 205, 304})
_NOT_PLAIN: Final = frozenset({b"transfer-encoding", b"content-encoding", b"upgrade", b"trailer"})


class PlainAnswer(NamedTuple):
    """A whole answer that arrived at once."""

    status: int
    headers: list[RawHeader]
    body: bytes


def read_plain(data: bytes, max_head_bytes: int, max_headers: int) -> PlainAnswer | None:
    """An answer with one length and its whole body; None for all else, which the parser has to judge."""
    match = _PLAIN_HEAD.match(data)
    if match is None or (end := match.end()) > max_head_bytes or (status := int(match[1])) in _WITHOUT_BODY:
        return None
    headers: list[RawHeader] = []
    length = b""
    for line in match[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        headers.append((name, value))
        if name == b"content-length":
            if length:
                return None
            length = value
        elif name in _NOT_PLAIN or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
    if _LENGTH.fullmatch(length) is None or int(length) != len(data) - end or len(headers) > max_headers:
        return None
    return PlainAnswer(status, headers, data[end:])


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
