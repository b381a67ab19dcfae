"""Text made harmless to look at: what is not printable is written out.

What a model or a task wrote is anybody's text: it may hold escape sequences that clear a screen, rewrite a title or
turn the reading direction.
"""

import re
import unicodedata
from typing import Final

_ODD: Final = re.compile(r"[^\x20-\x7e\n]")


def printable(text: str) -> str:
    r"""The text with what is not printable written out, as in `\x1b`; line ends stay."""
    return _ODD.sub(lambda match: _visible(match[0]), text)


def one_line(text: str) -> str:
    """The same on one line."""
    return printable(" ".join(text.split()))


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    if unicodedata.category(char) == "Zs" or char == "\t":
        return " "
    return char.encode("unicode_escape").decode("ascii")


def escaped_json(text: str) -> str:
    r"""JSON with what is not printable as `\u001b`: it means the same and does nothing to a terminal."""
    return _ODD.sub(lambda match: match[0] if match[0].isprintable() else _json_escape(match[0]), text)


def _json_escape(char: str) -> str:
    pairs = char.encode("utf-16-be")
    return "".join(f"\\u{pairs[at : at + 2].hex()}" for at in range(0, len(pairs), 2))
