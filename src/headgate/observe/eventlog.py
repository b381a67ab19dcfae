"""Two files of JSON lines: `retries.jsonl` and `responses.jsonl`. Metadata only, never a prompt or an answer.

A call only stamps its event and appends it; one thread encodes, writes and rotates. A line is safe
from a crash of this process once write(2) took it, for the kernel keeps what it was given: so `flush` waits
for the write and nothing is fsynced. Only a crash of the machine can take more. Processes may share a directory.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from headgate.core.events import Event, Responded, RetryScheduled
from headgate.core.problems import Review
from headgate.observe.jsonlines import JsonLinesFile

_log = logging.getLogger("headgate")

_ENCODER: Final = msgspec.json.Encoder()
_LARGEST_BATCH: Final = 1000
_GATHER_S: Final = 0.05
_REPORT_EVERY_S: Final = 60.0
_THOUSANDTHS: Final = tuple(f".{number:03d}Z" for number in range(1000))
_Stamped: TypeAlias = tuple[datetime, RetryScheduled | Responded]
_Item: TypeAlias = _Stamped | threading.Event
"""A stamped event, or a flush that waits for its turn."""


class RetryLine(msgspec.Struct, frozen=True):
    """A line of `retries.jsonl`."""

    timestamp: str
    model: str
    attempt: int
    request_ids: tuple[str, ...]
    error: str
    delay_ms: float
    status: Literal["retry"] = "retry"


class ResponseLine(msgspec.Struct, frozen=True):
    """A line of `responses.jsonl`."""

    timestamp: str
    request_id: str
    agent_id: str | None
    latency_ms: int
    status: Literal["success", "error"]


class EventLog:
    """Listens to events and writes the two files. Never blocks and never hurts a call.

    What cannot be written is counted in `dropped` and said once through logging: when more than
    `longest_backlog` events wait for a slow disk, and while the disk refuses. The thread survives every
    error, and a line that cannot be written costs no other.
    """

    def __init__(
        self,
        directory: Path,
        *,
        utc: Callable[[], datetime],
        max_bytes: int = 10_000_000,
        keep: int = 5,
        longest_backlog: int = 100_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        review = Review()
        review.number("max_bytes", max_bytes, least=1, whole=True)
        review.number("keep", keep, whole=True)
        review.number("longest_backlog", longest_backlog, least=1, whole=True)
        review.refuse()
        self._utc = utc
        self._sleep = sleep
        self._longest_backlog = longest_backlog
        self._retries = JsonLinesFile(directory / "retries.jsonl", max_bytes, keep)
        self._responses = JsonLinesFile(directory / "responses.jsonl", max_bytes, keep)
        self._waiting: deque[_Item] = deque()
        """Callers append, the thread takes from the other end: both are safe without a lock."""
        self._asleep = False
        self._bell = threading.Event()
        self._counting = threading.Lock()
        self._refused = 0
        self._overflowing = False
        self._reported_at: float | None = None
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
        # `isinstance` costs several times as much.
        if type(event) is not Responded and type(event) is not RetryScheduled:
            return
        if self._closed or len(self._waiting) >= self._longest_backlog:
            self._refuse()
            return
        self._waiting.append((self._utc(), event))
        if self._asleep:
            self._asleep = False
            self._bell.set()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all events so far are written (or lost); False when that took too long."""
        written = threading.Event()
        with self._door:
            closed = self._closed
            if not closed:
                self._waiting.append(written)
        self._bell.set()
        return self._joined(timeout_s) if closed else written.wait(timeout_s)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Write what waits, close the files, end the thread. Events that still come are dropped."""
        with self._door:
            self._closed = True
        self._bell.set()
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
        for file in (self._retries, self._responses):
            file.append(b"")  # Makes the directory and the file, and ends a line that a crash tore.
        while not self._closed or self._waiting:
            try:
                self._rest()
            except Exception as error:  # noqa: BLE001 - a rest that fails must not end the writing
                self._report(error)
            # Only this thread takes from it, so what it counts is there.
            count = min(len(self._waiting), _LARGEST_BATCH)
            self._write([self._waiting.popleft() for _ in range(count)])
            self._overflowing = self._overflowing and bool(self._waiting)
        self._retries.close()
        self._responses.close()

    def _rest(self) -> None:
        """Until there is something to write, and a moment longer."""
        self._asleep = True
        # Who appends before this look is seen by it, who appends after it rings.
        if not self._waiting and not self._closed:
            self._bell.wait()
        self._asleep = False
        self._bell.clear()
        if 0 < len(self._waiting) < _LARGEST_BATCH and isinstance(self._waiting[0], tuple):
            # Woken for every line, this thread would take the interpreter from the calls as often.
            self._sleep(_GATHER_S)

    def _write(self, batch: Sequence[_Item]) -> None:
        moment = _Moments()
        stamped = [item for item in batch if not isinstance(item, threading.Event)]
        self._append(self._retries, stamped, RetryScheduled, lambda at, event: _retry(moment(at), event))
        self._append(self._responses, stamped, Responded, lambda at, event: _response(moment(at), event))
        for item in batch:
            if isinstance(item, threading.Event):
                item.set()

    def _append(
        self,
        file: JsonLinesFile,
        stamped: Sequence[_Stamped],
        kind: type[Event],
        line: Callable[[datetime, Any], RetryLine | ResponseLine],
    ) -> None:
        """All in one write. If one of them cannot be a line, each goes alone."""
        events = [item for item in stamped if type(item[1]) is kind]
        if not events:
            return
        try:
            lines = _encode([line(at, event) for at, event in events])
        except Exception as error:  # noqa: BLE001 - whatever it is, the other lines are written
            if len(events) > 1:
                for item in events:
                    self._append(file, [item], kind, line)
                return
            self._report(error)
            with self._counting:
                self._refused += 1
        else:
            file.append(lines)

    def _report(self, error: Exception) -> None:
        """Once a minute at most."""
        now = time.monotonic()
        if self._reported_at is None or now - self._reported_at > _REPORT_EVERY_S:
            self._reported_at = now
            _log.warning("event log: %s: %s; it goes on", type(error).__name__, error)


class _Moments:
    """Moments as text, in UTC, to the millisecond. Each second is written out once."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self, at: datetime) -> str:
        second = int(at.timestamp())
        if second != self._second:
            self._second = second
            self._text = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return self._text + _THOUSANDTHS[at.microsecond // 1000]


def _retry(timestamp: str, event: RetryScheduled) -> RetryLine:
    return RetryLine(
        timestamp=timestamp,
        model=event.model,
        attempt=event.attempt,
        request_ids=event.request_ids,
        error=event.failure.error,
        delay_ms=event.delay_ms,
    )


def _response(timestamp: str, event: Responded) -> ResponseLine:
    return ResponseLine(
        timestamp=timestamp,
        request_id=event.request_id,
        agent_id=event.agent_id,
        latency_ms=round(event.latency_ms),
        status="success" if event.error is None else "error",
    )


def _encode(lines: Sequence[RetryLine | ResponseLine]) -> bytes:
    try:
        return _ENCODER.encode_lines(lines)
    except (TypeError, ValueError, OverflowError):
        # An id or a provider's code may hold what UTF-8 cannot, such as half a surrogate pair. Escape it.
        return "".join(
            json.dumps(msgspec.structs.asdict(line), default=str) + "\n" for line in lines
        ).encode()
