"""What a batch is: its states, the record people see, what was asked for, what its job has written down so far.

A batch is a job of its own, and its lines are jobs too. How it stands is read from what they have stored; nobody keeps
a second book.
"""

import enum
import math
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from headgate.core.errors import InvalidRequest

JOB_PREFIX: Final = "job_"
BATCH_PREFIX: Final = "batch_"
TASKS: Final[Mapping[str, str]] = {"/v1/chat/completions": "chat", "/v1/embeddings": "embeddings"}
"""Which built-in task runs the lines of an endpoint."""
MOST_LINES: Final = 50_000
LONGEST_WINDOW_S: Final = 7 * 86_400.0
MOST_PAIRS: Final = 16
LONGEST_NAME_CHARS: Final = 64
LONGEST_VALUE_CHARS: Final = 512
LEAST_LOOK_S: Final = 0.1
LONGEST_LOOK_S: Final = 5.0
LOOK_SHARE: Final = 0.3
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mh])")
_ID: Final = re.compile(r"batch_[0-9a-f]{12}[0-9A-Za-z_-]*")


class BatchState(enum.StrEnum):
    """validating → in_progress → finalizing → completed | expired; failed while validating; cancelling → cancelled."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in {
            BatchState.FAILED,
            BatchState.COMPLETED,
            BatchState.EXPIRED,
            BatchState.CANCELLED,
        }


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the input file, or with one of its lines."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[BatchError, ...]
    object: str = "list"


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as people see it, in OpenAI's shape. Times are whole epoch seconds."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchState
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None


class BatchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: the input of the batch's job."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    models: tuple[str, ...] = ()
    """What the access key may use, as it was then; none: every model."""
    failed_file_id: str | None = None
    """A retry runs only the lines that this error file names."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The lines were looked at: how many there are to run, or what is wrong with them. A step of the batch's job."""

    at: float
    total: int = 0
    chunk_lines: int = 0
    errors: tuple[BatchError, ...] = ()


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """All lines have ended: the files they are written to. A step of the batch's job."""

    at: float
    output_file_id: str
    error_file_id: str
    cancelled_at: float | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a batch's job is."""

    checked: Checked | None = None
    closing: Closing | None = None
    cancelled_at: float | None = None
    """Somebody asked to stop it before its lines had ended."""


def begin(batch_id: str, order: BatchOrder) -> Batch:
    """A batch of which nothing is known yet but what was asked for."""
    created_at = created_at_of(batch_id)
    return Batch(
        id=batch_id,
        endpoint=order.endpoint,
        input_file_id=order.input_file_id,
        completion_window=order.completion_window,
        status=BatchState.VALIDATING,
        created_at=int(created_at),
        expires_at=int(ends_at_of(batch_id, order)),
        metadata=order.metadata,
    )


def under_way(batch: Batch, standing: Standing, counts: Mapping[str, int]) -> Batch:
    """A batch whose job has not ended, by what that has written down. `counts` are its lines by state."""
    checked, closing = standing.checked, standing.closing
    cancelled_at = standing.cancelled_at if closing is None else closing.cancelled_at
    if checked is not None and checked.errors:
        return batch
    return msgspec.structs.replace(
        batch,
        status=_status(checked, closing, cancelled_at),
        in_progress_at=_whole(None if checked is None else checked.at),
        finalizing_at=_whole(None if closing is None else closing.at),
        cancelling_at=_whole(cancelled_at),
        request_counts=RequestCounts(
            total=0 if checked is None else checked.total,
            completed=counts.get("completed", 0),
            failed=failed_in(counts),
        ),
    )


def _status(checked: Checked | None, closing: Closing | None, cancelled_at: float | None) -> BatchState:
    if closing is not None:
        return BatchState.FINALIZING
    if cancelled_at is not None:
        return BatchState.CANCELLING
    return BatchState.VALIDATING if checked is None else BatchState.IN_PROGRESS


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)


