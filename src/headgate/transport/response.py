"""One answer: its status, its headers, and a body that is read whole, in pieces or by lines.

Holds what has arrived and what the reader waits for. `connection` fills it; nothing here touches a socket.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headgate.transport.errors import TooLarge, TransportError
from headgate.transport.headers import Headers, RawHeader
from headgate.transport.limits import HIGH_WATER_BYTES, MAX_BODY_BYTES, MAX_LINE_BYTES

if TYPE_CHECKING:
    from headgate.transport.connection import Connection


class Response:
    """Use it as `with await transport.send(…) as response:`. Leaving early drops the connection at once.

    A body that was read to its end needs no closing: its connection is back in the pool by then. One reader at a time.
    """

    __slots__ = (
        "_behind",
        "_buffer",
        "_buffered_bytes",
        "_complete",
        "_connection",
        "_error",
        "_high_water",
        "_sink",
        "_waiter",
        "host",
        "raw_headers",
        "status",
    )

    def __init__(self, connection: "Connection", host: str) -> None:
        self.status = 0
        self.host = host
        self.raw_headers: list[RawHeader] = []
        self._buffer: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._high_water: float = HIGH_WATER_BYTES
        self._complete = False
        self._error: TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._behind = False
        self._connection: Connection | None = connection

    @property
    def headers(self) -> Headers:
        return Headers(self.raw_headers)

    async def read(self, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """The whole body (what is left of it). Raises `TooLarge` past `max_bytes`."""
        self._high_water = max_bytes + 1
        self._resume()
        while not self._complete and self._buffered_bytes <= max_bytes:
            await self.more()
        if self._buffered_bytes > max_bytes:
            self.close()
            raise TooLarge(f"{self.host} sent a body of more than {max_bytes} bytes")
        body = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        """The pieces of the body as they come, none of them empty. What arrived before a failure is given first."""
        while (chunk := await self.piece()) is not None:
            yield chunk

    async def piece(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        while not self._buffer:
            if self._complete:
                return None
            await self.more()
        chunk = self._buffer.popleft()
        self._buffered_bytes -= len(chunk)
        if not self._buffer:
            self._resume()
        return chunk

    async def pump(self, sink: Callable[[bytes], bool], caught_up: Callable[[], Awaitable[object]]) -> None:
        """Hand each piece to `sink` at the moment it arrives: no task is woken for it. Returns at the body's end.

        A sink that returns True is behind: the sender is stopped until `caught_up` returns. It must not raise.
        """
        while self._buffer:
            self._behind = sink(self._buffer.popleft()) or self._behind
        self._buffered_bytes = 0
        self._sink = sink
        try:
            while True:
                if self._behind:
                    await caught_up()
                    self._behind = False
                self._resume()
                if self._complete:
                    return
                await self.more()
        finally:
            self._sink = None

    def stop(self) -> None:
        """Its reader has all it wants: for it the body ends here, and what is left is dropped."""
        self.close()
        self.end()

    async def lines(self, max_line_bytes: int = MAX_LINE_BYTES) -> AsyncIterator[bytes]:
        """The lines of the body without their ends (LF or CRLF), however the pieces fall."""
        begun: list[bytes] = []
        begun_bytes = 0
        async for chunk in self.chunks():
            *whole, rest = chunk.split(b"\n")
            if whole:
                whole[0] = b"".join((*begun, whole[0]))
                for line in whole:
                    if len(line) > max_line_bytes:
                        self._line_too_long(max_line_bytes)
                    yield line.removesuffix(b"\r")
                begun, begun_bytes = [], 0
            begun.append(rest)
            begun_bytes += len(rest)
            if begun_bytes > max_line_bytes:
                self._line_too_long(max_line_bytes)
        if begun_bytes:
            yield b"".join(begun).removesuffix(b"\r")

    def close(self) -> None:
        """Drop what is left. An answer that is not whole takes its connection along, at once."""
        if self._connection is not None:
            self._connection.give_up(self)
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- For the connection and `send` ---

    async def head_arrived(self) -> None:
        """Returns when status and headers are there."""
        while not self.status:
            await self.more()

    async def more(self) -> None:
        """Wait for anything new. Raises what ended the answer, after what had arrived was taken."""
        if self._error is not None:
            raise self._error
        if self._connection is None:
            raise asyncio.InvalidStateError("this response was closed before it was read")
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        except asyncio.CancelledError:
            self.close()
            raise

    def _resume(self) -> None:
        if self._connection is not None:
            self._connection.resume(self)

    def _line_too_long(self, max_line_bytes: int) -> None:
        self.close()
        raise TooLarge(f"{self.host} sent a line of more than {max_line_bytes} bytes")

    def add(self, chunk: bytes) -> bool:
        """Keep a piece of the body, or pass it on. True: the reader is behind, stop the sender."""
        if self._sink is not None:
            if self._sink(chunk):
                self._behind = True
                self.wake()
            return self._behind
        self._buffer.append(chunk)
        self._buffered_bytes += len(chunk)
        self.wake()
        return self._buffered_bytes >= self._high_water

    def arrived(self, status: int, headers: list[RawHeader], body: bytes) -> None:
        """All of it at once."""
        self.status, self.raw_headers = status, headers
        if body:
            self._buffer.append(body)
            self._buffered_bytes = len(body)
        self._complete = True
        self._connection = None
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def whole(self) -> bytes | None:
        """The body, if all of it is here in one piece; else `read` it."""
        if not self._complete or len(self._buffer) != 1 or self._buffered_bytes > MAX_BODY_BYTES:
            return None
        self._buffered_bytes = 0
        return self._buffer.popleft()

    def end(self, error: TransportError | None = None) -> None:
        """The answer is whole, or it never will be. The connection is somebody else's from here on."""
        self._complete = error is None
        self._error = error
        self._connection = None
        self.wake()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
