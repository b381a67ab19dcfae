"""A loopback HTTP server that answers by script: any status, any headers, any bytes, cut or silent where ordered.

Knows nothing of a wire format; the stubs of the providers write the bytes. It keeps what it was asked and sees when a
caller leaves before the answer is whole.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

CUT = "cut"
"""Here the server drops the connection."""
HANG = "hang"
"""Here the server falls silent until the caller leaves."""


@dataclass(frozen=True)
class Reply:
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    ending: str | None = None
    piece_bytes: int = 1 << 20
    """The size of the pieces in which the body is sent, each in a packet and a chunk of its own."""
    end_after_s: float = 0.0
    """How long after its last byte a body is said to be whole."""
    silent: bool = False
    """Not even a status comes."""


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class ScriptedServer:
    """`async with ScriptedServer(reply, reply) as server`: one reply per request, the last one again and again."""

    def __init__(self, *replies: Reply) -> None:
        self._replies: Sequence[Reply] = replies
        self.requests: list[Seen] = []
        self.connections = 0
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        """A caller has gone before its answer was whole."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (seen := await _read_request(reader)) is not None:
                self.requests.append(seen)
                self.asked.set()
                reply = self._replies[min(len(self.requests), len(self._replies)) - 1]
                if not await self._answer(reply, reader, writer):
                    break
        except ConnectionError:
            self.left.set()
        finally:
            writer.close()

    async def _answer(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if not reply.silent:
            lines = [f"HTTP/1.1 {reply.status} Scripted", "Transfer-Encoding: chunked"]
            lines += [f"{name}: {value}" for name, value in reply.headers.items()]
            send(writer, ("\r\n".join(lines) + "\r\n\r\n").encode())
            for start in range(0, len(reply.body), reply.piece_bytes):
                piece = reply.body[start : start + reply.piece_bytes]
                send(writer, b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0)
        if reply.ending == HANG or reply.silent:
            await reader.read()
            self.left.set()
            return False
        if reply.ending == CUT:
            writer.transport.abort()
            return False
        await asyncio.sleep(reply.end_after_s)
        send(writer, b"0\r\n\r\n")
        await writer.drain()
        return True


def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """A caller that left while this server slept is a `ConnectionError`; uvloop would raise `RuntimeError`."""
    if writer.transport.is_closing():
        raise ConnectionResetError("the caller has left")
    writer.write(data)


async def _read_request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    method, path, _ = first.split(" ")
    return Seen(method, path, headers, await reader.readexactly(int(headers["content-length"])))
