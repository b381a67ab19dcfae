"""The provider for OpenAI's format: sends bodies, checks what comes back, and lets bytes through where it can."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final, cast

from headgate.core.embeddings import EmbeddingRequest, Embeddings
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.messages import Answer, Chunk, Request
from headgate.core.ports.provider import ItemAnswer
from headgate.core.timeouts import Timeouts
from headgate.core.wire import Endpoint, WireAnswer, WireRequest
from headgate.providers.exchange import error_body, stream_limits, whole_limits
from headgate.providers.openai.answers import read_answer, read_embeddings
from headgate.providers.openai.envelopes import read_envelope
from headgate.providers.openai.errors import ErrorReader
from headgate.providers.openai.options import OpenAIOptions
from headgate.providers.openai.requests import chat_body, embeddings_body, stream_body, wire_body
from headgate.providers.openai.streams import StreamReader
from headgate.transport import Limits, Response, Transport, TransportError

FAREWELL_S: Final = 0.5
"""How long a stream may take to end after `[DONE]`, so that its connection can be used again."""
FAREWELL_BYTES: Final = 64 * 1024
_EVENT_STREAM: Final = b"text/event-stream"


class OpenAIProvider:
    """One model of one server. Both a `Provider` and a `WireProvider`."""

    most_inputs = 1

    def __init__(
        self, options: OpenAIOptions, *, model: str, transport: Transport, timeouts: Timeouts
    ) -> None:
        self.model = model
        self._transport = transport
        self._targets = {endpoint: options.target(endpoint) for endpoint in Endpoint}
        self._whole = whole_limits(timeouts)
        self._streamed = stream_limits(timeouts)
        self._secrets = tuple(secret.encode() for secret in options.secrets())
        self._errors = ErrorReader(str(self._targets[Endpoint.CHAT].origin), options.secrets())

    async def relay(self, request: WireRequest) -> WireAnswer:
        # Not through `_ask`: each coroutine more is gone through at every step of every call.
        with await self._send(request.endpoint, wire_body(self.model, request), self._whole) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            body = await response.read()
        return read_envelope(request.endpoint, body, self._errors)

    async def relay_stream(self, request: WireRequest) -> AsyncIterator[bytes]:
        with await self._send(request.endpoint, wire_body(self.model, request), self._streamed) as response:
            await self._check_stream(response)
            async with _pieces(response) as pieces:
                async for piece in pieces:
                    # Bytes pass as they are, but an error may quote what we sent: our key is not the caller's to see.
                    yield self._strike(piece) if b"error" in piece else piece

    def _strike(self, piece: bytes) -> bytes:
        for secret in self._secrets:
            piece = piece.replace(secret, b"***")
        return piece

    async def complete(self, request: Request) -> Answer:
        return read_answer(await self._ask(Endpoint.CHAT, chat_body(self.model, request)), self._errors)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        reader = StreamReader(self._errors)
        with await self._send(Endpoint.CHAT, stream_body(self.model, request), self._streamed) as response:
            await self._check_stream(response)
            async with _pieces(response) as pieces:
                async for piece in pieces:
                    for chunk in reader.feed(piece):
                        yield chunk
                    if reader.done:
                        break
            if reader.done:
                await _see_off(response)
        for chunk in reader.end():
            yield chunk

    async def complete_many(self, requests: Sequence[Request]) -> Sequence[ItemAnswer]:
        message = f"one call takes one request, not {len(requests)}"
        raise ProviderFailure(Failure(kind=FailureKind.REJECTED, message=message, code="one_at_a_time"))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        body = await self._ask(Endpoint.EMBEDDINGS, embeddings_body(self.model, request))
        return read_embeddings(body, request, self._errors)

    async def aclose(self) -> None:
        """Nothing to close: the transport belongs to whoever made it."""

    async def _ask(self, endpoint: Endpoint, body: bytes) -> bytes:
        """The body of a whole answer."""
        with await self._send(endpoint, body, self._whole) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            return await response.read()

    def _send(self, endpoint: Endpoint, body: bytes, limits: Limits) -> Coroutine[None, None, Response]:
        return self._transport.send(self._targets[endpoint], body, limits=limits)

    async def _check_stream(self, response: Response) -> None:
        if not 200 <= response.status < 300:
            raise await self._refusal(response)
        kind = next((value for name, value in response.raw_headers if name == b"content-type"), b"")
        if not kind.lower().startswith(_EVENT_STREAM):
            what = kind[:80].decode("latin-1") or "something without a content type"
            raise self._errors.no_answer(await error_body(response), f"it sent {what} where a stream was due")

    async def _refusal(self, response: Response) -> ProviderFailure:
        body = await error_body(response)
        return self._errors.from_status(response.status, response.headers, body, now=datetime.now(UTC))


def _pieces(response: Response) -> "aclosing[AsyncGenerator[bytes, None]]":
    """The pieces of the body, and an end to them also for who leaves early."""
    return aclosing(cast("AsyncGenerator[bytes, None]", response.chunks()))


async def _see_off(response: Response) -> None:
    """Read past the end of a stream. What goes wrong here changes nothing: the answer is whole."""
    try:
        async with asyncio.timeout(FAREWELL_S):
            await response.read(FAREWELL_BYTES)
    except (TimeoutError, TransportError):
        pass
