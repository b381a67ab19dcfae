"""The provider for AWS Bedrock: finds the keys, signs and sends. What is sent and read is next door."""

import asyncio
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.core.answer import Answer, Usage
from headgate.core.call import Call, Format
from headgate.core.errors import ProviderFailure
from headgate.core.ports.provider import Sighting, no_embeddings
from headgate.core.timeouts import Timeouts
from headgate.formats import chat, embeddings
from headgate.formats.converse.answers import EventReader, read_answer
from headgate.formats.converse.failures import bad_envelope
from headgate.formats.converse.requests import encoded, to_body
from headgate.formats.sse import Opening
from headgate.providers.bedrock.embeddings import embedding_body, embedding_format, read_embeddings
from headgate.providers.bedrock.errors import STALE_KEY_CODES, check_event, error_answer
from headgate.providers.bedrock.keyring import KeyRing
from headgate.providers.bedrock.options import BedrockOptions
from headgate.providers.bedrock.probing import NO_LIST, listing, sighting
from headgate.providers.exchange import (
    Secrets,
    error_body,
    read_vectors,
    rest_of,
    stream_limits,
    whole_limits,
)
from headgate.transport import Endpoint, Limits, Response, Transport

if TYPE_CHECKING:
    from headgate.providers.bedrock.aws import Frame, Keys, Signed

# Hashing a mebibyte takes a millisecond or more; bodies with images are far larger.
_LARGE_BODY_BYTES: Final = 1024 * 1024
_SIGNING: Final = ThreadPoolExecutor(2, thread_name_prefix="headgate-signing")
"""Shared by all upstreams, and by nothing else: no other work keeps a call waiting for its signature."""
_JSON: Final = "application/json"
_EVENT_STREAM: Final = "application/vnd.amazon.eventstream"


