"""A gateway of a few lines that can be told to misbehave: it keeps jobs by their keys, as the real one does."""

import asyncio
import contextlib
import enum
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from headgate.core.job import Job, JobState

FIELDS: Final = Job.__struct_fields__
MOMENT: Final = "2026-01-01T00:00:00Z"


class Fault(enum.Enum):
    """What becomes of one request."""

    NONE = enum.auto()
    CUT_BEFORE = enum.auto()
    """The connection ends; nothing was done."""
    CUT_AFTER = enum.auto()
    """It was done; the connection ends before the answer."""
    FULL = enum.auto()
    AWAY = enum.auto()
    WRONG = enum.auto()
    BROKEN = enum.auto()
    STRANGER = enum.auto()
    OTHER_MODEL = enum.auto()
    IN_PROGRESS = enum.auto()
    PROXY = enum.auto()
    QUOTA = enum.auto()
    SILENT = enum.auto()
    LATE = enum.auto()


ANSWERS: Final[dict[Fault, tuple[int, str, str]]] = {
    Fault.FULL: (429, "queue_full", "retry-after: {after}\r\n"),
    Fault.AWAY: (503, "draining", "retry-after: {after}\r\n"),
    Fault.WRONG: (400, "invalid_request", "x-should-retry: false\r\n"),
    Fault.BROKEN: (500, "internal", "x-should-retry: false\r\n"),
    Fault.STRANGER: (401, "unauthorized", "x-should-retry: false\r\n"),
    Fault.OTHER_MODEL: (403, "model_not_allowed", "x-should-retry: false\r\n"),
    Fault.QUOTA: (507, "quota_exceeded", "x-should-retry: false\r\n"),
    Fault.LATE: (504, "deadline_exceeded", "x-should-retry: false\r\n"),
    Fault.IN_PROGRESS: (409, "idempotency_in_progress", "retry-after: {after}\r\n"),
}


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")


@dataclass
class Stub:
    """What a test can tell it and ask it."""

    faults: deque[Fault] = field(default_factory=deque)
    """For the next requests, one each; then `otherwise`."""
    otherwise: Callable[[Seen], Fault] = lambda _: Fault.NONE
    after_s: float = 7.0
    seen: list[Seen] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    """In the order in which they were taken."""
    by_key: dict[str, dict[str, Any]] = field(default_factory=dict)
    ends_at_once: bool = False
    ends_when_awaited: bool = False
    """A job ends as soon as a request waits for that, as if each job were a little faster than the next request."""
    instead: tuple[int, bytes] | None = None
    """A status and a body for everybody who asks, as some other server would have them."""
    port: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def inputs(self) -> list[Any]:
        return [job["input"] for job in self.jobs]

    def end(self, job: dict[str, Any], state: JobState = JobState.COMPLETED) -> None:
        job.update(state=str(state), result="done")

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._serve(reader, writer):
                pass
        self.writers.discard(writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _read(reader)
        self.seen.append(request)
        fault = self.faults.popleft() if self.faults else self.otherwise(request)
        if fault is Fault.CUT_BEFORE:
            return False
        if self.instead is not None:
            (status, body), headers = (
                self.instead,
                f"retry-after: {self.after_s}\r\n" * (self.instead[0] == 429),
            )
        elif fault in {Fault.NONE, Fault.CUT_AFTER, Fault.SILENT}:
            status, headers, body = self._answer(request)
            if fault is Fault.CUT_AFTER:
                return False
            if fault is Fault.SILENT:
                await reader.read()
                return False
        elif fault is Fault.PROXY:
            status, headers, body = 502, "", b"<html>502 Bad Gateway</html>"
        else:
            status, code, headers = ANSWERS[fault]
            headers = headers.format(after=self.after_s)
            error = {"message": f"told {code}", "type": "x", "param": None, "code": code}
            body = json.dumps({"error": error}).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return True

    def _answer(self, request: Seen) -> tuple[int, str, bytes]:
        if request.method == "POST":
            known = self.by_key.get(request.key or "")
            job = known or self._take(request)
            replayed = "idempotent-replayed: true\r\n" if known else ""
            return 202, replayed, json.dumps(job).encode()
        path, _, query = request.path.partition("?")
        wanted = path.rpartition("/")[2]
        job = next(job for job in self.jobs if job["id"] == wanted)
        if self.ends_when_awaited and query.startswith("wait=") and query != "wait=0":
            self.end(job)
        return 200, "", json.dumps(job).encode()

    def _take(self, request: Seen) -> dict[str, Any]:
        asked = json.loads(request.body)
        job: dict[str, Any] = dict.fromkeys(FIELDS)
        job.update(
            id=f"job-{len(self.jobs)}",
            state="completed" if self.ends_at_once else "pending",
            tenant="local",
            lane="batch",
            history=[],
            hold=True,
            **dict.fromkeys(("created_at", "run_at", "expires_at"), MOMENT),
            **dict.fromkeys(
                ("priority", "attempts", "max_attempts", "generation", "crashes", "deferrals", "revivals"), 1
            ),
            timeout_s=1.0,
            choices=[],
        )
        job.update(
            {name: value for name, value in asked.items() if name in FIELDS}, task=asked.get("task", "")
        )
        self.jobs.append(job)
        if request.key is not None:
            self.by_key[request.key] = job
        return job


async def _read(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, path, headers, body)


@contextlib.asynccontextmanager
async def stubbed(*faults: Fault, port: int = 0) -> AsyncIterator[Stub]:
    """A stub behind a real port of the loopback."""
    stub = Stub(deque(faults))
    async with listening(stub, port=port):
        yield stub


@contextlib.asynccontextmanager
async def listening(stub: Stub, *, port: int = 0) -> AsyncIterator[None]:
    """There while the block lasts; before and after nobody answers."""
    server = await asyncio.start_server(stub.accept, "127.0.0.1", port)
    stub.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()
        for writer in tuple(stub.writers):
            writer.transport.abort()
        await server.wait_closed()
