"""Logs as fast as it can until it is killed: `eventlog_child.py DIRECTORY ROUND`.

Prints the number of each event once `flush` vouched for it, and for all before it.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from headgate.core.call import Lane
from headgate.core.events import Responded, RetryScheduled
from headgate.core.failures import Failure, FailureKind
from headgate.observe.eventlog import EventLog

# Small enough to rotate a few times in each round.
MAX_BYTES = 50_000
KEEP = 100_000


def responded(request_id: str) -> Responded:
    return Responded(
        request_id=request_id,
        agent_id="crash-test",
        model="summary",
        upstream="main",
        lane=Lane.BATCH,
        attempts=1,
        latency_ms=1.5,
        queue_ms=0.0,
    )


def retry(request_id: str) -> RetryScheduled:
    return RetryScheduled(
        request_ids=(request_id,),
        model="summary",
        upstream="main",
        attempt=1,
        failure=Failure(kind=FailureKind.THROTTLED, status=429, message="never in a log"),
        delay_ms=10.0,
    )


def main(directory: str, round_number: str) -> None:
    log = EventLog(Path(directory), utc=lambda: datetime.now(UTC), max_bytes=MAX_BYTES, keep=KEEP)
    number = 0
    while True:
        # Bursts of different lengths, up to several pages: the kernel may stop a killed write between pages.
        for _ in range(number % 97 + 1):
            number += 1
            log(responded(f"{round_number}-{number}"))
            log(retry(f"{round_number}-{number}"))
        if not log.flush():
            sys.exit("the log did not flush")
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
