"""Plain values into a component's record. The record's types say what is due, its own review says how much.

Numbers are handed over as they are: the review of the record judges them, so there is one place with the rules.
"""

import enum
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from headgate.core.problems import InvalidSettings
from headgate.core.spelling import did_you_mean, unknown_key
from headgate.settings.findings import Findings
from headgate.settings.places import Place
from headgate.settings.records import path_mistake
from headgate.settings.yaml_text import Filled, meaning, shown, sort_of

Record = TypeVar("Record")
_TEXTS: Final = tuple[str, ...]
_WORD_OR_NUMBER: Final = str | float


class _Mismatch(Exception):
    """The value is not of the field's type."""


class _Misfit:
    """Stands in for what is no number or text, so that the record's review says so in its own words."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return shown(self._value)


def names_of(record: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(record))


@cache
def _hints_of(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def section(value: Any, findings: Findings, place: Place) -> dict[str, Any] | None:
    """A mapping; an empty section is one without keys."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    findings.reject(place, f"must be a mapping, not {sort_of(value)}")
    return None


def check_keys(body: Mapping[str, Any], known: Collection[str], findings: Findings, place: Place) -> None:
    for key in body:
        if key not in known:
            findings.add((*place, key), unknown_key(key, known))


def values_for(record: type, body: Mapping[str, Any], findings: Findings, place: Place) -> dict[str, Any]:
    """The values of all simple fields of the record that the body has, as the record wants them."""
    values = {}
    for name, hint in _hints_of(record).items():
        if name in body and _is_simple(hint):
            try:
                values[name] = _value_for(hint, body[name])
            except _Mismatch as error:
                findings.reject((*place, name), str(error))
    return values


def build(
    record: type[Record], body: Mapping[str, Any], findings: Findings, place: Place, **parts: Any
) -> Record:
    """The record of a body. When it refuses its values they are noted, and its defaults stand in."""
    try:
        return record(**values_for(record, body, findings, place), **parts)
    except InvalidSettings as error:
        findings.take(error.problems, place)
    return record()


def read_record(record: type[Record], value: Any, findings: Findings, place: Place) -> Record:
    """The record of a whole section; keys that it does not know are noted."""
    body = section(value, findings, place) or {}
    check_keys(body, names_of(record), findings, place)
    return build(record, body, findings, place)


def _kind_of(hint: Any) -> tuple[Any, bool]:
    """The type that is due, and whether null may stand for it."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [option for option in options if option is not types.NoneType]
    return kinds[0], len(kinds) < len(options)


def _is_simple(hint: Any) -> bool:
    kind, _ = _kind_of(hint)
    return (
        hint == _WORD_OR_NUMBER
        or kind in {bool, int, float, str, Path, _TEXTS}
        or isinstance(kind, enum.EnumMeta)
    )


def _value_for(hint: Any, value: Any) -> Any:
    kind, optional = _kind_of(hint)
    either = hint == _WORD_OR_NUMBER
    if isinstance(value, Filled):
        value = str(value) if kind in {str, Path} and not either else meaning(value.strip())
    if either and not isinstance(value, str):
        kind = float
    if value is None and optional:
        return None
    if kind is bool:
        return _flag(value)
    if kind in {int, float}:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if number else _Misfit(value)
    if kind is str:
        return _text(value)
    if kind == _TEXTS:
        return _texts(value)
    return _path(value) if kind is Path else _choice(kind, value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Mismatch(f"must be true or false, not {shown(value)}")
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    hint = ": quote it" if isinstance(value, int | float) else ""
    raise _Mismatch(f"must be text, not {shown(value)}{hint}")


def _texts(value: Any) -> tuple[Any, ...]:
    """A list of texts; an empty section is an empty list."""
    if value is not None and not isinstance(value, list):
        raise _Mismatch(f"must be a list, not {sort_of(value)}")
    return tuple(str(item) if isinstance(item, str) else _Misfit(item) for item in value or ())


def _path(value: Any) -> Path:
    text = _text(value)
    if mistake := path_mistake(text):
        raise _Mismatch(mistake)
    return Path(text)


def _choice(kind: Any, value: Any) -> Any:
    choices = [str(member.value) for member in kind]
    if isinstance(value, str) and value in choices:
        return kind(value)
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    raise _Mismatch(f"must be one of {', '.join(choices)}, not {shown(value)}{hint}")
