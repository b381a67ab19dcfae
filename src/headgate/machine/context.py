"""What the code that runs now works for: log lines and traces name it, without being told by every layer between."""

from contextvars import ContextVar
from typing import Final

REQUEST_IDS: Final[ContextVar[tuple[str, ...]]] = ContextVar("REQUEST_IDS", default=())
"""The requests of the call that is being made; more than one in a micro-batch."""
JOB_ID: Final[ContextVar[str | None]] = ContextVar("JOB_ID", default=None)
"""The job whose task runs."""
TRACEPARENT: Final[ContextVar[str | None]] = ContextVar("TRACEPARENT", default=None)
"""The header of that name, as the request that is being served brought it."""


def origin() -> str | None:
    """The job or the HTTP request that the running code works for; None outside of both."""
    if (job_id := JOB_ID.get()) is not None:
        return job_id
    request_ids = REQUEST_IDS.get()
    return request_ids[0] if len(request_ids) == 1 else None


def about(job_id: str) -> dict[str, str]:
    """For a log line about a job whose task does not run now: `logger.warning(…, extra=about(job_id))`."""
    return {"job_id": job_id}
