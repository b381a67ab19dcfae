"""Values that must never print, and how they are taken out of messages that others wrote."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headgate.settings.places import Place, upwards

HIDDEN: Final = "***"
_TELLTALES: Final = ("key", "secret", "token", "password", "authorization", "credential")
_SHORT: Final = 6
"""Shorter ones are hidden near their place only: elsewhere a `2` is just a number."""
_HEAD: Final = 12


class Secrets:
    """Knows secret values by their places."""

    def __init__(self) -> None:
        self._places: set[Place] = set()
        self._long: set[str] = set()
        self._short: dict[Place, set[str]] = defaultdict(set)

    def add(self, place: Place, value: object) -> None:
        self._places.add(place)
        for form in _forms(value):
            if len(form) < _SHORT:
                self._short[place[:-1]].add(form)
            else:
                self._long.add(form)

    def add_options(self, options: Mapping[str, Any], place: Place) -> None:
        """Note the values of all keys that sound like secrets, however deep."""
        for key, value in options.items():
            inside = (*place, key)
            if any(telltale in key.lower() for telltale in _TELLTALES):
                for leaf_place, leaf in _leaves(value, inside):
                    self.add(leaf_place, leaf)
            else:
                for leaf_place, mapping in _mappings(value, inside):
                    self.add_options(mapping, leaf_place)

    def hide(self, place: Place, message: str) -> str:
        if not self._places.isdisjoint(upwards(place)):
            # "must be a number, not 'abc'": what comes after "not" is the value, in whatever form.
            head, quoted, _ = message.partition(", not ")
            message = f"{head}{quoted}{HIDDEN}" if quoted else message
        for form in sorted(self._long, key=len, reverse=True):
            message = _without(message, form)
        for upper in upwards(place):
            for form in self._short.get(upper, ()):
                message = re.sub(rf"(?<![\w.-]){re.escape(form)}(?![\w-])", HIDDEN, message)
        return message


def _without(message: str, secret: str) -> str:
    message = message.replace(secret, HIDDEN)
    if len(secret) <= _HEAD:
        return message
    # Somebody may have shortened it: its beginning gives it away as well.
    return re.sub(re.escape(secret[:_HEAD]) + r"[^\s'\"]*", lambda _: HIDDEN, message)


def _forms(value: object) -> set[str]:
    """How a message may spell a value. What is empty, or true or false, is no secret."""
    if value is None or isinstance(value, bool):
        return set()
    text = str(value)
    forms = {text, text.strip(), repr(text)[1:-1], ascii(text)[1:-1], json.dumps(text)[1:-1]}
    return {form for form in forms if form.strip()}


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*place, index))
    else:
        yield place, value


def _mappings(value: Any, place: Place) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        yield place, value
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _mappings(inner, (*place, index))
