"""JSON in and out of the store, bounded."""

from typing import Any, Final

import msgspec

from headgate.core.errors import InvalidRequest, PayloadTooLarge

MOST_BYTES: Final = 4 * 1024 * 1024
_encoder = msgspec.json.Encoder()
_ordered = msgspec.json.Encoder(order="deterministic")


def fingerprinted(value: Any, *, what: str) -> bytes:
    """A value as JSON whose keys and sets are in order: to be hashed and compared, never stored. Of any size."""
    return _json(_ordered, value, what)


def encode(value: Any, *, what: str) -> bytes:
    """A value as JSON, or an `InvalidRequest` that says why it cannot be."""
    payload = _json(_encoder, value, what)
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
