"""The floor: a proxy of bare asyncio protocols. No limits, no errors, no gate: what Python allows on one core.

It parses both sides with httptools and decodes each body once, as any gateway must. Run: bare_proxy.py UPSTREAM_PORT PATH.
"""

import asyncio
import sys
from typing import Any

import httptools
import msgspec
import uvloop


class Asked(msgspec.Struct):
    model: str
    messages: list[Any]


_read = msgspec.json.Decoder(Asked).decode


class UpstreamSide(asyncio.Protocol):
    """Lent to one request at a time."""

    def __init__(self, idle: "list[UpstreamSide]") -> None:
        self._idle = idle
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self.answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        body, self._pieces = b"".join(self._pieces), []
        self._idle.append(self)
        if self.answer is not None:
            self.answer.set_result(body)


class ClientSide(asyncio.Protocol):
    """One request after the other."""

    def __init__(self, port: int, path: str, idle: list[UpstreamSide]) -> None:
        self._port = port
        self._start = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n".encode()
        )
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._pieces: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        body, self._pieces = b"".join(self._pieces), []
        task = self._loop.create_task(self._relay(body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, body: bytes) -> None:
        _read(body)
        upstream = self._idle.pop() if self._idle else await self._connect()
        answer = upstream.answer = self._loop.create_future()
        upstream.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._start, len(body), body))
        told = await answer
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(told)
        if not self._transport.is_closing():
            self._transport.write(head + told)

    async def _connect(self) -> UpstreamSide:
        made = await self._loop.create_connection(lambda: UpstreamSide(self._idle), "127.0.0.1", self._port)
        return made[1]


async def serve(upstream_port: int, path: str) -> None:
    idle: list[UpstreamSide] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: ClientSide(upstream_port, path, idle), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(uvloop.run(serve(int(sys.argv[1]), sys.argv[2])))
