"""Anthropic behind the provider seam: one call, one `POST /v1/messages`. Translation is next door."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from headgate.core.embeddings import EmbeddingRequest, Embeddings
from headgate.core.messages import Answer, Chunk, Request
from headgate.core.ports.provider import ItemAnswer, no_embeddings
from headgate.core.timeouts import Timeouts
from headgate.providers.addresses import endpoint_of, with_headers
from headgate.providers.anthropic.answers import Whole, to_answer
from headgate.providers.anthropic.errors import hint_for, read_error
from headgate.providers.anthropic.options import AnthropicOptions
from headgate.providers.anthropic.requests import to_body
from headgate.providers.anthropic.streams import Event, EventLines, StreamReader
from headgate.providers.exchange import Exchange, rest_of, stream_limits, whole_limits
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
        own = {"content-type": "application/json", "anthropic-version": VERSION}
        if options.api_key is not None:
            own["x-api-key"] = options.api_key
        endpoint = endpoint_of(
            options.base_url.rstrip("/").removesuffix("/v1"),
            "/v1/messages",
            headers=with_headers(own, options.headers),
            query=options.query,
        )
        self._exchange = Exchange(
            transport, endpoint, read_error=read_error, hint=hint_for(model), secrets=options.secrets
        )

    async def complete(self, request: Request) -> Answer:
        body = to_body(request, model=self.model, max_tokens=self._options.max_tokens, stream=False)
        async with self._exchange.post(body, self._whole_limits, "application/json") as response:
            return to_answer(self._exchange.decode(await response.read(), Whole))

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        body = to_body(request, model=self.model, max_tokens=self._options.max_tokens, stream=True)
        events, reader = EventLines(), StreamReader()
        async with self._exchange.post(body, self._stream_limits, "text/event-stream") as response:
            lines = response.lines()
            async for line in lines:
                data = events.feed(line)
                if data is not None:
                    yield reader.read(self._event(data))
                if reader.ended:
                    await rest_of(lines)
                    return
            raise self._exchange.stream_cut()

    async def complete_many(self, requests: Sequence[Request]) -> Sequence[ItemAnswer]:
        if len(requests) != 1:
            raise refused("requests", f"are {len(requests)}; anthropic takes one per call")
        return [ItemAnswer(request.id, await self.complete(request)) for request in requests]

    async def embed(self, request: EmbeddingRequest) -> Embeddings:  # noqa: ARG002 - the seam's signature
        raise no_embeddings()

    async def aclose(self) -> None:
        """Nothing to close."""

    def _event(self, data: bytes) -> Event:
        event = self._exchange.decode(data, Event)
        if event.type == "error":
            raise self._exchange.error_inside(data) or self._exchange.bad_envelope(
                "an error event without an error"
            )
        return event
