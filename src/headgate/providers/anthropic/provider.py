"""Anthropic behind the provider seam: one call, one `POST /v1/messages`. Its format is `headgate.formats.messages`."""

from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote

import msgspec

from headgate.core.answer import Answer
from headgate.core.call import Call, Format
from headgate.core.errors import ProviderFailure
from headgate.core.ports.provider import Sighting
from headgate.core.timeouts import Timeouts
from headgate.formats import chat
from headgate.formats.messages.answers import MessageEvent, MessageReader, WholeMessage, to_answer
from headgate.formats.messages.requests import to_body
from headgate.formats.sse import Events, Opening
from headgate.providers.addresses import endpoint_of, with_headers
from headgate.providers.anthropic.errors import hint_for, read_error
from headgate.providers.anthropic.options import AnthropicOptions
from headgate.providers.exchange import Exchange, KeylessPieces, Secrets, rest_of, stream_limits, whole_limits
from headgate.transport import Transport

VERSION: Final = "2023-06-01"


class _Listed(msgspec.Struct, frozen=True):
    """`/v1/models/{model}`."""

    id: str


class AnthropicProvider:
    """One model at Anthropic, or at a server that speaks its Messages API. Closes nothing: the transport is shared."""

    formats = frozenset({Format.CHAT})
    reads = True

    def __init__(
        self, options: AnthropicOptions, *, model: str, transport: Transport, timeouts: Timeouts
    ) -> None:
        self.model = model
        self._options = options
        self._whole_limits = whole_limits(timeouts)
        self._stream_limits = stream_limits(timeouts)
        self._transport = transport
        self._exchange = self._exchange_at("/v1/messages")

    async def send(self, call: Call) -> Answer:
        body = self._body(call, stream=False)
        async with self._exchange.post(body, self._whole_limits, "application/json") as response:
            message = self._exchange.keys.strike(await response.read())
            return to_answer(call, self._exchange.decode(message, WholeMessage))

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        body = self._body(call, stream=True)
        events, reader, opening, writer = Events(), MessageReader(), Opening(), chat.StreamWriter(call)
        async with self._exchange.post(body, self._stream_limits, "text/event-stream") as response:
            pieces, keyless = response.chunks(), KeylessPieces(self._exchange.keys)
            async for came in pieces:
                piece = keyless.feed(came)
                for event in events.feed(piece):
                    chunk = reader.read(self._event(event.data))
                    if data := writer.write(chunk, reader.usage_details):
                        yield data
                    if reader.ended:
                        yield writer.end()
                        await rest_of(pieces)
                        return
                opening.take(len(piece), begun=reader.begun, pending_bytes=events.pending_bytes)
            raise self._exchange.stream_cut()

    async def probe(self) -> Sighting:
        """Ask for the model by its name, which may be an alias that no list shows."""
        asking = self._exchange_at(f"/v1/models/{quote(self.model, safe='')}", method="GET")
        try:
            await asking.get_models(self._whole_limits, _Listed)
        except ProviderFailure as error:
            if error.failure.status == 404 and error.failure.code is not None:
                return Sighting(has_model=False)
            raise
        return Sighting(has_model=True)

    async def aclose(self) -> None:
        """Nothing to close."""

    def _body(self, call: Call, *, stream: bool) -> dict[str, Any]:
        request = chat.read_request(call)
        return to_body(request, model=self.model, max_tokens=self._options.max_tokens, stream=stream)

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

    def _event(self, data: bytes) -> MessageEvent:
        event = self._exchange.decode(data, MessageEvent)
        if event.type == "error":
            raise self._exchange.error_inside(data) or self._exchange.bad_envelope(
                "an error event without an error"
            )
        return event
