"""The provider for OpenAI's format: sends a call's fields as they are, and passes on the bytes that come back."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from headgate.core.answer import Answer
from headgate.core.call import Call, Format
from headgate.core.errors import ProviderFailure
from headgate.core.ports.provider import Sighting
from headgate.core.timeouts import Timeouts
from headgate.formats import chat, completions, embeddings
from headgate.formats.foreign_bodies import UNREADABLE
from headgate.formats.params import refused
from headgate.formats.reading import NoAnswer
from headgate.providers.exchange import (
    HIDDEN,
    KeylessPieces,
    Secrets,
    error_body,
    read_vectors,
    stream_limits,
    whole_limits,
)
from headgate.providers.openai.errors import ErrorReader
from headgate.providers.openai.options import OpenAIOptions
from headgate.transport import Response, Transport

_EVENT_STREAM: Final = b"text/event-stream"
_NO_LIST: Final = frozenset({404, 405, 501})
_LISTED: Final = frozenset({200, 401, 403})


class OpenAIProvider:
    """One model of one server."""

    formats = frozenset({Format.CHAT, Format.COMPLETIONS, Format.EMBEDDINGS})
    reads = False

    def __init__(
        self, options: OpenAIOptions, *, model: str, transport: Transport, timeouts: Timeouts
    ) -> None:
        self.model = model
        self._options = options
        self._transport = transport
        self._targets = {known: options.target(known) for known in Format}
        self._listing = options.target("models", method="GET")
        self._whole = whole_limits(timeouts)
        self._streamed = stream_limits(timeouts)
        self._secrets = tuple(secret.encode() for secret in options.secrets())
        self._keys = Secrets(options.api_key, named=(options.headers, options.query))
        self._errors = ErrorReader(str(self._targets[Format.CHAT].origin), options.secrets())

    async def send(self, call: Call) -> Answer:
        # Flat on purpose: each function costs time on every call, and each coroutine at each of its steps.
        try:
            asked = _encode({"model": self.model, **call.fields})
        except _UNWRITABLE as error:
            raise _unwritable(error) from None
        response = await self._transport.send(self._targets[call.format], asked, limits=self._whole)
        body = response.whole() if 200 <= response.status < 300 else None
        if body is None:
            with response:
                if not 200 <= response.status < 300:
                    raise await self._refusal(response)
                body = await response.read()
        for key in self._keys.known:
            if key in body:
                body = body.replace(key, HIDDEN)
        try:
            if call.format is Format.CHAT:
                return chat.read_answer(body)
            if call.format is Format.COMPLETIONS:
                return completions.read_answer(body)
            return await read_vectors(len(body), lambda: embeddings.read_answer(body, call))
        except NoAnswer as why:
            raise self._errors.no_answer(body, str(why)) from None

    def stream(self, call: Call) -> "PassedStream":
        return PassedStream(partial(self._open, call), self._keys, self._secrets)

    async def _open(self, call: Call) -> Response:
        try:
            asked = _encode({"model": self.model, **call.fields, "stream": True})
        except _UNWRITABLE as error:
            raise _unwritable(error) from None
        response = await self._transport.send(self._targets[call.format], asked, limits=self._streamed)
        try:
            await self._check_stream(response)
        except BaseException:
            response.close()
            raise
        return response

    async def probe(self) -> Sighting:
        """The models that the server lists, where it does: not all that speak the format have such a list."""
        with await self._transport.send(self._listing, limits=self._whole) as response:
            if response.status in _NO_LIST:
                return await self._without_list(response)
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            models = self._names(await response.read())
        return Sighting(has_model=self.model in models, models=models)

    async def aclose(self) -> None:
        """Nothing to close: the transport is shared."""

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
        """Whether a list of models is at this address, or would be with the right key."""
        listing = options.target("models", method="GET")
        try:
            with await self._transport.send(listing, limits=self._whole) as response:
                if response.status == 200:
                    self._names(await response.read())
                return response.status in _LISTED
        except ProviderFailure:
            return False

    def _names(self, body: bytes) -> tuple[str, ...]:
        """Those in a list of models."""
        try:
            return tuple(model.id for model in _read_models(body).data)
        except UNREADABLE as error:
            raise self._errors.no_answer(body, f"its body is no list of models: {error}") from None

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


class PassedStream:
    """The bytes of a stream as they are, but for what a server may quote of our key: that is not the caller's to see.

    Read piece by piece, or with `pump`, which hands out each piece at the moment it arrives.
    """

    __slots__ = ("_keyless", "_known", "_open", "_response", "_secrets", "_sink")

    def __init__(
        self, open_: Callable[[], Awaitable[Response]], keys: Secrets, secrets: tuple[bytes, ...]
    ) -> None:
        self._open = open_
        self._response: Response | None = None
        self._keyless = KeylessPieces(keys)
        self._known = keys.known
        self._secrets = secrets
        self._sink: Callable[[bytes], bool] = bool

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._response is None:
            self._response = await self._open()
        while (piece := await self._response.piece()) is not None:
            if shown := self._shown(piece):
                return shown
        if rest := self._keyless.end():
            return rest
        raise StopAsyncIteration

    async def pump(self, sink: Callable[[bytes], bool], caught_up: Callable[[], Awaitable[object]]) -> None:
        """All pieces that are yet to come, to `sink`. As `Response.pump`."""
        assert self._response is not None  # noqa: S101 - its first content was read
        self._sink = sink
        try:
            await self._response.pump(self._take, caught_up)
        finally:
            self._response.close()
        if rest := self._keyless.end():
            sink(rest)

    def stop(self) -> None:
        """Its reader has all it wants."""
        if self._response is not None:
            self._response.stop()

    async def aclose(self) -> None:
        if self._response is not None:
            self._response.close()

    def _take(self, piece: bytes) -> bool:
        if self._keyless.held or piece[-1:] != b"\n" or b"error" in piece:
            piece = self._shown(piece)
        else:
            for key in self._known:
                if key in piece:
                    piece = self._shown(piece)
                    break
        return bool(piece) and self._sink(piece)

    def _shown(self, piece: bytes) -> bytes:
        shown = self._keyless.feed(piece)
        if b"error" in shown:
            for secret in self._secrets:
                shown = shown.replace(secret, HIDDEN)
        return shown


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _plain(value: object) -> object:
    """For callers' own kinds of mappings and lists."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _unwritable(error: Exception) -> ProviderFailure:
    return refused("messages or parameters", f"cannot be written as JSON: {error}")


_UNWRITABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)
_encode: Final = msgspec.json.Encoder(enc_hook=_plain).encode
_read_models: Final = msgspec.json.Decoder(_Models).decode
