"""Reads the fields of a call, where a provider has to look inside. Bounded: a hostile body keeps no other call waiting."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.core.errors import InvalidRequest

_SLICE_BYTES: Final = 1_000_000
_MAX_SIGNS: Final = 200_000
_MAX_COMMAS: Final = 2_000_000
"""Lists, objects and texts in a body that is to be read; brackets and commas inside texts count, too. A text of a
million tokens has fewer. Millions of empty lists take seconds to read, and all other calls would wait."""


class NoAnswer(ValueError):
    """A body that promised an answer by its status holds none. The text says why."""


def read_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """All fields as values; `InvalidRequest` when one cannot be read."""
    for value in fields.values():
        if isinstance(value, msgspec.Raw):
            _check_count(memoryview(value))
    try:
        return {name: read_value(value) for name, value in fields.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None


def read_value(field: Any) -> Any:
    return msgspec.json.decode(field) if isinstance(field, msgspec.Raw) else field


def _check_count(value: memoryview) -> None:
    """In slices, and first in one pass: a large body of texts costs little, one of nothing else is found out early."""
    if len(value) <= _SLICE_BYTES:
        return
    signs = things = commas = 0
    for start in range(0, len(value), _SLICE_BYTES):
        part = bytes(value[start : start + _SLICE_BYTES])
        signs += len(part) - len(part.translate(None, b'[{",'))
        if signs > _MAX_SIGNS:
            things += part.count(b"[") + part.count(b"{") + (part.count(b'"') - part.count(b'\\"')) // 2
            commas += part.count(b",")
        if things > _MAX_SIGNS or commas > _MAX_COMMAS:
            raise InvalidRequest("the body holds more lists, objects and texts than can be read; send less")