def failed(batch: Batch, *errors: BatchError, at: float) -> Batch:
    return msgspec.structs.replace(
        batch, status=BatchState.FAILED, failed_at=int(at), errors=BatchErrors(data=errors)
    )


def ended(
    batch: Batch,
    closing: Closing,
    *,
    completed: int,
    failed: int,
    any_expired: bool,
    at: float,
) -> Batch:
    """All is written: what the batch came to. `completed` and `failed` are the lines of its two files."""
    if batch.cancelling_at is not None:
        status, field = BatchState.CANCELLED, "cancelled_at"
    elif any_expired:
        status, field = BatchState.EXPIRED, "expired_at"
    else:
        status, field = BatchState.COMPLETED, "completed_at"
    changed = msgspec.structs.replace(
        batch,
        status=status,
        finalizing_at=int(closing.at),
        output_file_id=closing.output_file_id if completed else None,
        error_file_id=closing.error_file_id if failed else None,
        request_counts=RequestCounts(total=completed + failed, completed=completed, failed=failed),
    )
    return msgspec.structs.replace(changed, **{field: int(at)})


def failed_in(counts: Mapping[str, int]) -> int:
    """Lines that ended without an answer."""
    return sum(counts.get(state, 0) for state in ("dead_letter", "cancelled", "skipped"))


def open_in(counts: Mapping[str, int]) -> int:
    return sum(counts.get(state, 0) for state in ("pending", "running"))


def next_look_s(*, elapsed_s: float, done: int, total: int) -> float:
    """How long to let the lines run before looking again: a share of the time they still need, by their pace so far."""
    left_s = elapsed_s if done == 0 else elapsed_s * (total - done) / done
    return min(LONGEST_LOOK_S, max(LEAST_LOOK_S, LOOK_SHARE * left_s))


def window_s(window: object) -> float:
    """`24h`, `90m`: minutes or hours, up to seven days."""
    found = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    seconds = math.inf if found is None else int(found[1]) * (60.0 if found[2] == "m" else 3600.0)
    if seconds > LONGEST_WINDOW_S:
        raise InvalidRequest(
            f"completion_window must be a number of hours or minutes, up to 168h: 24h, 90m; not {window!r:.60}",
            param="completion_window",
        )
    return seconds


def check_endpoint(endpoint: object) -> None:
    if not isinstance(endpoint, str) or endpoint not in TASKS:
        raise InvalidRequest(
            f"endpoint must be one of {', '.join(TASKS)}, not {endpoint!r:.100}", param="endpoint"
        )


def check_metadata(metadata: object) -> None:
    """As OpenAI has it: up to 16 pairs of short texts."""
    if metadata is None:
        return
    fits = isinstance(metadata, Mapping) and len(metadata) <= MOST_PAIRS
    if not fits or not all(_is_pair(name, value) for name, value in metadata.items()):  # type: ignore[attr-defined]
        raise InvalidRequest(
            f"metadata must be up to {MOST_PAIRS} pairs of text: names up to {LONGEST_NAME_CHARS} characters,"
            f" values up to {LONGEST_VALUE_CHARS}",
            param="metadata",
        )


def _is_pair(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and 0 < len(name) <= LONGEST_NAME_CHARS
        and len(value) <= LONGEST_VALUE_CHARS
    )


def is_batch_id(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME_CHARS and _ID.fullmatch(value) is not None


def created_at_of(batch_id: str) -> float:
    """Its id begins with the millisecond of its submission."""
    return int(batch_id[len(BATCH_PREFIX) :][:12], 16) / 1000


def ends_at_of(batch_id: str, order: BatchOrder) -> float:
    """When its window is over."""
    return created_at_of(batch_id) + window_s(order.completion_window)


def batch_id_of(job_id: str) -> str:
    return BATCH_PREFIX + job_id.removeprefix(JOB_PREFIX)


def job_id_of(batch_id: str) -> str:
    return JOB_PREFIX + batch_id.removeprefix(BATCH_PREFIX)
