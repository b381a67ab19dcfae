"""A streamed answer as its chunks. Until it begins it may be tried again; afterwards it ends honestly or it is cut."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from headgate.client.answers import error_in_stream
from headgate.client.line import Line
from headgate.core.errors import DeadlineExceeded, ProviderFailure, StreamCut
from headgate.core.failures import Failure, FailureKind
from headgate.formats.foreign_bodies import UNREADABLE
from headgate.formats.sse import DONE, Event, Events
from headgate.transport import Response
from headgate.transport.errors import TotalTimedOut

Chunk = dict[str, Any]
_CUT: Final = Failure(kind=FailureKind.TRANSIENT, message="the stream ended without [DONE]")


class ChatStream:
    """`async with client.stream(…) as stream: async for chunk in stream`. Leaving it early stops the work upstream."""

    def __init__(self, line: Line, opening: Callable[[], Awaitable[Response]]) -> None:
        self._line = line
        self._opening = opening
        self._chunks = self._read()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        await self._chunks.aclose()

    async def _read(self) -> AsyncGenerator[Chunk, None]:
        done = False
        events = Events()
        with await self._opening() as response:
            try:
                async for piece in response.chunks():
                    for event in events.feed(piece):
                        done = done or event.data == DONE
                        if not done:
                            yield self._chunk(event)
            except TotalTimedOut as error:
                raise DeadlineExceeded(f"{self._line.url} did not end the stream in time") from error
            except ProviderFailure as error:
                raise StreamCut(str(error), failure=error.failure) from error
        if not done:
            raise StreamCut(f"{self._line.url} ended the stream before it was whole", failure=_CUT)

    def _chunk(self, event: Event) -> Chunk:
        try:
            chunk = msgspec.json.decode(event.data, type=Chunk)
        except UNREADABLE as error:
            raise StreamCut(f"{self._line.url} sent an event that is no JSON", failure=_CUT) from error
        if event.name == b"error" or "error" in chunk:
            raise error_in_stream(event.data, self._line.url)
        return chunk
