"""Why a text is no JSON, in words that lead to the mistake."""

import re
from typing import Final

_HALF_CHARACTER: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*\\u([dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def why_no_json(text: bytes, error: Exception) -> str:
    """The parser calls a text cut off whose last characters are half a pair of escapes."""
    if found := _HALF_CHARACTER.search(text):
        escape = f"\\u{found[1].decode()}"
        return f"{escape} is half a character: the other half of the surrogate pair must follow it"
    return str(error)
