"""A real server on loopback, clients that speak bytes, and small applications to serve."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import uvloop

from headgate.server.http import Asgi, HttpLimits, Server
from headgate.server.http.asgi import App, Receive, Scope, Send

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
Play = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def post(body: bytes, path: str = "/", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


class Wire:
    """The client's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Each piece on its own, with a breath in between so that they arrive apart."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            if len(pieces) > 1:
                await asyncio.sleep(0.001)

    async def ask(self, *pieces: bytes) -> Answer:
        await self.send(*pieces)
        return await self.answer()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:-2])
        return int(lines[0].split()[1]), headers

    async def answer(self, *, to_head: bool = False) -> Answer:
        status, headers = await self.head()
        if to_head or status in {100, 204, 304}:
            body = b""
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            assert headers["transfer-encoding"] == "chunked"
            body = b"".join([chunk async for chunk in self.chunks()])
        return Answer(status, headers, body)

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"

    async def rest(self) -> bytes:
        """Everything up to the end of the connection, however that comes."""
        received = b""
        with contextlib.suppress(ConnectionError):
            while data := await self.reader.read(65536):
                received += data
        return received

    async def closed(self) -> bool:
        """The server ends the connection without another byte."""
        return await asyncio.wait_for(self.rest(), 5) == b""

    def reset(self) -> None:
        self.writer.transport.abort()


class House:
    """A running server, and how to reach it."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port

    @contextlib.asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        try:
            yield wire
        finally:
            wire.writer.close()
            with contextlib.suppress(ConnectionError):
                await wire.writer.wait_closed()

    async def ask(self, *pieces: bytes) -> Answer:
        async with self.wire() as wire:
            return await wire.ask(*pieces)


@contextlib.asynccontextmanager
async def serving(app: App, limits: HttpLimits | None = None) -> AsyncIterator[House]:
    server = Server(Asgi(app), limits=limits)
    house = House(server, await server.start("127.0.0.1", 0))
    try:
        yield house
    finally:
        await server.aclose()
        assert server.connections == 0


async def eventually(condition: Callable[[], object], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def read_whole(receive: Receive) -> bytes:
    """The whole body. Who leaves before its end takes the application with it."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        parts.append(message["body"])
        more = message["more_body"]
    return b"".join(parts)


async def respond(send: Send, body: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Gives back what was asked, so that a request that arrives crippled shows."""
    body = await read_whole(receive)
    told = [scope["method"], scope["path"], scope["query_string"].decode(), body.decode("latin-1")]
    await respond(send, json.dumps(told).encode())
