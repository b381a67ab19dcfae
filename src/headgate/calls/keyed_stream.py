"""Streams under an idempotency key: written once, read by everybody who asks with the key, stored whole at the end."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self

from headgate.calls.call import RoutedCall
from headgate.calls.streams import CallStream
from headgate.core.answer import Reply, Usage
from headgate.core.errors import StateConflict, StreamCut
from headgate.core.failures import Failure, FailureKind

MOST_KEPT_BYTES: Final = 64 * 1024 * 1024
"""A stream under a key is kept whole, at the upstream's pace and not at its readers': one without an end would fill the memory."""
_END: Final = re.compile(rb"^data: *\[DONE\]", re.MULTILINE)


class Broadcast:
    """A stream while it is being written: all its pieces so far, for any number of readers."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        """Of the request: only the same one may listen."""
        self.stream: CallStream | None = None
        self.pieces: list[bytes] = []
        """Whole lines, up to the end marker. The end comes with the reply, once it is settled which answer counts."""
        self.written: str | None = None
        """The id of the request whose answer it became."""
        self.readers = 0
        self._waiting: set[asyncio.Future[None]] = set()

    async def run(self, stream: CallStream, call: RoutedCall) -> Reply:
        """Write it to its end. What breaks it goes to whoever waits for the reply."""
        if self.pieces:
            # Its first writer ran out of time in the middle; its readers cannot be given another beginning.
            failure = Failure(kind=FailureKind.EXPIRED, code="stream_cut")
            raise StreamCut("the stream under this key was cut off; ask again", failure=failure, attempts=0)
        self.stream = stream
        kept_bytes = 0
        held, end = b"", list[bytes]()
        async with stream:
            async for piece in stream:
                kept_bytes += len(piece)
                if kept_bytes > MOST_KEPT_BYTES:
                    raise _too_long(stream.attempts)
                if end:
                    end.append(piece)
                    continue
                held += piece
                marker = _END.search(held)
                # An error event may have to follow, and must not begin in the middle of a line.
                whole_bytes = marker.start() if marker else held.rfind(b"\n") + 1
                if whole_bytes:
                    self.pieces.append(held[:whole_bytes])
                    held = held[whole_bytes:]
                    self._wake()
                if marker:
                    end.append(held)
                    held = b""
        self.written = call.id
        return Reply(
            request_id=call.id,
            model=call.model,
            upstream=stream.upstream or "",
            body=b"".join([*self.pieces, held, *end]),
            usage=stream.usage or Usage(0, 0, estimated=True),
            attempts=stream.attempts,
            latency_ms=stream.latency_ms,
            queue_ms=stream.queue_ms,
        )

    def next_piece(self) -> asyncio.Future[None]:
        """Done when there is one more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _wake(self) -> None:
        for future in tuple(self._waiting):
            if not future.done():
                future.set_result(None)


class KeyedStream:
    """One reader's view. As long as one of them stays, the call goes on."""

    def __init__(
        self,
        request_id: str,
        reply: Coroutine[Any, Any, Reply],
        live: Broadcast,
        on_close: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self._on_close = on_close
        self._reply = asyncio.get_running_loop().create_task(reply, name="headgate keyed stream")
        self._reply.add_done_callback(_look_at)
        self._live = live
        self._seen = 0
        self._ended = False
        self._told: Reply | None = None

    @property
    def replayed(self) -> bool:
        """False for those who listened while it was written."""
        reply = self._told
        return reply is not None and reply.replayed and reply.request_id != self._live.written

    @property
    def shared(self) -> bool:
        """True in the end for all readers of a call but one, also for those who listened while it was written."""
        return self._told is not None and self._told.replayed

    @property
    def upstream(self) -> str | None:
        if self._told is not None:
            return self._told.upstream
        return None if self._live.stream is None else self._live.stream.upstream

    @property
    def attempts(self) -> int:
        return self._live.stream.attempts if self._live.stream else 0

    @property
    def queue_ms(self) -> float:
        return self._live.stream.queue_ms if self._live.stream else 0.0

    @property
    def upstream_ms(self) -> float:
        return self._live.stream.upstream_ms if self._live.stream else 0.0

    @property
    def usage(self) -> Usage | None:
        return None if self._told is None else self._told.usage

    @property
    def spent(self) -> Usage:
        """What it has cost so far. Told again, it costs nothing."""
        if self._live.stream is None or self.shared:
            return Usage(0, 0, estimated=True)
        return self._live.stream.spent

    async def __aenter__(self) -> Self:
        try:
            await self._news()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await self._news()
        if self._told is None:
            self._seen += 1
            return self._live.pieces[self._seen - 1]
        rest = b"" if self._ended else self._rest(self._told.body)
        self._ended = True
        if not rest:
            raise StopAsyncIteration
        return rest

    async def pump(self, sink: Callable[[bytes], bool], caught_up: Callable[[], Awaitable[object]]) -> None:
        """All pieces to `sink`, to the end, at the reader's pace."""
        async for piece in self:
            if sink(piece):
                await caught_up()

    def _rest(self, recorded: bytes) -> bytes:
        """What is still missing of the recorded answer, which may be another process's."""
        begun = b"".join(self._live.pieces[: self._seen])
        if not recorded.startswith(begun):
            # No upstream is to blame.
            raise StateConflict(
                "another process has recorded another answer under this key; ask again for that one"
            )
        return recorded[len(begun) :]

    async def aclose(self) -> None:
        """Leave. The last to do so stops the call."""
        self._reply.cancel()
        try:
            await asyncio.wait({self._reply})
        finally:
            # Also for a reader who is cancelled just here: one who is counted for ever stays in memory.
            self._on_close()

    async def _news(self) -> None:
        """Until there is a piece to hand out, or the whole reply; raises what ended the call."""
        while self._seen >= len(self._live.pieces):
            if self._reply.done():
                self._told = self._reply.result()
                return
            piece = self._live.next_piece()
            either: set[asyncio.Future[Any]] = {self._reply, piece}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                piece.cancel()


def _look_at(reply: "asyncio.Task[Reply]") -> None:
    """A reader who has left does not hear how it ended, and that is all right."""
    if not reply.cancelled():
        reply.exception()


def _too_long(attempts: int) -> StreamCut:
    failure = Failure(kind=FailureKind.REJECTED, code="stream_too_long")
    most = f"{MOST_KEPT_BYTES // 2**20} MiB"
    message = f"the stream is longer than {most}, the most that is kept under a key; ask without one"
    return StreamCut(message, failure=failure, attempts=attempts)
