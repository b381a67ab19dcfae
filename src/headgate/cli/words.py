"""Words for people: text made harmless, JSON to read, ages and times. Knows no screen.

What a model or a task wrote is anybody's text: it may hold escape sequences that clear a screen, rewrite a title or
turn the reading direction. Nothing of it reaches a terminal before it went through here.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from headgate.core.visible import escaped_json, one_line, printable

__all__ = [
    "age",
    "clock_time",
    "count_of",
    "escaped_json",
    "one_line",
    "printable",
    "readable_json",
    "short_json",
    "since",
    "when",
]

_UNITS: Final = (("d", 86_400, 2), ("h", 3600, 2), ("m", 60, 1), ("s", 1, 0))
"""From the largest: an age is told in the first unit that fits so often, as in 90m and 36h."""


def readable_json(value: Any) -> str:
    """A value as indented JSON, safe to show."""
    return escaped_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def short_json(value: Any) -> str:
    return escaped_json(msgspec.json.encode(value).decode())


def age(seconds: float) -> str:
    """A length of time in at most four characters: 45s, 90m, 36h, 14d."""
    whole = max(0, int(seconds))
    unit, size = next((unit, size) for unit, size, least in _UNITS if whole >= least * size)
    return f"{whole // size}{unit}"


def since(moment: datetime, now: datetime) -> str:
    return age((now - moment).total_seconds())


def when(moment: datetime, now: datetime) -> str:
    """A moment on the reader's own clock, and how far away it is."""
    seconds = (now - moment).total_seconds()
    distance = f"{age(seconds)} ago" if seconds >= 0 else f"in {age(-seconds)}"
    return f"{clock_time(moment)} ({distance})"


def clock_time(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def count_of(count: int, one: str, many: str | None = None) -> str:
    """`1 job`, `12,000 jobs`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
