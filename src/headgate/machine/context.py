"""What the code that runs now works for, without each layer between having to pass it on."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Final

REQUEST_IDS: Final[ContextVar[tuple[str, ...]]] = ContextVar("REQUEST_IDS", default=())
"""The requests of the call that is being made; more than one in a micro-batch."""
JOB_ID: Final[ContextVar[str | None]] = ContextVar("JOB_ID", default=None)
"""The job whose task runs."""
TRACEPARENT: Final[ContextVar[str | None]] = ContextVar("TRACEPARENT", default=None)
"""The header of that name, as the request that is being served brought it."""
ACCESS_KEY: Final[ContextVar[str | None]] = ContextVar("ACCESS_KEY", default=None)
"""The id of the access key that the request came with, or the job that runs was submitted with."""
SPEND: Final[ContextVar[Callable[[int], None] | None]] = ContextVar("SPEND", default=None)
"""Takes tokens off what that key may use; None where nothing limits it."""

ANSWER_HEADERS: Final[ContextVar[list[tuple[bytes, bytes]] | None]] = ContextVar(
    "ANSWER_HEADERS", default=None
)
"""Collects the headers of what the provider answers to the current attempt."""


def note_headers(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Keep the headers of an answer for whoever makes the current attempt."""
    if (kept := ANSWER_HEADERS.get()) is not None:
        kept.extend(headers)


def origin() -> str | None:
    """The job or the HTTP request that the running code works for; None outside of both."""
    if (job_id := JOB_ID.get()) is not None:
        return job_id
    request_ids = REQUEST_IDS.get()
    return request_ids[0] if len(request_ids) == 1 else None


def about(job_id: str) -> dict[str, str]:
    """For a log line about a job whose task does not run now: `logger.warning(…, extra=about(job_id))`."""
    return {"job_id": job_id}
