"""What is asked for with a batch, and what may be: endpoint, window, metadata. Also what its id says."""

import math
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from headgate.core.errors import InvalidRequest

BATCH_TASK: Final = "headgate.batch"
"""The task of a batch's own job."""
JOB_PREFIX: Final = "job_"
BATCH_PREFIX: Final = "batch_"
TASKS: Final[Mapping[str, str]] = {"/v1/chat/completions": "chat", "/v1/embeddings": "embeddings"}
"""Which built-in task runs the lines of an endpoint."""
MOST_LINES: Final = 50_000
LONGEST_WINDOW_S: Final = 7 * 86_400.0
MOST_PAIRS: Final = 16
LONGEST_NAME_CHARS: Final = 64
LONGEST_VALUE_CHARS: Final = 512
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mh])")
_ID: Final = re.compile(r"batch_[0-9a-f]{12}[0-9A-Za-z_-]*")


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
    if metadata is not None and not _is_metadata(metadata):
        raise InvalidRequest(
            f"metadata must be up to {MOST_PAIRS} pairs of text: names up to {LONGEST_NAME_CHARS} characters,"
            f" values up to {LONGEST_VALUE_CHARS}",
            param="metadata",
        )


def _is_metadata(value: object) -> bool:
    if not isinstance(value, Mapping) or len(value) > MOST_PAIRS:
        return False
    return all(_is_pair(name, inner) for name, inner in value.items())


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
