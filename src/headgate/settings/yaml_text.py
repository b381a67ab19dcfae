"""YAML text to plain values, from the parser's events: nothing is guessed, doubled, shared or constructed.

Duplicate keys are told with their lines, anchors and tags are refused, and no alias is ever expanded. A bare
word, here or in the environment, is nothing, true, a number, or itself. That is stricter than YAML 1.1, whose
`010` is 8, `1:30` is 90 and `1e3` is text: here numbers are decimal, and a date is text. `on`, `yes` and their
like stay booleans.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

import yaml
from yaml.reader import Reader

from headgate.settings.findings import Findings
from headgate.settings.places import TOP, Place

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

MOST_DEPTH: Final = 32
# The C parser is ten times faster and not always there; both tell the same events.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Mark(Protocol):
    """Where in the text; both parsers have a class of their own for it."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


class Unreadable(Exception):
    """The text is not YAML, from this line on."""


def read_yaml(text: str, findings: Findings) -> Any:
    """The one document of a text; None when it is empty. Raises `Unreadable`."""
    _check_characters(text)
    try:
        return _Document(text, findings).read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = _explain(error, mark, text)
    except yaml.YAMLError:
        mark, message = None, "the text is not YAML"
    # Raised here, not above: the parser's own error quotes the text around it, which may hold secrets.
    raise _unreadable(message, mark)


def _check_characters(text: str) -> None:
    if found := Reader.NON_PRINTABLE.search(text):
        before = text[: found.start()]
        line, column = before.count("\n") + 1, found.start() - before.rfind("\n")
        raise Unreadable(
            f"line {line}, column {column}: the character U+{ord(found.group()):04X} is not allowed"
        )


def _explain(error: yaml.MarkedYAMLError, mark: _Mark | None, text: str) -> str:
    message = ", ".join(part for part in (error.context, error.problem) if part)
    line = text.splitlines()[mark.line : mark.line + 1] if mark else []
    if "flow" in message and "${" in "".join(line):
        return f'{message} (inside braces, variables need quotes: "${{NAME}}")'
    return message


def _unreadable(message: str, mark: _Mark | None) -> Unreadable:
    return Unreadable(f"line {mark.line + 1}, column {mark.column + 1}: {message}" if mark else message)


class _Document:
    """Builds values from events, one level of nesting per call."""

    def __init__(self, text: str, findings: Findings) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=_LOADER)
        self._findings = findings

    def read(self) -> Any:
        value, documents = None, 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _unreadable("a second document starts; there may be only one", event.start_mark)
                value = self._value(next(self._events), TOP)
        return value

    def _value(self, event: yaml.Event, place: Place) -> Any:
        if len(place) > MOST_DEPTH:
            raise _unreadable(f"nested more than {MOST_DEPTH} levels deep", event.start_mark)
        self._check_marks(event, place)
        match event:
            case yaml.ScalarEvent():
                return _scalar(event)
            case yaml.SequenceStartEvent():
                return self._sequence(place)
            case yaml.MappingStartEvent():
                return self._mapping(place)
            case _:  # an alias, reported above
                return None

    def _sequence(self, place: Place) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            values.append(self._value(event, (*place, len(values))))
        return values

    def _mapping(self, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, place)
            line = event.start_mark.line + 1 if event.start_mark else 0
            value = self._value(next(self._events), (*place, key))
            if key in values:
                self._findings.add((*place, key), f"is given twice, on line {lines[key]} and on line {line}")
            else:
                values[key], lines[key] = value, line
        return values

    def _key(self, event: yaml.Event, place: Place) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise _unreadable("a key must be text", event.start_mark)
        key = str(event.value)
        self._check_marks(event, (*place, key))
        # `off:` is a fine key; only what is no word at all needs quotes.
        if not isinstance(_scalar(event), str | bool):
            refuse_key((*place, key), self._findings)
        return key

    def _check_marks(self, event: yaml.Event, place: Place) -> None:
        """Aliases let ten lines stand for a billion values, and tags construct things: neither is needed."""
        if isinstance(event, yaml.AliasEvent):
            self._findings.reject(place, "YAML's aliases (*) are refused: write the value out")
        elif getattr(event, "anchor", None) is not None:
            self._findings.add(place, "YAML's anchors (&) are refused: write values out where they are used")
        if getattr(event, "tag", None) is not None:
            self._findings.reject(place, "YAML's tags (!) are refused: write the plain value")


def _scalar(event: yaml.ScalarEvent) -> Scalar:
    # Without quotes it may be a number or a word like `true`; with quotes it is text.
    return meaning(event.value) if event.implicit[0] else str(event.value)


def refuse_key(place: Place, findings: Findings) -> None:
    names = "model names" if place[:-1] == ("models",) else "keys"
    findings.add(place, f"{names} must be text: quote it")


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
