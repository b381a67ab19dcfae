"""Requests that pass through: work and streams whose pieces are the bytes the caller gets.

A provider that speaks OpenAI's format gets the body as it came. For any other, the request is read once, before it
queues, and the answer is written in OpenAI's shape.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol, cast

from headgate.calls.call import Call
from headgate.calls.requests import Requests
from headgate.calls.routes import Route, can_relay
from headgate.calls.streams import AnswerStream
from headgate.calls.translation import (
    from_answer,
    from_chunks,
    from_embeddings,
    to_embedding_request,
    to_request,
)
from headgate.calls.work import Opened, Work, close_stream, in_time, next_chunk, timed_out
from headgate.core.embeddings import EmbeddingRequest
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.messages import Request, Usage
from headgate.core.ports.provider import Provider, WireProvider
from headgate.core.sse import DONE, FirstContent, Tail
from headgate.core.wire import Endpoint, WireAnswer, WireRequest, estimate_wire_usage

ENVELOPE_BYTES: Final = 300
"""About as much of an answer's body is not its text."""
BYTES_PER_TOKEN: Final = 4
AFTER_END_S: Final = 1.0
_REASONED: Final = re.compile(rb'"finish_reason"\s*:\s*"(?!stop"|")')


class Wire(Protocol):
    """How a request reaches a provider, and its answer comes back in OpenAI's shape."""

    def answer(self, provider: Provider) -> Awaitable[WireAnswer]: ...

    def stream(self, provider: Provider) -> AsyncIterator[bytes]: ...


def wire_for(request: WireRequest, route: Route, now: Callable[[], float]) -> Wire:
    """Reads the request where one of its upstreams needs that; raises `InvalidRequest` when it cannot be read."""
    if route.relays:
        return _Passing(request)
    return _Translating(request, now)


class _Passing:
    """The body goes as it came."""

    __slots__ = ("_request",)

    def __init__(self, request: WireRequest) -> None:
        self._request = request

    def answer(self, provider: Provider) -> Awaitable[WireAnswer]:
        # The provider's own coroutine: each one around it would be gone through again at every step.
        return provider.relay(self._request)  # type: ignore[attr-defined,no-any-return]  # A cast would be one call more.

    def stream(self, provider: Provider) -> AsyncIterator[bytes]:
        return cast("WireProvider", provider).relay_stream(self._request)


class _Translating:
    """The request was read; a provider that can take the body as it came still gets it so."""

    __slots__ = ("_asked", "_now", "_passing", "_request")

    def __init__(self, request: WireRequest, now: Callable[[], float]) -> None:
        self._request = request
        self._now = now
        self._passing = _Passing(request)
        self._asked: Request | EmbeddingRequest = (
            to_embedding_request(request) if request.endpoint is Endpoint.EMBEDDINGS else to_request(request)
        )

    async def answer(self, provider: Provider) -> WireAnswer:
        if can_relay(provider):
            return await self._passing.answer(provider)
        if isinstance(self._asked, EmbeddingRequest):
            return await from_embeddings(await provider.embed(self._asked), self._asked)
        answer = await provider.complete(self._asked)
        return from_answer(answer, self._asked, self._request.endpoint, created=self._now())

    def stream(self, provider: Provider) -> AsyncIterator[bytes]:
        if can_relay(provider):
            return self._passing.stream(provider)
        if isinstance(self._asked, EmbeddingRequest):
            raise TypeError("embeddings are not streamed")
        return from_chunks(provider.stream(self._asked), self._asked, self._request, created=self._now())


