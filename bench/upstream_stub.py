"""An upstream that costs next to nothing: OpenAI's chat completions by a bare protocol, in a process of its own.

The first part of the path says how it answers: `/instant/…` (and a plain `/v1/…`, `/health`) at once, `/wait-50/…` after 50 ms, `/paced-100-50/…` with a
stream of 100 chunks, one every 50 ms, each carrying the time it was written at. Run by `processes.started`.
"""

import asyncio
import re
import sys
import time
from typing import Final

import uvloop

JSON_BODY: Final = (
    b'{"id":"chatcmpl-abc","object":"chat.completion","created":1700000000,"model":"stub","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"'
    + b"The quick brown fox jumps over the lazy dog. "
    * 3
    + b'"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":42,"completion_tokens":30,"total_tokens":72}}'
)
JSON_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ndate: Mon, 16 Nov 2026 12:00:00 GMT\r\nserver: stub\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(JSON_BODY), JSON_BODY)
)
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ndate: Mon, 16 Nov 2026 12:00:00 GMT\r\nserver: stub\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT: Final = (
    b'data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":1700000000,"model":"stub",'
    b'"choices":[{"index":0,"delta":{"content":"@%017.6f "},"finish_reason":null}]}\n\n'
)
LAST_EVENTS: Final = (
    b'data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":1700000000,"model":"stub",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":42,"completion_tokens":100,"total_tokens":142}}\n\ndata: [DONE]\n\n'
)
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_MODE: Final = re.compile(rb"(?:GET|POST) /(instant|health|v1|wait-(\d+)|paced-(\d+)-(\d+))(?:/| )")


class Stub(asyncio.Protocol):
    """One request at a time on a connection, as from a gateway's pool."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._loop = asyncio.get_running_loop()
        self._mode = b""
        self._missing = 0
        self._chunks_left = 0

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._missing -= len(data)
        else:
            head, _, body = data.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            self._mode = head[:40]
            self._missing = (int(length[1]) if length else 0) - len(body)
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        mode = _MODE.match(self._mode)
        if mode is None:
            self._transport.abort()
        elif mode[2]:
            self._loop.call_later(int(mode[2]) / 1000, self._write_whole)
        elif mode[3]:
            self._chunks_left = int(mode[3])
            self._transport.write(STREAM_HEAD)
            self._write_chunk(self._loop.time(), int(mode[4]) / 1000)
        else:
            self._write_whole()

    def _write_whole(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(JSON_ANSWER)

    def _write_chunk(self, due: float, pace_s: float) -> None:
        if self._transport.is_closing():
            return
        if not self._chunks_left:
            self._transport.write(_framed(LAST_EVENTS) + b"0\r\n\r\n")
            return
        self._chunks_left -= 1
        self._transport.write(_framed(EVENT % time.monotonic()))
        due += pace_s
        self._loop.call_at(due, self._write_chunk, due, pace_s)


def _framed(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(uvloop.run(serve()))
