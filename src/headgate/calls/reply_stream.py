"""A stream for callers of the library: text, tool calls, reasoning and usage, chunk by chunk."""

from collections import deque
from typing import Self

from headgate.calls.streams import CallStream
from headgate.core.answer import Chunk, Usage
from headgate.core.errors import ProviderFailure
from headgate.formats.chat import StreamReader


class ReplyStream:
    """A reply for callers of the library: text, tool calls, reasoning and usage, chunk by chunk.

    `async with gateway.stream(…) as stream: async for chunk in stream`. Leaving it early stops the provider's work.
    """

    def __init__(self, stream: CallStream) -> None:
        self._stream = stream
        self._reader = StreamReader()
        self._waiting: deque[Chunk] = deque()
        self._error: ProviderFailure | None = None
        """Found in a piece; raised once the chunks before it are read."""

    @property
    def request_id(self) -> str:
        return self._stream.request_id

    @property
    def upstream(self) -> str | None:
        return self._stream.upstream

    @property
    def attempts(self) -> int:
        return self._stream.attempts

    @property
    def queue_ms(self) -> float:
        return self._stream.queue_ms

    @property
    def upstream_ms(self) -> float:
        return self._stream.upstream_ms

    @property
    def usage(self) -> Usage | None:
        return self._stream.usage

    @property
    def spent(self) -> Usage:
        return self._stream.spent

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._waiting:
            if self._error is not None:
                await self._stream.cut(self._error)
            try:
                piece = await anext(self._stream)
            except StopAsyncIteration:
                # llama.cpp ends without the empty line behind its last event.
                self._waiting.extend(self._reader.end())
                if not self._waiting:
                    raise
            else:
                self._read(piece)
        return self._waiting.popleft()

    def _read(self, piece: bytes) -> None:
        try:
            for chunk in self._reader.feed(piece):
                self._waiting.append(chunk)
        except ProviderFailure as error:
            self._error = error

    async def aclose(self) -> None:
        """Stop reading: the provider's call is cancelled and the slot is free. Safe to call again."""
        await self._stream.aclose()
