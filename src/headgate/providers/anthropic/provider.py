"""Anthropic behind the provider seam: one call, one `POST /v1/messages`. Translation is next door."""

from collections.abc import AsyncIterator, Sequence
from typing import Final
from urllib.parse import quote

from headgate.core.embeddings import EmbeddingRequest, Embeddings
from headgate.core.errors import ProviderFailure
from headgate.core.messages import Answer, Chunk, Request
from headgate.core.ports.provider import ItemAnswer, Sighting, no_embeddings
from headgate.core.sse import Events, Opening
from headgate.core.timeouts import Timeouts
from headgate.providers.addresses import endpoint_of, with_headers
from headgate.providers.anthropic.answers import Listed, Whole, to_answer
from headgate.providers.anthropic.errors import hint_for, read_error
from headgate.providers.anthropic.options import AnthropicOptions
from headgate.providers.anthropic.requests import to_body
from headgate.providers.anthropic.streams import Event, StreamReader
from headgate.providers.exchange import Exchange, KeylessPieces, Secrets, rest_of, stream_limits, whole_limits
from headgate.providers.params import refused
from headgate.transport import Transport

VERSION: Final = "2023-06-01"


class AnthropicProvider:
    """One model at Anthropic, or at a server that speaks its Messages API. Closes nothing: the transport is shared."""

    most_inputs: int = 1

    def __init__(
        self, options: AnthropicOptions, *, model: str, transport: Transport, timeouts: Timeouts
    ) -> None:
        self.model = model
        self._options = options
        self._whole_limits = whole_limits(timeouts)
        self._stream_limits = stream_limits(timeouts)
        self._transport = transport
        self._exchange = self._exchange_at("/v1/messages")

    async def complete(self, request: Request) -> Answer:
        body = to_body(request, model=self.model, max_tokens=self._options.max_tokens, stream=False)
        async with self._exchange.post(body, self._whole_limits, "application/json") as response:
            said = self._exchange.keys.strike(await response.read())
            return to_answer(self._exchange.decode(said, Whole))

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        body = to_body(request, model=self.model, max_tokens=self._options.max_tokens, stream=True)
        events, reader, opening = Events(), StreamReader(), Opening()
        async with self._exchange.post(body, self._stream_limits, "text/event-stream") as response:
            pieces, keyless = response.chunks(), KeylessPieces(self._exchange.keys)
            async for came in pieces:
                piece = keyless.feed(came)
                for event in events.feed(piece):
                    yield reader.read(self._event(event.data))
                    if reader.ended:
                        await rest_of(pieces)
                        return
                opening.take(len(piece), begun=reader.begun, pending_bytes=events.pending_bytes)
            raise self._exchange.stream_cut()

    async def complete_many(self, requests: Sequence[Request]) -> Sequence[ItemAnswer]:
        if len(requests) != 1:
            raise refused("requests", f"are {len(requests)}; anthropic takes one per call")
        return [ItemAnswer(request.id, await self.complete(request)) for request in requests]

    async def embed(self, request: EmbeddingRequest) -> Embeddings:  # noqa: ARG002 - the seam's signature
        raise no_embeddings()

    async def probe(self) -> Sighting:
        """Ask for the model by its name, which may be an alias that no list shows."""
        asking = self._exchange_at(f"/v1/models/{quote(self.model, safe='')}", method="GET")
        try:
            await asking.get_models(self._whole_limits, Listed)
        except ProviderFailure as error:
            if error.failure.status == 404 and error.failure.code is not None:
                return Sighting(has_model=False)
            raise
        return Sighting(has_model=True)

    async def aclose(self) -> None:
        """Nothing to close."""

    def _exchange_at(self, path: str, method: str = "POST") -> Exchange:
        options = self._options
        own = {"content-type": "application/json", "anthropic-version": VERSION}
        if options.api_key is not None:
            own["x-api-key"] = options.api_key
        headers = with_headers(own, options.headers)
        base_url = options.base_url.rstrip("/").removesuffix("/v1")
        return Exchange(
            self._transport,
            endpoint_of(base_url, path, headers=headers, query=options.query, method=method),
            read_error=read_error,
            hint=hint_for(self.model),
            secrets=options.secrets,
            keys=Secrets(options.api_key, named=(options.headers, options.query)),
        )

    def _event(self, data: bytes) -> Event:
        event = self._exchange.decode(data, Event)
        if event.type == "error":
            raise self._exchange.error_inside(data) or self._exchange.bad_envelope(
                "an error event without an error"
            )
        return event