class BedrockProvider:
    """One model (an id, or the ARN of an inference profile) in one region, with one set of credentials."""

    formats = frozenset({Format.CHAT, Format.EMBEDDINGS})
    reads = True

    def __init__(
        self, options: BedrockOptions, *, model: str, transport: Transport, timeouts: Timeouts
    ) -> None:
        self.model = model
        self._options = options
        self._transport = transport
        self._ring = KeyRing(options)
        self._embedding_format = embedding_format(model)
        place = f"{options.url.rstrip('/')}/model/{urllib.parse.quote(model, safe='-._~')}"
        self._converse = Endpoint(f"{place}/converse")
        self._converse_stream = Endpoint(f"{place}/converse-stream")
        self._invoke = Endpoint(f"{place}/invoke")
        self._host = str(self._converse.origin)
        self._whole_limits = whole_limits(timeouts)
        self._stream_limits = stream_limits(timeouts)

    async def send(self, call: Call) -> Answer:
        if call.format is Format.EMBEDDINGS:
            return await self._embed(call)
        body, _ = await self._whole_answer(self._converse, self._body(call))
        return read_answer(call, body, self._host)

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        reader, writer, opening = EventReader(self._host), chat.StreamWriter(call), Opening()
        response, secrets = await self._ask(
            self._converse_stream, self._body(call), self._stream_limits, accept=_EVENT_STREAM
        )
        with response:
            from headgate.providers.bedrock.aws import Frames  # noqa: PLC0415 - loaded by `_ask`, in a thread

            frames = Frames(self._host)
            pieces = response.chunks()
            async for data in pieces:
                for came in frames.feed(data):
                    frame = _keyless(came, secrets)
                    check_event(frame.headers, frame.payload, self._host)
                    chunk = reader.read(frame.headers.get(":event-type"), frame.payload)
                    if chunk is not None and (event := writer.write(chunk, reader.usage_details)):
                        yield event
                if reader.ended:
                    # Before the end marker, at which some callers leave: the connection would be lost to the next call.
                    await rest_of(pieces)
                    break
                opening.take(len(data), begun=reader.begun)
            reader.end()
        yield writer.end()

    def _body(self, call: Call) -> bytes:
        return encoded(to_body(chat.read_request(call), self._options.additional_fields))

    async def _embed(self, call: Call) -> Answer:
        """As many calls, one after the other, as the model's format needs: Titan takes one text at a time."""
        form = self._embedding_format
        if form is None:
            raise no_embeddings()
        request = embeddings.read_request(call)
        vectors: list[msgspec.Raw] = []
        tokens: list[int | None] = []
        for start in range(0, len(request.texts), form.texts_per_call):
            texts = request.texts[start : start + form.texts_per_call]
            body = embedding_body(form, self.model, texts, request.params)
            answer, headers = await self._whole_answer(self._invoke, body)
            reading = partial(read_embeddings, form, answer, headers, host=self._host, count=len(texts))
            more, counted = await read_vectors(len(answer), reading)
            vectors += more
            tokens.append(counted)
        known = [count for count in tokens if count is not None]
        usage = Usage(sum(known), 0) if len(known) == len(tokens) else None
        return embeddings.write_answer(call, vectors, usage)

    async def probe(self) -> Sighting:
        """Find the credentials, and ask for the list of models, which is free."""
        endpoint = listing(self._options)
        try:
            body, _ = await self._whole_answer(endpoint, b"")
        except ProviderFailure as error:
            remark = NO_LIST.get(error.failure.code or "")
            if remark is None:
                raise
            return Sighting(has_model=None, remark=remark)
        return sighting(body, self.model, str(endpoint.origin))

    async def aclose(self) -> None:
        """The transport is its owner's to close."""
        await self._ring.aclose()

    async def _whole_answer(self, endpoint: Endpoint, body: bytes) -> tuple[bytes, Mapping[str, str]]:
        response, secrets = await self._ask(endpoint, body, self._whole_limits, accept=_JSON)
        with response:
            return secrets.strike(await response.read()), response.headers

    async def _ask(
        self, endpoint: Endpoint, body: bytes, limits: Limits, *, accept: str
    ) -> tuple[Response, Secrets]:
        """Sign and send; what comes back is a 200 of the right type, not read yet, and what must not be told of it."""
        keys = await self._ring.keys()
        signed = await self._sign(endpoint, body, keys, accept)
        response = await self._transport.send(endpoint, body, headers=signed.headers, limits=limits)
        if response.status == 200:
            secrets = Secrets(*signed.secrets, named=(self._options.headers,))
            return self._checked(response, accept), secrets
        with response:
            failed = await self._error(response, signed)
        if failed.failure.code in STALE_KEY_CODES:
            self._ring.drop(keys)
        raise failed

    async def _sign(self, endpoint: Endpoint, body: bytes, keys: "Keys", accept: str) -> "Signed":
        from headgate.providers.bedrock.aws import sign  # noqa: PLC0415 - loaded by the key ring, in a thread

        headers = {"Content-Type": _JSON, "Accept": accept, **self._options.headers}
        arguments = (endpoint, body, headers, keys, self._options.region)
        if len(body) < _LARGE_BODY_BYTES:
            return sign(*arguments, now=datetime.now(UTC))
        signing = partial(sign, *arguments, now=datetime.now(UTC))
        return await asyncio.get_running_loop().run_in_executor(_SIGNING, signing)

    def _checked(self, response: Response, expected: str) -> Response:
        given = response.headers.get("content-type", "")
        if given.partition(";")[0].strip().lower() == expected:
            return response
        response.close()
        raise bad_envelope(self._host, f"with {given[:80]!r} in place of {expected}; check base_url")

    async def _error(self, response: Response, signed: "Signed") -> ProviderFailure:
        body = await error_body(response)
        secrets = (*signed.secrets, *self._options.headers.values())
        headers = response.headers
        return error_answer(response.status, headers, body, host=self._host, secrets=secrets)


def _keyless(frame: "Frame", secrets: Secrets) -> "Frame":
    headers = {
        name: secrets.strike(value.encode()).decode() if isinstance(value, str) else value
        for name, value in frame.headers.items()
    }
    return msgspec.structs.replace(frame, headers=headers, payload=secrets.strike(frame.payload))
