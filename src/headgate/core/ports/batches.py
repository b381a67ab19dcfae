"""The jobs of a batch together: how far they are, what came of them, stopping them."""

from collections.abc import Mapping
from typing import Protocol

from headgate.core.job import Job


class Batches(Protocol):
    """Count, page, cancel. A batch is no more than the id its jobs were accepted with; an unknown one has no jobs."""

    async def batch_counts(self, batch_id: str, *, tenant: str) -> Mapping[str, int]:
        """How many of its jobs are in each state."""
        ...

    async def batch_jobs(
        self, batch_id: str, *, tenant: str, limit: int, after: str | None = None
    ) -> list[Job]:
        """Oldest id first; `after` is the last id of the page before. Without input and history.

        An id begins with the millisecond of its submission; within one, chance decides. So this is not the order in
        which the jobs of one list were submitted.
        """
        ...

    async def cancel_batch(self, batch_id: str, *, tenant: str, now: float, limit: int) -> int:
        """Cancel up to `limit` of its jobs: pending ones at once, then running ones, which are only marked.

        Returns how many were neither cancelled nor marked before; 0 when nothing is left to do.
        """
        ...
