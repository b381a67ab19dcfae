"""The upstreams of one weather over HTTP, in a process of their own: OpenAI's chat completions by a bare protocol.

`/0/v1/chat/completions` is the first upstream, `/1/…` the second. `POST /begin` starts the weather's clock, `GET /counts` tells
what arrived. The process ends when its standard input does, so it never outlives the run that started it.
Run: python -m weathers.stub NAME SEED
"""

import asyncio
import json
import random
import re
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import uvloop

from weathers.kinds import OK, THROTTLED, WAY_THERE_S, Calm, Verdict
from weathers.table import WEATHERS

CHUNKS: Final = 8
FIRST_CHUNK: Final = 0.4
"""The share of an answer's time before a stream's first chunk."""
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SIZE: Final = re.compile(rb"size=(\d+\.\d+)")
_STREAMED: Final = re.compile(rb'"stream": *true')
_USAGE: Final = {"prompt_tokens": 42, "completion_tokens": 10, "total_tokens": 52}
_CODES: Final = {THROTTLED: "rate_limit_exceeded"}


class Sky:
    """The upstreams and their clock."""

    def __init__(self, upstreams: list[Calm], seed: int) -> None:
        self.upstreams = upstreams
        self.chance = random.Random(f"{seed} ways")
        self.begun_at = 0.0

    def counts(self) -> dict[str, Any]:
        return {
            "calls": [len(upstream.log) for upstream in self.upstreams],
            "statuses": [Counter(str(status) for _, status in upstream.log) for upstream in self.upstreams],
            "max_in_flight": [upstream.max_in_flight for upstream in self.upstreams],
        }


class Stub(asyncio.Protocol):
    """One connection. A client that leaves ends its call."""

    def __init__(self, sky: Sky) -> None:
        self._sky = sky
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._call: tuple[Calm, Verdict] | None = None
        self._timers: list[asyncio.Handle] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # a TCP connection's

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = bytes(self._received).partition(b"\r\n\r\n")
        if not end:
            return
        length = _LENGTH.search(head)
        if len(body) < (int(length[1]) if length else 0):
            return
        self._received.clear()
        self._answer(head.split(b" ", 2)[1].decode(), body)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        self._leave()

    def _answer(self, path: str, body: bytes) -> None:
        if path == "/begin":
            self._sky.begun_at = self._loop.time()
            self._write(OK, {})
        elif path == "/counts":
            self._write(OK, self._sky.counts())
        elif path.endswith("/models"):
            self._write(OK, {"object": "list", "data": []})
        else:
            upstream = self._sky.upstreams[int(path.split("/", 2)[1])]
            self._timers.clear()  # Those of the connection's last call.
            self._later(self._sky.chance.uniform(0, WAY_THERE_S), self._arrive, upstream, body)

    def _arrive(self, upstream: Calm, body: bytes) -> None:
        size = _SIZE.search(body)
        verdict = upstream.arrive(self._loop.time() - self._sky.begun_at, float(size[1]) if size else 1.0)
        self._call = upstream, verdict
        if verdict.status != OK:
            self._later(verdict.after_s, self._refuse, verdict)
        elif _STREAMED.search(body):
            self._stream(verdict)
        else:
            self._later(verdict.after_s, self._finish, verdict)

    def _stream(self, verdict: Verdict) -> None:
        first_s = FIRST_CHUNK * verdict.after_s
        gap_s = (verdict.after_s - first_s) / CHUNKS
        # A stream that is cut has sent half of its chunks by then.
        chunks = CHUNKS // 2 if verdict.cut else CHUNKS
        for index in range(chunks):
            self._later(first_s + index * gap_s, self._write_chunk, index, verdict)
        self._later(verdict.after_s, self._finish_stream, verdict)

    def _later(self, after_s: float, what: Any, *args: Any) -> None:
        self._timers.append(self._loop.call_later(after_s, what, *args))

    def _leave(self) -> None:
        if self._call is not None:
            upstream, verdict = self._call
            upstream.leave(verdict)
            self._call = None

    def _refuse(self, verdict: Verdict) -> None:
        self._leave()
        error = {"message": "The weather is bad.", "type": "error", "code": _CODES.get(verdict.status)}
        self._write(verdict.status, {"error": error}, verdict.headers)

    def _finish(self, verdict: Verdict) -> None:
        self._leave()
        message = {"role": "assistant", "content": "The quick brown fox jumps over the lazy dog."}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "stub"}
        self._write(OK, {**answer, "choices": choices, "usage": _USAGE}, verdict.headers, cut=verdict.cut)

    def _write_chunk(self, index: int, verdict: Verdict) -> None:
        if not index:
            self._transport.write(
                _head(OK, {**verdict.headers, "transfer-encoding": "chunked"}, "text/event-stream")
            )
        self._transport.write(_framed(_event({"content": "fox "})))

    def _finish_stream(self, verdict: Verdict) -> None:
        self._leave()
        if verdict.cut:
            self._transport.abort()
            return
        last = _event({}, finish_reason="stop") + b"data: [DONE]\n\n"
        self._transport.write(_framed(last) + b"0\r\n\r\n")

    def _write(
        self, status: int, body: Any, headers: Mapping[str, str] | None = None, *, cut: bool = False
    ) -> None:
        data = json.dumps(body).encode()
        head = _head(status, {**(headers or {}), "content-length": str(len(data))}, "application/json")
        if cut:
            self._transport.write(head + data[: len(data) // 2])
            self._transport.close()
        else:
            self._transport.write(head + data)


def _head(status: int, headers: Mapping[str, str], content_type: str) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {content_type}\r\n{lines}\r\n".encode()


def _event(delta: Mapping[str, str], finish_reason: str | None = None) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "stub"}
    return b"data: %b\n\n" % json.dumps({**chunk, "choices": choices}).encode()


def _framed(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def serve(name: str, seed: int) -> None:
    sky = Sky(WEATHERS[name].sky(seed), seed)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(sky), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    parent_gone = asyncio.Event()

    def wait_for_parent() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(parent_gone.set)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    await parent_gone.wait()


if __name__ == "__main__":
    sys.exit(uvloop.run(serve(sys.argv[1], int(sys.argv[2]))))
