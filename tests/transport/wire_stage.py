"""Real local servers that speak scripted bytes, and the two event loops the transport runs on."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import uvloop

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
Play = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent_bytes = 0
        self.ended = False
        """The script is over: it came to its end, or the client left."""

    async def request(self) -> bytes:
        """One whole request: its head and as much body as it announces."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        return head + await self.reader.readexactly(length)

    async def send(self, *pieces: bytes) -> None:
        """Each piece on its own, with a breath in between so that they arrive apart."""
        for piece in pieces:
            if self.writer.is_closing():
                # uvloop would call it a RuntimeError.
                raise ConnectionResetError
            self.writer.write(piece)
            await self.writer.drain()
            self.sent_bytes += len(piece)
            await asyncio.sleep(0.001 if len(pieces) > 1 else 0)

    async def gone(self) -> None:
        """Returns when the other end has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


Script = Callable[[Peer], Awaitable[None]]


class Server:
    """What a test asks the server about."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.peers: list[Peer] = []
        self.requests: list[bytes] = []
        self.port = 0
        self.scheme = "http"
        self.troubles: list[Exception] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.script(peer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # The client left, or the test is over (a cancelled handler would be logged as a fault).
        except Exception as error:  # noqa: BLE001 - told at the end, where the test can see it
            self.troubles.append(error)
        finally:
            peer.ended = True
            writer.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self.peers:
            peer.writer.transport.abort()
        await asyncio.gather(*(peer.writer.wait_closed() for peer in self.peers), return_exceptions=True)
        assert self.troubles == []


@contextlib.asynccontextmanager
async def serving(
    script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Server]:
    server = Server(script)
    listener = await asyncio.start_server(server.accept, host, 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    server.scheme = "https" if tls else "http"
    try:
        yield server
    finally:
        listener.close()
        await server.stop()


def answering(*answers: bytes) -> Script:
    """Every connection gets the same answers, one per request, and is then left open."""

    async def script(peer: Peer) -> None:
        for answer in answers:
            await peer.request()
            await peer.send(answer)
        await peer.gone()

    return script


def always(answer: bytes = OK) -> Script:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(answer)

    return script


def closing(*pieces: bytes) -> Script:
    """One request, these bytes, the end."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*pieces)

    return script


async def eventually(true: Callable[[], bool], within_s: float = 2.0) -> float:
    """Wait for something the other end does; returns how long it took."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while not true():
        assert loop.time() - start < within_s, "it did not happen in time"
        await asyncio.sleep(0.001)
    return loop.time() - start
