"""Streams that survive the end of their upstream: begun anew at the next one, and joined where the first broke off.

It costs reading every event, so it has to be asked for (`stream_rescue: true`). Where the second upstream tells another
story, which is the rule unless the model is made to repeat itself, the stream is cut as any other.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from headgate.calls.call import RoutedCall
from headgate.calls.dispatcher import Served
from headgate.calls.sending import close_stream
from headgate.calls.setback import from_failure
from headgate.calls.streams import CallStream
from headgate.calls.upstream import Failed
from headgate.core.errors import HeadgateError, ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.formats.splice import NoMatch, Splice
from headgate.formats.sse import MOST_EVENT_BYTES

if TYPE_CHECKING:
    from headgate.calls.requests import Requests

MOST_KEPT_BYTES: Final = 16 * 1024 * 1024
"""A stream that has sent more is not rescued: what was sent must be kept to be compared."""
_RESCUABLE: Final = frozenset({FailureKind.TRANSIENT, FailureKind.THROTTLED})
_ENDS: Final = (b"\n\n", b"\r\n\r\n")


class RescuedStream(CallStream):
    """Hands out whole events only, so that a break never falls into one of them."""

    def __init__(self, requests: "Requests", call: RoutedCall) -> None:
        super().__init__(requests, call)
        self._sent: list[bytes] = []
        self._sent_bytes = 0
        self._begun = b""
        """The part of an event that has come so far."""
        self._splice: Splice | None = None

    def _pushes(self, served: Served) -> bool:  # noqa: ARG002 - each piece is looked at
        return False

    async def _read(self, pieces: AsyncIterator[bytes], patience_s: float) -> bytes:
        while True:
            try:
                piece = await self._next_piece(pieces, patience_s)
            except StopAsyncIteration:
                if rest := self._rest():
                    return rest
                self._check_end()
                raise
            if whole := self._whole(piece):
                return whole

    def _hold(self, served: Served) -> None:
        super()._hold(served)
        whole = self._whole(b"".join(served.opened.waiting))
        served.opened.waiting[:] = [whole] if whole else []

    def _handed_out(self, piece: bytes) -> bytes:
        self._sent_bytes += len(piece)
        if self._sent_bytes <= MOST_KEPT_BYTES:
            self._sent.append(piece)
        return super()._handed_out(piece)

    async def _rescue(self, served: Served, failure: Failure) -> bytes | None:
        if failure.kind not in _RESCUABLE or self._sent_bytes > MOST_KEPT_BYTES:
            return None
        self._begun = b""
        call = self._call
        call.finished[served.upstream.name] = from_failure(
            Failed(failure), upstream=served.upstream.name, attempts=call.attempts, why="its stream broke"
        )
        try:
            self._splice = Splice(self._sent)
            again = await self._requests.dispatcher.run(call)
        except (NoMatch, HeadgateError):
            return None
        return await self._catch_up(again)

    async def _catch_up(self, again: Served) -> bytes | None:
        """The first new piece; None, and the second stream is let go, when there is none to be had."""
        try:
            self._hold(again)
            if again.opened.waiting:
                return again.opened.waiting.pop()
            return await self._read(again.opened.pieces, self._patience_s(again))
        except BaseException as error:
            self._served = None
            await self._let_go(again)
            if isinstance(error, Exception):
                return None
            raise

    async def _let_go(self, again: Served) -> None:
        """It did nothing wrong; it is only of no use."""
        try:
            await close_stream(again.opened.pieces)
        finally:
            again.upstream.free_tokens(again.ticket)
            let_go = Failure(kind=FailureKind.CANCELLED)
            again.upstream.tell_attempt(self._call, again.number, again.ticket.attempt_at, let_go, None)
            again.release()

    def _whole(self, piece: bytes) -> bytes:
        if self._splice is not None:
            return self._splice.feed(piece)
        begun = self._begun + piece
        if len(begun) > MOST_EVENT_BYTES:
            raise ProviderFailure(Failure(kind=FailureKind.TRANSIENT, message="an event without an end"))
        cut = max(begun.rfind(end) + len(end) if end in begun else 0 for end in _ENDS)
        self._begun = begun[cut:]
        return begun[:cut]

    def _rest(self) -> bytes:
        if self._splice is not None:
            return self._splice.end()
        rest, self._begun = self._begun, b""
        return rest
