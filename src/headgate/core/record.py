"""Records: small documents that applications keep beside their jobs, so that they need no tables of their own."""

from datetime import datetime
from typing import Any

import msgspec


class RecordWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One record to write, new or over an old one of the same id. `body` is JSON."""

    collection: str
    id: str
    body: bytes
    unique_key: str | None = None
    """At most one record of a collection has it (a bookmark's address, for example)."""
    text: str | None = None
    """What a search looks at."""
    job_id: str | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it is read back."""

    tenant: str
    collection: str
    id: str
    body: Any
    unique_key: str | None
    text: str | None
    job_id: str | None
    created_at: datetime
    updated_at: datetime
