"""Two clocks: ours and the database's. Nodes differ, so what is stored is told in the database's time.

Every time goes through here on its way in (`there`) and on its way out (`here`, and the readers of whole rows):
callers know only their own clock. The difference is kept to 1/1024 s, so that adding it and taking it away again
gives back the very same number.
"""

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from headgate.core.job import Attempt, Cause, Claim, Entry, Job, Lost
from headgate.core.record import Record
from headgate.stores.rows import entry_line, read_cause, read_claim, read_job, read_lost, read_record

_STEPS_PER_S: Final = 1024
_CLAIM_TIMES: Final = 17
_JOB_TIMES: Final = 24
_RECORD_TIMES: Final = 7
_CAUSE_TIMES: Final = 6


class DatabaseTime:
    """How far the database's clock is ahead of ours, and all times moved by it."""

    def __init__(self, *, follow: bool) -> None:
        self._follow = follow
        self.skew_s = 0.0

    def measure(self, before: datetime, database: float, after: datetime) -> None:
        """The database said what time it was, somewhere between two looks at our clock."""
        if not self._follow:
            return
        doubt_s = (after - before).total_seconds() / 2
        skew_s = database - before.timestamp() - doubt_s
        # A measurement that cannot tell the old figure from the new one keeps the old: times must not jitter, and
        # on one machine the difference is none.
        if abs(skew_s - self.skew_s) > doubt_s + 1 / _STEPS_PER_S:
            self.skew_s = round(skew_s * _STEPS_PER_S) / _STEPS_PER_S

    def there(self, ours: float) -> float:
        return ours + self.skew_s

    def here(self, theirs: float) -> float:
        return theirs - self.skew_s

    def line(self, entry: Entry | None) -> str:
        """A line of history with the database's times."""
        if entry is None or not self.skew_s:
            return entry_line(entry)
        started_at = None if entry.started_at is None else entry.started_at + self.skew_s
        return entry_line(msgspec.structs.replace(entry, at=entry.at + self.skew_s, started_at=started_at))

    # ---- Whole rows, on their way out --------------------------------------------------------------------

    def claim(self, row: Any) -> Claim:
        return read_claim(self._moved(row, _CLAIM_TIMES, 3) if self.skew_s else row)

    def lost(self, row: Any) -> Lost:
        return read_lost(self._moved(row, _CLAIM_TIMES, 3) if self.skew_s else row)

    def job(self, row: Any) -> Job:
        if not self.skew_s:
            return read_job(row)
        job = read_job(self._moved(row, _JOB_TIMES, 5))
        if not job.history:
            return job
        return msgspec.structs.replace(job, history=tuple(map(self._attempt, job.history)))

    def cause(self, row: Any) -> Cause:
        return read_cause(self._moved(row, _CAUSE_TIMES, 1) if self.skew_s else row)

    def record(self, row: Any) -> Record:
        return read_record(self._moved(row, _RECORD_TIMES, 2) if self.skew_s else row)

    def _moved(self, row: Any, first: int, count: int) -> list[Any]:
        values = list(row)
        for index in range(first, first + count):
            if values[index] is not None:
                values[index] -= self.skew_s
        return values

    def _attempt(self, attempt: Attempt) -> Attempt:
        skew = timedelta(seconds=self.skew_s)
        started_at = None if attempt.started_at is None else attempt.started_at - skew
        return msgspec.structs.replace(attempt, at=attempt.at - skew, started_at=started_at)
