"""The provider for OpenAI's format: sends bodies, checks what comes back, and lets bytes through where it can."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final, cast
from urllib.parse import urlsplit

from headgate.core.embeddings import EmbeddingRequest, Embeddings
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.messages import Answer, Chunk, Request
from headgate.core.ports.provider import ItemAnswer, Sighting
from headgate.core.sse import Opening
from headgate.core.timeouts import Timeouts
from headgate.core.wire import Endpoint, WireAnswer, WireRequest
from headgate.providers.exchange import (
    HIDDEN,
    KeylessPieces,
    Secrets,
    error_body,
    read_vectors,
    stream_limits,
    whole_limits,
)
from headgate.providers.openai.answers import read_answer, read_embeddings, read_models
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
_NO_LIST: Final = frozenset({404, 405, 501})
_LISTED: Final = frozenset({200, 401, 403})


class OpenAIProvider:
    """One model of one server. Both a `Provider` and a `WireProvider`."""

    most_inputs = 1

    def __init__(
        self, options: OpenAIOptions, *, model: str, transport: Transport, timeouts: Timeouts
    ) -> None:
        self.model = model
        self._options = options
        self._transport = transport
        self._targets = {endpoint: options.target(endpoint) for endpoint in Endpoint}
        self._listing = options.target("models", method="GET")
        self._whole = whole_limits(timeouts)
        self._streamed = stream_limits(timeouts)
        self._secrets = tuple(secret.encode() for secret in options.secrets())
        self._keys = Secrets(options.api_key, named=(options.headers, options.query))
        self._errors = ErrorReader(str(self._targets[Endpoint.CHAT].origin), options.secrets())

    async def relay(self, request: WireRequest) -> WireAnswer:
        # Not through `_ask`: each coroutine more is gone through at every step of every call.
        target, asked = self._targets[request.endpoint], wire_body(self.model, request)
        with await self._transport.send(target, asked, limits=self._whole) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            body = await response.read()
        # Not through `strike`: that would be a call for every answer.
        for key in self._keys.known:
            if key in body:
                body = body.replace(key, HIDDEN)
        return read_envelope(request.endpoint, body, self._errors)

    async def relay_stream(self, request: WireRequest) -> AsyncIterator[bytes]:
        with await self._send(request.endpoint, wire_body(self.model, request), self._streamed) as response:
            await self._check_stream(response)
            keyless, known = KeylessPieces(self._keys), self._keys.known
            async with _pieces(response) as pieces:
                async for piece in pieces:
                    # Bytes pass as they are, but a server may quote what we sent: our key is not the caller's to see.
                    suspect = keyless.held or piece[-1:] != b"\n"
                    for key in known:
                        suspect = suspect or key in piece
                    told = keyless.feed(piece) if suspect else piece
                    if told:
                        yield self._strike(told) if b"error" in told else told
            if rest := keyless.end():
                yield rest

    def _strike(self, piece: bytes) -> bytes:
        for secret in self._secrets:
            piece = piece.replace(secret, HIDDEN)
        return piece

    async def complete(self, request: Request) -> Answer:
        return read_answer(await self._ask(Endpoint.CHAT, chat_body(self.model, request)), self._errors)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        reader, opening, keyless = StreamReader(self._errors), Opening(), KeylessPieces(self._keys)
        with await self._send(Endpoint.CHAT, stream_body(self.model, request), self._streamed) as response:
            await self._check_stream(response)
            async with _pieces(response) as pieces:
                async for came in pieces:
                    piece = keyless.feed(came)
                    for chunk in reader.feed(piece):
                        yield chunk
                    if reader.done:
                        break
                    opening.take(len(piece), begun=reader.begun, pending_bytes=reader.pending_bytes)
            if reader.done:
                await _see_off(response)
        for chunk in reader.end():
            yield chunk

    async def complete_many(self, requests: Sequence[Request]) -> Sequence[ItemAnswer]:
        message = f"one call takes one request, not {len(requests)}"
        raise ProviderFailure(Failure(kind=FailureKind.REJECTED, message=message, code="one_at_a_time"))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        body = await self._ask(Endpoint.EMBEDDINGS, embeddings_body(self.model, request))
        return await read_vectors(len(body), lambda: read_embeddings(body, request, self._errors))

    async def probe(self) -> Sighting:
        """The models that the server lists, where it does: not all that speak the format have such a list."""
        with await self._transport.send(self._listing, limits=self._whole) as response:
            if response.status in _NO_LIST:
                return await self._without_list(response)
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            models = read_models(await response.read(), self._errors)
        return Sighting(has_model=self.model in models, models=models)

    async def _without_list(self, response: Response) -> Sighting:
        """Such a server can be called all the same, unless the version path is missing and the list is there."""
        versioned = self._options.with_version()
        if versioned is not None and await self._lists(versioned):
            there = f"its list of models is at {versioned.base_url}/models"
            return Sighting(has_model=False, remark=there, advice=f"set base_url: {versioned.base_url}")
        remark, advice = "it lists no models", ""
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if not kind.endswith("json"):
            remark = f"{response.status} in {kind[:80] or 'no content type'} instead of a list of models"
            advice = "does this server speak OpenAI's format? Check the host, port and path of base_url"
        if versioned is not None and urlsplit(self._options.base_url).path in {"", "/"}:
            advice = f"most servers have a version path: try base_url: {versioned.base_url}"
        return Sighting(has_model=None, remark=remark, advice=advice)

    async def _lists(self, options: OpenAIOptions) -> bool:
        """Whether a list of models is at this address, or would be for who has the right key."""
        try:
            with await self._transport.send(
                options.target("models", method="GET"), limits=self._whole
            ) as found:
                if found.status == 200:
                    read_models(await found.read(), self._errors)
                return found.status in _LISTED
        except ProviderFailure:
            return False

    async def aclose(self) -> None:
        """Nothing to close: the transport belongs to whoever made it."""

    async def _ask(self, endpoint: Endpoint, body: bytes) -> bytes:
        """The body of a whole answer."""
        with await self._send(endpoint, body, self._whole) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            return self._keys.strike(await response.read())

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
