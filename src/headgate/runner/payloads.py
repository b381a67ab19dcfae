"""JSON on its way into the store, bounded: inputs, results, records."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.core.call import check_text
from headgate.core.errors import InvalidRequest, PayloadTooLarge
from headgate.core.json_text import encode_json, write_json
from headgate.core.record import RecordWrite

MOST_BYTES: Final = 4 * 1024 * 1024
LONGEST_UNIQUE_KEY_CHARS: Final = 4096
_ordered = msgspec.json.Encoder(order="sorted")


def fingerprinted(value: Any, *, what: str) -> bytes:
    """A value as JSON whose keys and sets are in order: to be hashed and compared, never stored. Of any size."""
    return write_json(value, what=what, encoder=_ordered)


def encode(value: Any, *, what: str) -> bytes:
    """A value as JSON, or an `InvalidRequest` that says why it cannot be stored."""
    payload = encode_json(value, what=what)
    if len(payload) > MOST_BYTES:
        raise PayloadTooLarge(
            f"{what} has {len(payload):,} bytes; the most is {MOST_BYTES:,}. Keep large things elsewhere and pass"
            " a reference.",
            param="input",
        )
    return payload


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
