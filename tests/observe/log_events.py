"""Events to log, the moment they happen, and the way back from the file."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headgate.core.call import Lane
from headgate.core.events import Responded, RetryScheduled
from headgate.core.failures import Failure

NOON = datetime(2026, 3, 4, 12, 0, 0, 123_999, tzinfo=UTC)


def noon() -> datetime:
    return NOON


def responded(request_id: str = "r-1", *, agent_id: str | None = None, error: str | None = None) -> Responded:
    return Responded(
        request_id=request_id,
        agent_id=agent_id,
        model="summary",
        upstream="main",
        lane=Lane.INTERACTIVE,
        attempts=1,
        latency_ms=12.5,
        queue_ms=0.5,
        error=error,
    )


def retry(failure: Failure, *, request_ids: tuple[str, ...] = ("r-1",)) -> RetryScheduled:
    return RetryScheduled(
        request_ids=request_ids, model="summary", upstream="main", attempt=2, failure=failure, delay_ms=1500.0
    )


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
