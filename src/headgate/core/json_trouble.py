"""What is wrong with a text that should be JSON: why it is none, or why it is too much to be read."""

import re
from itertools import accumulate
from typing import Final

from headgate.core.errors import InvalidRequest

MAX_NESTING: Final = 200
"""Levels of lists and objects. Python's own bound depends on where it is met: what was read may not be written again."""
MAX_SIGNS: Final = 350_000
"""Commas, colons and opening brackets outside of texts: one for each element, name, list and object. So many take up to
60 ms and 40 MB to read; without a bound, 20 MB of small values take over a second and 0.8 GB."""
MAX_DIGITS: Final = 100
"""In a row, in a text of more than `MAX_SIGNS` bytes. To read and write a long whole number takes time that grows with
the square of its length."""
_SLICE_BYTES: Final = 1_000_000
_STEPS: Final = bytes({0x5B: 1, 0x7B: 1, 0x5D: 255, 0x7D: 255}.get(byte, 0) for byte in range(256))
"""Brackets as signed bytes: how many levels each leads down."""
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_NEAR_BYTES: Final = 64
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_HALF_CHARACTER: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*\\u([dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def check_json(text: bytes, *, what: str = "the body", max_signs: int = MAX_SIGNS) -> None:
    """Raise `InvalidRequest` if it holds more, or is nested deeper, than may be read. Nothing is decoded for that."""
    if len(text) <= max_signs and text.count(b"[") + text.count(b"{") <= MAX_NESTING:
        return
    start = inside = quotes = signs = depth = 0
    # In slices: a hostile text is given up early, and costs no memory.
    while start < len(text):
        piece = text[start : start + _SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = text[start : start + _SLICE_BYTES + 1]  # No cut between a backslash and what it escapes.
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes += piece.count(b'"')
        hopeless = quotes // 2 > max_signs + 1  # There is a sign between two texts.
        bare = b"" if hopeless else b"".join(piece.split(b'"')[inside::2])
        inside = quotes % 2
        signs += sum(map(bare.count, (b",", b":", b"[", b"{")))
        if hopeless or signs > max_signs:
            raise InvalidRequest(f"{what} has more than {max_signs:,} values and names; send less at a time")
        if len(text) > max_signs and b"0" * (MAX_DIGITS + 1) in bare.translate(_DIGITS):
            raise InvalidRequest(f"{what} has a number of more than {MAX_DIGITS} digits")
        steps = memoryview(bare.translate(_STEPS, _OTHERS)).cast("b")
        if depth + max(accumulate(steps, initial=0)) > MAX_NESTING:
            raise InvalidRequest(f"{what} is nested too deeply: it has more than {MAX_NESTING} levels")
        depth += sum(steps)


def why_no_json(text: bytes, error: Exception) -> str:
    """The parser calls a text cut off whose last characters are half a pair of escapes."""
    said = str(error)
    # Only where the parser stopped: to look through 20 MB takes half a second.
    place = _BYTE.search(said)
    end = len(text) if place is None else int(place[1]) + _NEAR_BYTES // 2
    if found := _HALF_CHARACTER.search(text, max(0, end - _NEAR_BYTES), end):
        escape = f"\\u{found[1].decode()}"
        return f"{escape} is half a character: the other half of the surrogate pair must follow it"
    return said
