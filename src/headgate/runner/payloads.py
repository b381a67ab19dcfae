"""JSON on its way into the store, bounded: inputs, results, records."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.core.errors import InvalidRequest, PayloadTooLarge
from headgate.core.messages import check_text
from headgate.core.record import RecordWrite

MOST_BYTES: Final = 4 * 1024 * 1024
LONGEST_UNIQUE_KEY_CHARS: Final = 4096
_encoder = msgspec.json.Encoder()
_ordered = msgspec.json.Encoder(order="sorted")


def fingerprinted(value: Any, *, what: str) -> bytes:
    """A value as JSON whose keys and sets are in order: to be hashed and compared, never stored. Of any size."""
    return _json(_ordered, value, what)


def encode(value: Any, *, what: str) -> bytes:
    """A value as JSON, or an `InvalidRequest` that says why it cannot be."""
    payload = _json(_encoder, value, what)
    # msgspec writes NaN and infinity as null: where there is no null, there was none of them.
    if b"null" in payload:
        _refuse_unsayable(value, what)
    if len(payload) > MOST_BYTES:
        raise PayloadTooLarge(
            f"{what} has {len(payload):,} bytes; the most is {MOST_BYTES:,}. Keep large things elsewhere and pass"
            " a reference.",
            param="input",
        )
    return payload


def _json(encoder: msgspec.json.Encoder, value: Any, what: str) -> bytes:
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


def record(
    collection: str,
    record_id: str,
    body: Mapping[str, Any],
    *,
    unique_key: str | None = None,
    text: str | None = None,
    job_id: str | None = None,
) -> RecordWrite:
    """A record to hand to `jobs.submit(records=[…])`, written together with the job."""
    check_text("collection", collection)
    check_text("id", record_id)
    if unique_key is not None and not 0 < len(unique_key) <= LONGEST_UNIQUE_KEY_CHARS:
        raise InvalidRequest(
            f"unique_key must have 1–{LONGEST_UNIQUE_KEY_CHARS} characters", param="unique_key"
        )
    encoded = encode(body, what="a record's body")
    return RecordWrite(
        collection=collection, id=record_id, body=encoded, unique_key=unique_key, text=text, job_id=job_id
    )
