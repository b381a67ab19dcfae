"""A value as JSON, or a clear refusal: what JSON cannot say is never sent or stored as something else."""

import math
from typing import Any, Final

import msgspec

from headgate.core.errors import InvalidRequest
from headgate.core.json_trouble import check_json

_encoder: Final = msgspec.json.Encoder()


def encode_json(value: Any, *, what: str, encoder: msgspec.json.Encoder = _encoder) -> bytes:
    """A value as JSON, or an `InvalidRequest` that says why it cannot be."""
    text = write_json(value, what=what, encoder=encoder)
    # It will be read again: deeper than what comes in from elsewhere it must not be.
    check_json(text, what=what, max_signs=len(text))
    # msgspec writes NaN and infinity as null: where there is no null, there was none of them.
    if b"null" in text:
        _refuse_unsayable(value, what)
    return text


def write_json(value: Any, *, what: str, encoder: msgspec.json.Encoder = _encoder) -> bytes:
    """The same with null for every number that JSON cannot say."""
    try:
        return encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"{what} must be JSON: {error}", param="input") from error


def _refuse_unsayable(value: Any, what: str) -> None:
    # What is JSON already (`Raw`) says what it says.
    place = _unsayable(msgspec.to_builtins(value, enc_hook=lambda _: None))
    if place is not None:
        raise InvalidRequest(
            f"{what}{place}, which JSON has no number for; give None instead, or leave it out", param="input"
        )


def _unsayable(value: Any) -> str | None:
    """Where the first number is that JSON cannot say, and which it is."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f" is {value}"
    if isinstance(value, dict):
        for name, inner in value.items():
            if (place := _unsayable(inner)) is not None:
                return f".{name}{place}"
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            if (place := _unsayable(inner)) is not None:
                return f"[{number}]{place}"
    return None
