"""What the library logs, on stderr: readable lines, or JSON for machines. Anybody's words may be in it, so it is made harmless."""

import enum
import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final

from headgate.cli.words import printable
from headgate.machine.context import JOB_ID, REQUEST_IDS

VARIABLE: Final = "HEADGATE_LOG_FORMAT"
_LAYOUT: Final = "%(asctime)s %(levelname)-7s %(message)s"


class LogFormat(enum.StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"


class _Lines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(_LAYOUT, "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _JsonLines(logging.Formatter):
    """One object a line, in plain ASCII: no terminal and no collector stumbles over it."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_bearings(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _bearings(record: logging.LogRecord) -> dict[str, Any]:
    """Whom the line is about: as it says itself, else whom the code that logs works for."""
    job_id = getattr(record, "job_id", None)
    if job_id is not None:
        return {"job_id": job_id}
    found: dict[str, Any] = {}
    match REQUEST_IDS.get():
        case ():
            pass
        case (request_id,):
            found["request_id"] = request_id
        case request_ids:
            found["request_ids"] = request_ids
    if (running := JOB_ID.get()) is not None:
        found["job_id"] = running
    return found


def format_by_environment() -> LogFormat:
    """For commands without an option; what nobody knows is text."""
    return LogFormat.JSON if os.environ.get(VARIABLE) == LogFormat.JSON else LogFormat.TEXT


def log_to_stderr(level: int, log_format: LogFormat) -> None:
    """From now on, whatever is logged at this level or above; also by tasks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if log_format is LogFormat.JSON else _Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
