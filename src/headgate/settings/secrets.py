"""Values that must never print, and how they are taken out of messages that others wrote."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any, Final

from headgate.settings.places import Place, upwards

HIDDEN: Final = "***"
_TELLTALES: Final = ("key", "secret", "token", "password", "authorization", "credential")
_SHORT: Final = 6
"""Shorter ones are hidden near their place only: elsewhere a `2` is just a number."""
_HEAD: Final = 12
_QUOTE: Final = re.compile(r"'[^']*'|\"[^\"]*\"")


class Secrets:
    """Knows secret values by their places."""

    def __init__(self) -> None:
        self._at: dict[Place, set[str]] = {}
        self._long: dict[str, set[str]] = defaultdict(set)
        """By their first characters, so that a message is searched once however many there are."""
        self._short: dict[Place, set[str]] = defaultdict(set)

    def add(self, place: Place, value: object) -> None:
        forms = _forms(value)
        self._at.setdefault(place, set()).update(forms)
        for form in forms:
            if len(form) < _SHORT:
                self._short[place[:-1]].add(form)
            else:
                self._long[form[:_SHORT]].add(form)

    def add_options(self, options: Mapping[str, Any], place: Place) -> None:
        """Note the values of all keys that sound like secrets, however deep."""
        for key, value in options.items():
            inside = (*place, key)
            if any(telltale in str(key).lower() for telltale in _TELLTALES):
                for leaf_place, leaf in _leaves(value, inside):
                    self.add(leaf_place, leaf)
            else:
                for leaf_place, mapping in _mappings(value, inside):
                    self.add_options(mapping, leaf_place)

    def hide(self, place: Place, message: str) -> str:
        for upper in upwards(place):
            if upper in self._at:
                message = _without_quotes(message, self._at[upper])
        message = self._without_long(message)
        for upper in upwards(place):
            for form in self._short.get(upper, ()):
                message = re.sub(rf"(?<![\w.-]){re.escape(form)}(?![\w-])", HIDDEN, message)
        return message

    def _without_long(self, message: str) -> str:
        safe, position = "", 0
        while position < len(message):
            near = self._long.get(message[position : position + _SHORT], ())
            end = max((_end_of(secret, message, position) for secret in near), default=position)
            safe += HIDDEN if end > position else message[position]
            position = max(end, position + 1)
        return safe


def _without_quotes(message: str, secrets: set[str]) -> str:
    """A message about a secret value quotes it, or a part of it; after "not" it does so in any form."""
    head, found, _ = message.partition(", not ")
    message = f"{head}{found}{HIDDEN}" if found else message

    def hidden(quote: re.Match[str]) -> str:
        inside = quote.group()[1:-1]
        return HIDDEN if inside and any(inside in secret for secret in secrets) else quote.group()

    return _QUOTE.sub(hidden, message)


def _end_of(secret: str, message: str, start: int) -> int:
    """Where the secret that may begin at `start` ends; `start` itself when it is not there."""
    pairs = zip(secret, message[start : start + len(secret)], strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    # Somebody may have shortened it: its beginning gives it away as well.
    return start + length if length >= min(len(secret), _HEAD) else start


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
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*place, index))
    else:
        yield place, value


def _mappings(value: Any, place: Place) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        yield place, value
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _mappings(inner, (*place, index))
