"""Two files of JSON lines: `retries.jsonl` and `responses.jsonl`. Metadata only, never a prompt or an answer.

A call only stamps its event and puts it in a queue; one thread encodes, writes and rotates. A line is safe
from a crash of this process once write(2) took it, for the kernel keeps what it was given: so `flush` waits
for the write and nothing is fsynced. Only a crash of the machine can take more. One process per directory.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal, TypeAlias

import msgspec

from headgate.core.events import Event, Responded, RetryScheduled
from headgate.core.problems import Review
from headgate.observe.jsonlines import JsonLinesFile

_log = logging.getLogger("headgate")

_ENCODER: Final = msgspec.json.Encoder()
_LARGEST_BATCH: Final = 1000
_GATHER_S: Final = 0.05
_Item: TypeAlias = tuple[datetime, RetryScheduled | Responded] | threading.Event | None
"""A stamped event, a flush that waits for its turn, or the end."""


class RetryLine(msgspec.Struct, frozen=True):
    """A line of `retries.jsonl`."""

    timestamp: datetime
    model: str
    attempt: int
    request_ids: tuple[str, ...]
    error: str
    delay_ms: float
    status: Literal["retry"] = "retry"


class ResponseLine(msgspec.Struct, frozen=True):
    """A line of `responses.jsonl`."""

    timestamp: datetime
    request_id: str
    agent_id: str | None
    latency_ms: float
    status: Literal["success", "error"]


class EventLog:
    """Listens to events and writes the two files. Never blocks and never hurts a call.

    What cannot be written is counted in `dropped` and said once through logging: when more than
    `longest_backlog` events wait for a slow disk, and while the disk refuses.
    """

    def __init__(
        self,
        directory: Path,
        *,
        utc: Callable[[], datetime],
        max_bytes: int = 10_000_000,
        keep: int = 5,
        longest_backlog: int = 100_000,
    ) -> None:
        review = Review()
        review.number("max_bytes", max_bytes, least=1, whole=True)
        review.number("keep", keep, whole=True)
        review.number("longest_backlog", longest_backlog, least=1, whole=True)
        review.refuse()
        self._utc = utc
        self._longest_backlog = longest_backlog
        self._retries = JsonLinesFile(directory / "retries.jsonl", max_bytes, keep)
        self._responses = JsonLinesFile(directory / "responses.jsonl", max_bytes, keep)
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._counting = threading.Lock()
        self._refused = 0
        self._overflowing = False
        self._door = threading.Lock()
        self._closed = False
        self._writer = threading.Thread(
            target=self._write_until_closed, name="headgate-eventlog", daemon=True
        )
        self._writer.start()

    @property
    def dropped(self) -> int:
        """Lines that reached no file."""
        return self._refused + self._retries.lost + self._responses.lost

    @property
    def write_errors(self) -> int:
        """How often the disk refused."""
        return self._retries.errors + self._responses.errors

    def __call__(self, event: Event) -> None:
        if not isinstance(event, (Responded, RetryScheduled)):
            return
        if self._closed or self._queue.qsize() >= self._longest_backlog:
            self._refuse()
        else:
            self._queue.put((self._utc(), event))

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all events so far are written (or lost); False when that took too long."""
        written = threading.Event()
        with self._door:
            closed = self._closed
            if not closed:
                self._queue.put(written)
        return self._joined(timeout_s) if closed else written.wait(timeout_s)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Write what waits, close the files, end the thread. Events that still come are dropped."""
        with self._door:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        return self._joined(timeout_s)

    def _joined(self, timeout_s: float) -> bool:
        self._writer.join(timeout_s)
        return not self._writer.is_alive()

    def _refuse(self) -> None:
        with self._counting:
            self._refused += 1
            told, self._overflowing = self._overflowing or self._closed, True
        if not told:
            _log.warning(
                "event log: %d lines wait for the disk, new ones are dropped until it catches up",
                self._longest_backlog,
            )

    def _write_until_closed(self) -> None:
        self._write([])  # Makes the directory and the files, and ends a line that a crash tore.
        closing = False
        while not closing or self._queue.qsize():
            batch = [self._queue.get()]
            if isinstance(batch[0], tuple):
                # Woken for every line, this thread would take the interpreter from the calls as often.
                time.sleep(_GATHER_S)
            # Nobody else takes from the queue, so what it counts is there.
            while len(batch) < _LARGEST_BATCH and self._queue.qsize():
                batch.append(self._queue.get())
            self._write(batch)
            self._overflowing = self._overflowing and self._queue.qsize() > 0
            closing = closing or None in batch
        self._retries.close()
        self._responses.close()

    def _write(self, batch: Sequence[_Item]) -> None:
        stamped = [item for item in batch if isinstance(item, tuple)]
        self._retries.append(
            _encode([_retry(at, it) for at, it in stamped if isinstance(it, RetryScheduled)])
        )
        self._responses.append(
            _encode([_response(at, it) for at, it in stamped if isinstance(it, Responded)])
        )
        for item in batch:
            if isinstance(item, threading.Event):
                item.set()


def _retry(at: datetime, event: RetryScheduled) -> RetryLine:
    return RetryLine(
        timestamp=_in_utc(at),
        model=event.model,
        attempt=event.attempt,
        request_ids=event.request_ids,
        error=event.failure.error,
        delay_ms=event.delay_ms,
    )


def _response(at: datetime, event: Responded) -> ResponseLine:
    return ResponseLine(
        timestamp=_in_utc(at),
        request_id=event.request_id,
        agent_id=event.agent_id,
        latency_ms=event.latency_ms,
        status="success" if event.error is None else "error",
    )


def _in_utc(at: datetime) -> datetime:
    return at if at.tzinfo is UTC else at.astimezone(UTC)


def _encode(lines: Sequence[RetryLine | ResponseLine]) -> bytes:
    try:
        return _ENCODER.encode_lines(lines)
    except (TypeError, ValueError, OverflowError):
        # An id or a provider's code may hold what UTF-8 cannot, such as half a surrogate pair. Escape it.
        return "".join(
            json.dumps(msgspec.structs.asdict(line), default=_plain) + "\n" for line in lines
        ).encode()


def _plain(value: object) -> str:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
