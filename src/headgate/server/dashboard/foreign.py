"""Strangers' text on a page: cut, on one line, what is not printable written out, its direction kept to itself."""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from headgate.core.visible import escaped_json, one_line, printable
from headgate.server.dashboard.html import Child, Markup, el, group

MOST_CHARS: Final = 160
MOST_MESSAGE_CHARS: Final = 2000
MOST_JSON_BYTES: Final = 20_000
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{},:]|[^\[\]{},:"]++')
"""Of JSON that may be cut off within a text."""
_OPENING: Final = frozenset({b"[", b"{"})
_CLOSING: Final = frozenset({b"]", b"}"})
_BREAKING: Final = _OPENING | {b","}


def word(text: str | None, *, most: int = MOST_CHARS) -> Markup | str:
    """A name, a short text."""
    if not text:
        return "–"
    # A title breaks no line either; what is longer than this is looked at as JSON.
    title = one_line(text[:MOST_MESSAGE_CHARS]) if len(text) > most else None
    return el("bdi", _cut(one_line(text[: most + 1]), len(text), most), title=title)


def message(text: str | None) -> Markup | None:
    """What went wrong, as a task or a provider told it. Its lines stay."""
    if not text:
        return None
    told = _cut(printable(text[: MOST_MESSAGE_CHARS + 1]), len(text), MOST_MESSAGE_CHARS)
    return el("p", told, class_="message", dir="auto")


def json_block(value: Any, whole: str | None = None, *, most: int = MOST_JSON_BYTES) -> Markup:
    """A value as indented JSON. What is cut is told, and where the `whole` is."""
    encoded = msgspec.json.encode(value)
    # Cut first: to indent 300,000 small values, or to look at every character of 4 MiB, takes too long.
    written = _indented_beginning(encoded, most) if len(encoded) > most else indented(encoded)
    text = escaped_json(written[:most].decode(errors="ignore"))
    if len(written) <= most:
        return el("pre", text, tabindex=0)
    told = f"The first {most:,} of {max(len(encoded), len(written)):,} bytes. "
    link = None if whole is None else el("a", "The whole as JSON", href=whole)
    return group(el("pre", text, "…", tabindex=0), el("p", told, link, class_="faint"))


def indented(encoded: bytes) -> bytes:
    return msgspec.json.format(encoded, indent=2)


def _indented_beginning(encoded: bytes, most: int) -> bytes:
    """The first `most` bytes of what `indented` returns, and perhaps some more."""
    written, depth, before = bytearray(), 0, b""
    # Indented it is no shorter; a few bytes more, because half an escape at the end is no token.
    for found in _TOKEN.finditer(encoded, 0, most + 8):
        token = found[0]
        closes = token in _CLOSING
        depth -= closes
        if before not in _OPENING if closes else before in _BREAKING:
            written += b"\n" + b"  " * depth
        written += b": " if token == b":" else token
        depth += token in _OPENING
        before = token
        if len(written) > most:
            break
    return bytes(written)


def joined(parts: Sequence[Child], by: str = ", ") -> Markup:
    return group([group(by if index else None, part) for index, part in enumerate(parts)])


def address(path: str, *parts: str, **query: str | None) -> str:
    """A link on this server: every part and value quoted, what is None left out."""
    whole = "/".join([path, *(quote(part, safe="") for part in parts)])
    asked = {name: value for name, value in query.items() if value is not None}
    return f"{whole}?{urlencode(asked, errors='replace')}" if asked else whole


def _cut(text: str, whole: int, most: int) -> str:
    return f"{text[:most]}…" if whole > most else text
