"""An answer as it is being written. Until its first content it could be retried; from then on it is one stream."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, Self, cast

from headgate.calls.call import RoutedCall
from headgate.calls.deadlines import alarm_at
from headgate.calls.dispatcher import Served, deadline_passed
from headgate.calls.sending import Pushing, close_stream, next_piece
from headgate.core.answer import Usage
from headgate.core.call import input_tokens
from headgate.core.errors import DeadlineExceeded, InvalidRequest, ProviderFailure, StreamCut
from headgate.core.failures import Failure, FailureKind
from headgate.core.foreign import classify
from headgate.formats.sse import DONE, Tail
from headgate.machine.clock import TIMER_SLACK_S

if TYPE_CHECKING:
    from headgate.calls.requests import Requests

AFTER_END_S: Final = 1.0
"""After the end marker an upstream may keep its connection for as long as it likes; we wait no longer than this."""

SHORT_BYTES: Final = 16


class CallStream:
    """Server-sent events as they come from the upstream, byte by byte. Only the last of them are read.

    Leave it through `async with`, or read it to its end: both free its slot. Nothing is sent before the first
    `async with` or the first piece is asked for. It has one reader at a time, and its deadline holds also while it
    is not being read.
    """

    replayed = False
    shared = False

    def __init__(self, requests: "Requests", call: RoutedCall) -> None:
        self._requests = requests
        self._call = call
        self._served: Served | None = None
        self._upstream: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._after_end: asyncio.TimerHandle | None = None
        self._flying = False
        self._opening = False
        self._reading = False
        self._over = False
        self._late: DeadlineExceeded | None = None
        self._usage: Usage | None = None
        self._tail = Tail()
        self._has_end = False
        """Whether the end marker may have come; the tail knows for sure."""

    # ---- For the reader -------------------------------------------------------------------------------

    @property
    def request_id(self) -> str:
        return self._call.id

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
    def latency_ms(self) -> float:
        """From the beginning of the call until now."""
        return (self._now() - self._call.started_at) * 1000

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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._reading:
            raise InvalidRequest("this stream is being read already; a stream has one reader")
        self._reading = True
        try:
            return await self._next()
        finally:
            self._reading = False

    async def pump(self, sink: Callable[[bytes], bool], caught_up: Callable[[], Awaitable[object]]) -> None:
        """All pieces to `sink`, to the end. One that returns True is behind: the next goes after `caught_up`.

        A provider's stream that can push passes its pieces on as they arrive: no task is woken for them.
        """
        served = await self._open()
        while served.opened.waiting:
            if sink(self._handed_out(served.opened.waiting.pop(0))):
                await caught_up()
                if self._over:
                    raise self._late or InvalidRequest("this stream was closed while it was read")
        if self._pushes(served):
            await self._push(served, sink, caught_up)
            return
        async for piece in self:
            if sink(piece):
                await caught_up()

    def _pushes(self, served: Served) -> bool:
        return hasattr(served.opened.pieces, "pump")

    async def _push(
        self, served: Served, sink: Callable[[bytes], bool], caught_up: Callable[[], Awaitable[object]]
    ) -> None:
        pieces = cast("Pushing", served.opened.pieces)
        take = partial(self._take, sink, pieces)
        alarm = alarm_at(self._call.deadline)
        self._reading = True
        try:
            if self._has_end:
                self._stop_soon(pieces)
            await pieces.pump(take, caught_up)
            self._check_end()
        except asyncio.CancelledError as stop:
            self._reading = False
            if alarm.missed():
                raise await self._expired() from stop
            await self._leave()
            raise
        except Exception as error:
            self._reading = False
            if self._now() + TIMER_SLACK_S >= self._call.deadline:
                raise await self._expired() from error
            await self._go_on(served, error)
        else:
            self._finished(served)
        finally:
            self._reading = False
            alarm.off()
            if self._after_end is not None:
                self._after_end.cancel()

    def _take(self, sink: Callable[[bytes], bool], pieces: Pushing, piece: bytes) -> bool:
        self._tail.feed(piece)
        # A short piece may be the rest of the marker.
        if DONE in piece or len(piece) <= SHORT_BYTES:
            self._stop_soon(pieces)
            if DONE in piece:
                piece = self._without_false_end(piece)
        return sink(piece)

    def _stop_soon(self, pieces: Pushing) -> None:
        """The end marker may have come: an upstream that stays on is not waited for."""
        if self._after_end is None and self._loop is not None:
            self._after_end = self._loop.call_later(AFTER_END_S, self._stop, pieces)

    def _stop(self, pieces: Pushing) -> None:
        self._after_end = None
        if self._tail.done:
            pieces.stop()

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
        closing = _abandon(self._requests, self._call, self._served)
        self._loop.call_soon_threadsafe(self._requests.finish_later, closing)
        self._loop.call_soon_threadsafe(self._requests.land, self._call)

    # ---- Opening and reading ------------------------------------------------------------------------

    async def _open(self) -> Served:
        if self._over:
            raise self._late or InvalidRequest("this stream is over; ask for a new one")
        if self._served is not None:
            return self._served
        self._requests.take_off(self._call)
        self._flying = self._opening = True
        try:
            served = await self._requests.dispatcher.run(self._call)
        except asyncio.CancelledError:
            self._end()
            self._requests.cancelled(self._call)
            raise
        except Exception as error:
            self._end()
            self._requests.failed(self._call, error)
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

    def _hold(self, served: Served) -> None:
        self._served = served
        self._upstream = served.upstream.name
        served.ticket.streaming = True

    def _closed_meanwhile(self) -> bool:
        return self._over

    async def _next(self) -> bytes:
        if self._late is not None:
            raise self._late
        if self._over:
            raise StopAsyncIteration
        served = await self._open()
        opened = served.opened
        if opened.waiting:
            return self._handed_out(opened.waiting.pop(0))
        try:
            return self._handed_out(await self._read(opened.pieces, self._patience_s(served)))
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

    async def _go_on(self, served: Served, error: Exception) -> bytes:
        """The stream broke: go on elsewhere where that can be, else tell the reader."""
        failure = classify(error, now=self._requests.dispatcher.clock.utc())
        try:
            await self._break_off(served, failure)
            piece = await self._rescue(served, failure)
        except BaseException:
            self._end()
            self._requests.cancelled(self._call)
            raise
        if piece is None:
            raise self._cut(served, failure) from error
        return self._handed_out(piece)

    async def _rescue(self, served: Served, failure: Failure) -> bytes | None:  # noqa: ARG002 - overridden
        """The next piece from somewhere else; None when there is no such thing."""
        return None

    def _patience_s(self, served: Served) -> float:
        return min(served.upstream.timeouts.idle_s, max(0.0, self._call.deadline - self._now()))

    async def _read(self, pieces: AsyncIterator[bytes], patience_s: float) -> bytes:
        """The next piece; StopAsyncIteration at a proper end, any other exception when it broke."""
        try:
            return await self._next_piece(pieces, patience_s)
        except StopAsyncIteration:
            self._check_end()
            raise

    async def _next_piece(self, pieces: AsyncIterator[bytes], patience_s: float) -> bytes:
        if not (self._has_end and self._tail.done):
            self._has_end = False  # A text may speak of the marker.
            return await next_piece(pieces, patience_s)
        try:
            return await next_piece(pieces, min(patience_s, AFTER_END_S))
        except ProviderFailure:
            await close_stream(pieces)
            raise StopAsyncIteration from None

    def _check_end(self) -> None:
        """The upstream has sent its last piece: was it the end?"""
        self._tail.check_end()
        self._usage = self._tail.usage

    def _handed_out(self, piece: bytes) -> bytes:
        """As it came, but for the end marker that some servers send after an error: that stream has no proper end."""
        self._tail.feed(piece)
        has_end = DONE in piece
        # A short piece may be the rest of the marker.
        self._has_end = self._has_end or has_end or len(piece) <= SHORT_BYTES
        return self._without_false_end(piece) if has_end else piece

    def _without_false_end(self, piece: bytes) -> bytes:
        if self._tail.failure is None:
            return piece
        return piece[: piece.rfind(b"\n", 0, piece.rfind(DONE)) + 1]

    # ---- Ends ---------------------------------------------------------------------------------------

    def _finished(self, served: Served) -> None:
        self._end()
        served.upstream.settle(served.ticket, self._usage)
        served.upstream.ended(served.ticket, self._call, served.number, None, self._usage)
        served.release()
        self._usage = self._usage or self._estimate()
        self._requests.ended(
            self._call,
            upstream=served.upstream.name,
            usage=self._usage,
            cost_usd=served.upstream.cost(self._usage),
        )

    async def _break_off(self, served: Served, failure: Failure) -> None:
        """Close the broken call and settle its books; it is nobody's any more."""
        self._served = None
        try:
            await close_stream(served.opened.pieces)
        finally:
            served.upstream.free_tokens(served.ticket)
            served.upstream.ended(served.ticket, self._call, served.number, failure, self._usage, begun=True)
            served.release()

    async def cut(self, error: Exception) -> NoReturn:
        """Its reader found an error in it: no use waiting for its end."""
        served = self._served
        if served is None or self._over:
            raise error
        failure = classify(error, now=self._requests.dispatcher.clock.utc())
        await self._break_off(served, failure)
        raise self._cut(served, failure) from error

    def _cut(self, served: Served, failure: Failure) -> StreamCut:
        """It broke after content was handed out: nothing can be retried, everything is noted."""
        self._end()
        what = f"{served.upstream.name}: the stream broke after {self._tail.events} events"
        cut = StreamCut(
            f"{what}: {failure.message or failure.error}", failure=failure, attempts=self._call.attempts
        )
        cut.public = f"{what}: {failure.error}"
        cut.upstream = served.upstream.name
        self._requests.failed(self._call, cut)
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
            await close_stream(served.opened.pieces)
        finally:
            self._finished(served)

    def _is_whole(self) -> bool:
        """Whether the reader has had all of it, although the provider's end has not come yet."""
        if not self._tail.done or self._tail.failure is not None:
            return False
        self._usage = self._tail.usage
        return True

    def _estimate(self) -> Usage:
        """What it cost, where the provider did not say: about a token an event."""
        return Usage(input_tokens(self._call), self._tail.events, estimated=True)

    async def _abandon(self, late: DeadlineExceeded | None = None) -> None:
        await _abandon(self._requests, self._call, self._served, late)

    def _end(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._flying:
            self._flying = False
            self._requests.land(self._call)

    def on_deadline(self) -> None:
        """Nobody reads, and the time is up: the slot goes back, the reader hears of it when it returns."""
        if not (self._over or self._reading):
            self._end()
            self._late = deadline_passed(self._call, self._now())
            self._requests.finish_later(self._abandon(self._late))

    def _now(self) -> float:
        return self._requests.dispatcher.clock.now()


def _on_deadline(stream: "weakref.ref[CallStream]") -> None:
    """A timer that keeps no stream alive."""
    if (living := stream()) is not None:
        living.on_deadline()


async def _abandon(
    requests: "Requests",
    call: RoutedCall,
    served: Served | None,
    late: DeadlineExceeded | None = None,
) -> None:
    """The reader left or its time is up: stop the provider and free what was held."""
    if served is None:
        return
    try:
        await close_stream(served.opened.pieces)
    finally:
        ticket, upstream = served.ticket, served.upstream
        kind = FailureKind.CANCELLED if late is None else FailureKind.EXPIRED
        upstream.free_tokens(ticket)
        upstream.tell_attempt(call, served.number, ticket.attempt_at, Failure(kind=kind), None)
        served.release()
        if late is None:
            requests.cancelled(call)
        else:
            requests.failed(call, late)
