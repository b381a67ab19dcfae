"""Applications' records. Written here alone, or (see `NewJob.records`, `Settlement.records`) with a job."""

from collections.abc import Sequence
from typing import Protocol

from headgate.core.record import Record, RecordWrite


class Records(Protocol):
    """Put, get, find, list, delete."""

    async def put_records(
        self, tenant: str, writes: Sequence[RecordWrite], *, now: float, quota: int | None = None
    ) -> None:
        """All or none; `RecordExists` when a unique key is another record's.

        Raises `QuotaExceeded` when the tenant would then store more bytes than the `quota`.
        """
        ...

    async def get_record(self, tenant: str, collection: str, record_id: str) -> Record | None: ...

    async def find_record(self, tenant: str, collection: str, unique_key: str) -> Record | None: ...

    async def list_records(
        self,
        tenant: str,
        collection: str,
        *,
        limit: int,
        after: str | None = None,
        text: str | None = None,
    ) -> list[Record]:
        """Newest id first; `text` finds a piece of the record's text, whatever its case."""
        ...

    async def delete_record(self, tenant: str, collection: str, record_id: str) -> bool: ...
