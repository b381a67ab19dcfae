"""What a bare word in YAML or in the environment means: nothing, true, a number, or itself.

Stricter than YAML 1.1, whose `010` is 8, `1:30` is 90 and `1e3` is text: here numbers are decimal, and a
date is text. `on`, `yes` and their like stay booleans.
"""

import re
from typing import Final

Scalar = str | int | float | bool | None

MOST_DIGITS: Final = 18
"""Longer whole numbers fit no setting; they stay text and are refused where a number is due."""

_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null"), None),
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}
_WHOLE: Final = re.compile(r"[-+]?[0-9][0-9_]*")
_FRACTION: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_ENDLESS: Final = re.compile(r"[-+]?\.inf|\.nan", re.IGNORECASE)


class Filled(str):
    """Text that came out of a variable. It is read as a number where a number is due, and never shown."""

    __slots__ = ()


def meaning(text: str) -> Scalar:
    # YAML knows three spellings of each word: true, True and TRUE.
    if text in {text.lower(), text.upper(), text.capitalize()} and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text.replace("_", "")) if len(text) <= MOST_DIGITS else text
    if _FRACTION.fullmatch(text):
        return float(text.replace("_", ""))
    if _ENDLESS.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def shown(value: object) -> str:
    """A value as a message quotes it, in the words of the file."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return repr(str(value) if len(value) <= 60 else f"{value[:57]}…")
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return repr(value)


def sort_of(value: object) -> str:
    """What stands where something larger was due. It may be anything, so a single value is not quoted."""
    return shown(value) if isinstance(value, list | dict) else "a single value"
