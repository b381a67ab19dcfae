"""An answer as it is being written. Until its first content it could be retried; from then on it is one stream."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from headgate.calls.call import AnyRequest, Call
from headgate.calls.dispatcher import Served, deadline_passed
from headgate.calls.requests import Requests
from headgate.calls.work import Opened, OpenStream, Work, close_stream, next_chunk
from headgate.core.errors import DeadlineExceeded, InvalidRequest, StreamCut
from headgate.core.failures import Failure, FailureKind
from headgate.core.foreign import classify
from headgate.core.messages import Chunk, Request, Usage, estimate_usage
from headgate.machine.clock import TIMER_SLACK_S

Piece = TypeVar("Piece")


class AnswerStream(Generic[Piece]):
    """Pieces of one answer. Leave it through `async with`, or read it to its end: both free its slot.

    Nothing is sent before the first `async with` or the first chunk is asked for. It has one reader at a
    time, and its deadline holds also while nobody reads.
    """

    def __init__(self, requests: Requests, request: AnyRequest, call: Call) -> None:
        self._requests = requests
        self._request = request
        self._call = call
        self._served: Served[Opened[Piece]] | None = None
        self._upstream: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flying = False
        self._opening = False
        self._reading = False
        self._over = False
        self._late: DeadlineExceeded | None = None
        self._usage: Usage | None = None

    # ---- What kind of pieces they are -----------------------------------------------------------------

    def _opening_work(self, first_token_s: float) -> Work[Opened[Piece]]:
        """The call that brings the stream up to its first content."""
        raise NotImplementedError

    async def _read(self, pieces: AsyncIterator[Piece], patience_s: float) -> Piece:
        """The next piece; StopAsyncIteration at a proper end, any other exception when it broke."""
        raise NotImplementedError

    def _note(self, piece: Piece) -> None:
        """A piece is on its way to the reader: keep what the books need."""
        raise NotImplementedError

    def _estimate(self) -> Usage:
        """What it cost, where the provider did not say."""
        raise NotImplementedError

    def _length(self) -> str:
        """How much was handed out, in words."""
        raise NotImplementedError

    # ---- For the reader -------------------------------------------------------------------------------

    @property
    def request_id(self) -> str:
        return self._request.id

    @property
    def upstream(self) -> str | None:
        """Who is answering; None before the first content came."""
        return self._upstream

    @property
    def attempts(self) -> int:
        return self._call.attempts

    @property
    def queue_ms(self) -> float:
        return self._call.queue_s * 1000

    @property
    def upstream_ms(self) -> float:
        """With providers until now, and between attempts."""
        running_s = 0.0
        if self._served is not None and not self._over:
            running_s = self._now() - self._served.ticket.attempt_at
        return (self._call.upstream_s + running_s) * 1000

    @property
    def usage(self) -> Usage | None:
        """What it cost; known when the stream has ended."""
        return self._usage

    @property
    def spent(self) -> Usage:
        """What it has cost so far: nothing before it opened, an estimate until its end."""
        if self._usage is not None:
            return self._usage
        return Usage(0, 0, estimated=True) if self._call.first_token_s is None else self._estimate()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        if self._reading:
            raise InvalidRequest("this stream is being read already; a stream has one reader")
        self._reading = True
        try:
            return await self._next()
        finally:
            self._reading = False

    async def aclose(self) -> None:
        """Stop reading: the provider's call is cancelled and the slot is free. Safe to call again."""
        if self._reading:
            raise InvalidRequest("this stream is being read; cancel its reader instead")
        if self._opening:
            self._over = True  # Whoever opens it ends it.
        elif not self._over:
            await self._leave()

    def __del__(self) -> None:
        # A stream dropped half-read must not keep its slot. Garbage is collected in any thread, so the
        # closing is handed to the loop that reads the stream.
        if self._over or self._served is None or self._loop is None or self._loop.is_closed():
            return
        closing = _abandon(self._requests, self._request, self._call, self._served)
        self._loop.call_soon_threadsafe(self._requests.finish_later, closing)
        self._loop.call_soon_threadsafe(self._requests.land, self._request)

    # ---- Opening and reading ------------------------------------------------------------------------

    async def _open(self) -> Served[Opened[Piece]]:
        if self._over:
            raise self._late or InvalidRequest("this stream is over; ask for a new one")
        if self._served is not None:
            return self._served
        self._requests.take_off(self._request)
        self._flying = self._opening = True
        first_token_s = self._requests.first_token_of_streams_s(self._call.model)
        try:
            served = await self._requests.dispatcher.run(self._call, self._opening_work(first_token_s))
        except asyncio.CancelledError:
            self._end()
            self._requests.cancelled(self._request, self._call)
            raise
        except Exception as error:
            self._end()
            self._requests.failed(self._request, self._call, error)
            raise
        except BaseException:
            self._end()
            raise
        finally:
            self._opening = False
        self._hold(served)
        self._call.first_token_s = self._now() - self._call.started_at
        if self._closed_meanwhile():
            self._end()
            await self._abandon()
            raise InvalidRequest("this stream was closed while it opened")
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_at(self._call.deadline, _on_deadline, weakref.ref(self))
        return served

    def _hold(self, served: Served[Opened[Piece]]) -> None:
        self._served = served
        self._upstream = served.upstream.name
        served.ticket.streaming = True

    def _closed_meanwhile(self) -> bool:
        return self._over

    async def _next(self) -> Piece:
        if self._late is not None:
            raise self._late
        if self._over:
            raise StopAsyncIteration
        served = await self._open()
        if served.result.waiting:
            return self._handed_out(served.result.waiting.pop(0))
        try:
            return self._handed_out(await self._read(served.result.chunks, self._patience_s(served)))
        except StopAsyncIteration:
            self._finished(served)
            raise
        except asyncio.CancelledError:
            await self._leave()
            raise
        except Exception as error:
            if self._now() + TIMER_SLACK_S >= self._call.deadline:
                raise await self._expired() from error
            return await self._go_on(served, error)

    async def _go_on(self, served: Served[Opened[Piece]], error: Exception) -> Piece:
        """The stream broke: go on elsewhere where that can be, else tell the reader."""
        failure = classify(error, now=self._requests.dispatcher.clock.utc())
        try:
            await self._break_off(served, failure)
            piece = await self._rescue(served, failure)
        except BaseException:
            self._end()
            self._requests.cancelled(self._request, self._call)
            raise
        if piece is None:
            raise self._cut(served, failure) from error
        return self._handed_out(piece)

    async def _rescue(self, served: Served[Opened[Piece]], failure: Failure) -> Piece | None:  # noqa: ARG002 - overridden
        """The next piece from somewhere else; None when there is no such thing."""
        return None

    def _patience_s(self, served: Served[Opened[Piece]]) -> float:
        return min(served.upstream.timeouts.idle_s, max(0.0, self._call.deadline - self._now()))

    def _handed_out(self, piece: Piece) -> Piece:
        self._note(piece)
        return piece

    # ---- Ends ---------------------------------------------------------------------------------------

    def _finished(self, served: Served[Opened[Piece]]) -> None:
        self._end()
        served.upstream.settle(served.ticket, self._usage)
        served.upstream.ended(served.ticket, self._call, served.number, None, self._usage)
        served.release()
        self._usage = self._usage or self._estimate()
        self._requests.ended(
            self._request,
            self._call,
            upstream=served.upstream.name,
            usage=self._usage,
            cost_usd=served.upstream.cost(self._usage),
        )

    async def _break_off(self, served: Served[Opened[Piece]], failure: Failure) -> None:
        """Close the broken call and settle its books; it is nobody's any more."""
        self._served = None
        try:
            await close_stream(served.result.chunks)
        finally:
            served.upstream.free_tokens(served.ticket)
            served.upstream.ended(served.ticket, self._call, served.number, failure, self._usage, begun=True)
            served.release()

    def _cut(self, served: Served[Opened[Piece]], failure: Failure) -> StreamCut:
        """It broke after content was handed out: nothing can be retried, everything is noted."""
        self._end()
        what = f"{served.upstream.name}: the stream broke after {self._length()}"
        cut = StreamCut(
            f"{what}: {failure.message or failure.error}", failure=failure, attempts=self._call.attempts
        )
        cut.public = f"{what}: {failure.error}"
        cut.upstream = served.upstream.name
        self._requests.failed(self._request, self._call, cut)
        return cut

    async def _expired(self) -> DeadlineExceeded:
        """The caller's time is up in mid-stream, which speaks neither for nor against the upstream."""
        self._end()
        self._late = deadline_passed(self._call, self._now())
        await self._abandon(self._late)
        return self._late

    async def _leave(self) -> None:
        """The reader has had enough: of the whole answer, or of what there was so far."""
        self._end()
        served = self._served
        if served is None or not self._is_whole():
            await self._abandon()
            return
        try:
            await close_stream(served.result.chunks)
        finally:
            self._finished(served)

    def _is_whole(self) -> bool:
        """Whether the reader has had all of it, although the provider's end has not come yet."""
        return False

    async def _abandon(self, late: DeadlineExceeded | None = None) -> None:
        await _abandon(self._requests, self._request, self._call, self._served, late)

    def _end(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._flying:
            self._flying = False
            self._requests.land(self._request)

    def on_deadline(self) -> None:
        """Nobody reads, and the time is up: the slot goes back, the reader hears of it when it returns."""
        if not (self._over or self._reading):
            self._end()
            self._late = deadline_passed(self._call, self._now())
            self._requests.finish_later(self._abandon(self._late))

    def _now(self) -> float:
        return self._requests.dispatcher.clock.now()


def _on_deadline(stream: "weakref.ref[AnswerStream[Any]]") -> None:
    """A timer that keeps no stream alive."""
    if (living := stream()) is not None:
        living.on_deadline()


async def _abandon(
    requests: Requests,
    request: AnyRequest,
    call: Call,
    served: Served[Opened[Piece]] | None,
    late: DeadlineExceeded | None = None,
) -> None:
    """The reader left or its time is up: stop the provider and free what was held."""
    if served is None:
        return
    try:
        await close_stream(served.result.chunks)
    finally:
        ticket, upstream = served.ticket, served.upstream
        kind = FailureKind.CANCELLED if late is None else FailureKind.EXPIRED
        upstream.free_tokens(ticket)
        upstream.tell_attempt(call, served.number, ticket.attempt_at, Failure(kind=kind), None)
        served.release()
        if late is None:
            requests.cancelled(request, call)
        else:
            requests.failed(request, call, late)


class ReplyStream(AnswerStream[Chunk]):
    """A reply for callers of the library: text, tool calls and usage, chunk by chunk."""

    def __init__(self, requests: Requests, request: Request, call: Call) -> None:
        super().__init__(requests, request, call)
        self._asked = request
        self._chars = 0

    def _opening_work(self, first_token_s: float) -> Work[Opened[Chunk]]:
        return OpenStream(self._asked, first_token_s)

    async def _read(self, pieces: AsyncIterator[Chunk], patience_s: float) -> Chunk:
        return await next_chunk(pieces, patience_s)

    def _note(self, piece: Chunk) -> None:
        self._chars += len(piece.text)
        if piece.usage is not None:
            self._usage = piece.usage

    def _estimate(self) -> Usage:
        return estimate_usage(self._asked, " " * self._chars)

    def _length(self) -> str:
        return f"{self._chars} characters"