class Relay:
    """One request, one whole body back."""

    stays_open = False
    __slots__ = ("_first_token_s", "_request", "_wire")

    def __init__(self, request: WireRequest, wire: Wire, first_token_s: float | None) -> None:
        self._request = request
        self._wire = wire
        self._first_token_s = first_token_s

    def call(self, provider: Provider) -> Awaitable[WireAnswer]:
        answer = self._wire.answer(provider)
        return answer if self._first_token_s is None else in_time(answer, self._first_token_s)

    def flaw(self, result: WireAnswer) -> str | None:
        return "the answer is blank" if result.blank else None

    def usage(self, result: WireAnswer) -> Usage:
        if result.usage is not None:
            return result.usage
        text_bytes = max(0, len(result.body) - ENVELOPE_BYTES)
        return estimate_wire_usage(self._request, -(-text_bytes // BYTES_PER_TOKEN))


class OpenRelay:
    """One request, a stream of bytes opened up to its first content: until then everything may be retried."""

    stays_open = True
    __slots__ = ("_first_token_s", "_wire")

    def __init__(self, wire: Wire, first_token_s: float) -> None:
        self._wire = wire
        self._first_token_s = first_token_s

    async def call(self, provider: Provider) -> Opened[bytes]:
        pieces = self._wire.stream(provider)
        try:
            return Opened(pieces, await self._first_content(pieces))
        except BaseException:
            await close_stream(pieces)
            raise

    async def _first_content(self, pieces: AsyncIterator[bytes]) -> list[bytes]:
        """What came until the first content. A stream that ends before it is blank: nothing is kept of it."""
        first = FirstContent()
        seen: list[bytes] = []
        scope = asyncio.timeout(self._first_token_s)
        try:
            async with scope:
                async for piece in pieces:
                    seen.append(piece)
                    if first.feed(piece):
                        return seen
        except TimeoutError:
            if not scope.expired():
                raise
            raise timed_out(f"no content within first_token_s ({self._first_token_s:g} s)") from None
        whole = b"".join(seen)
        if DONE not in whole:
            raise _cut_short()
        # Cut off at its bound, or filtered: it says why there is nothing, and so it is an answer.
        return seen if _REASONED.search(whole) else []

    def flaw(self, result: Opened[bytes]) -> str | None:
        return None if result.waiting else "the stream ended without content"

    def usage(self, result: Opened[bytes]) -> Usage | None:  # noqa: ARG002 - known only when the stream has ended
        return None


class RelayStream(AnswerStream[bytes]):
    """Server-sent events as they come from the upstream, byte by byte. Only the last of them are read."""

    replayed = False
    shared = False

    def __init__(self, requests: Requests, request: WireRequest, call: Call, wire: Wire) -> None:
        super().__init__(requests, request, call)
        self._asked = request
        self._wire = wire
        self._tail = Tail()
        self._has_end = False
        """Whether the end marker was in the last piece; only `_is_whole` knows for sure."""

    def _opening_work(self, first_token_s: float) -> Work[Opened[bytes]]:
        return OpenRelay(self._wire, first_token_s)

    async def _read(self, pieces: AsyncIterator[bytes], patience_s: float) -> bytes:
        try:
            return await self._next_piece(pieces, patience_s)
        except StopAsyncIteration:
            self._check_end()
            raise

    async def _next_piece(self, pieces: AsyncIterator[bytes], patience_s: float) -> bytes:
        """After the end marker an upstream may keep its connection for as long as it likes; we do not wait for that."""
        if not self._has_end:
            return await next_chunk(pieces, patience_s)
        try:
            return await next_chunk(pieces, min(patience_s, AFTER_END_S))
        except ProviderFailure:
            if not self._is_whole():
                raise
            await close_stream(pieces)
            raise StopAsyncIteration from None

    def _check_end(self) -> None:
        """The upstream has said its last: was it the end?"""
        if self._tail.failure is not None:
            # Some servers tell of an error and then end as if all were well.
            raise ProviderFailure(self._tail.failure)
        if not (self._tail.done or self._tail.finished):
            raise _cut_short()
        self._usage = self._tail.usage

    def _handed_out(self, piece: bytes) -> bytes:
        """As it came, but for the end marker that some servers send after an error: that stream has no proper end."""
        self._note(piece)
        if self._has_end and self._tail.failure is not None:
            return piece[: piece.rfind(b"\n", 0, piece.rfind(DONE)) + 1]
        return piece

    def _is_whole(self) -> bool:
        if not self._tail.done or self._tail.failure is not None:
            return False
        self._usage = self._tail.usage
        return True

    def _note(self, piece: bytes) -> None:
        self._tail.feed(piece)
        self._has_end = DONE in piece

    def _estimate(self) -> Usage:
        return estimate_wire_usage(self._asked, self._tail.events)

    def _length(self) -> str:
        return f"{self._tail.events} events"


def _cut_short() -> ProviderFailure:
    # Without the marker's own name: who looks for it in the bytes must not find it in our error.
    message = "the stream ended without its end: neither the end marker nor a finish reason came"
    return ProviderFailure(Failure(kind=FailureKind.TRANSIENT, message=message, code="stream_cut"))
