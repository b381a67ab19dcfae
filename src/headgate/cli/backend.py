"""What the commands on jobs, dead letters and batches speak to. The database is behind one adapter, a gateway behind the other."""

import enum
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headgate.cli.filters import Filter
from headgate.core.batch import Batch
from headgate.core.job import Job, JobState


class Verb(enum.StrEnum):
    """What is done to dead letters."""

    REPLAY = "replay"
    DISCARD = "discard"


class Made(NamedTuple):
    """A job or a batch that was handed in."""

    id: str
    was_there: bool = False
    """Its key led to one that is known to be older."""


class Backend(Protocol):
    """All of one tenant. Lists are newest first, and say whether there are more."""

    async def now(self) -> datetime:
        """By the clock that the backend goes by."""
        ...

    async def submit(self, task: str, asked: Mapping[str, Any], *, key: str | None) -> Made: ...

    async def job(self, job_id: str) -> Job: ...

    async def jobs(
        self, *, state: JobState | None, task: str | None, model: str | None, limit: int, after: str | None
    ) -> tuple[Sequence[Job], bool]: ...

    async def wait(self, job_id: str, patience_s: float | None) -> Job | None:
        """The job once it has ended; None when that takes longer. None as patience waits for ever."""
        ...

    async def cancel(self, job_id: str) -> JobState: ...

    async def dead(self, which: Filter, *, limit: int, after: str | None) -> tuple[Sequence[Job], bool]: ...

    def all_dead(self, which: Filter) -> AsyncGenerator[Job, None]: ...

    async def replay(self, job_id: str, new_input: Any) -> None: ...

    async def discard(self, job_id: str) -> None: ...

    def act_on_all(self, verb: Verb, which: Filter, per_second: float) -> AsyncGenerator[int, None]:
        """Yields how many are done so far. Closing it stops it."""
        ...

    async def create_batch(
        self, file: Path, *, endpoint: str, window: str, metadata: Mapping[str, Any] | None
    ) -> Batch: ...

    async def batch(self, batch_id: str) -> Batch: ...

    async def batches(self, *, limit: int, after: str | None) -> tuple[Sequence[Batch], bool]: ...

    async def wait_for_batch(self, batch_id: str, patience_s: float | None) -> Batch | None: ...

    async def cancel_batch(self, batch_id: str) -> Batch: ...

    async def retry_batch(self, batch_id: str, *, key: str | None) -> Made: ...
