"""Where a value stands in the settings: its keys and indexes from the top, and how they are written."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

Place = tuple[str | int, ...]
TOP: Final[Place] = ()
_LONGEST_KEY: Final = 200


def written(place: Place) -> str:
    """`models.summary.upstreams[0].slots`; keys that would garble a line are quoted."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isprintable() and part.strip() == part != "" and len(part) <= _LONGEST_KEY:
            text += f".{part}" if text else part
        else:
            text += f"[{part[:40]!r}]"
    return text


def place_of(path: str) -> Place:
    """Where a record's problem is: `tasks[0]` is the first of its tasks."""
    return tuple(int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]]+", path))


def upwards(place: Place) -> Iterator[Place]:
    """The place itself, then what it stands in, up to but without the top."""
    for length in range(len(place), 0, -1):
        yield place[:length]


def places_of(tree: Any, place: Place = TOP) -> Iterator[Place]:
    """Every place of a tree, in the order of the file."""
    yield place
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from places_of(value, (*place, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from places_of(value, (*place, index))
