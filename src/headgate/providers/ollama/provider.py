"""Ollama behind the provider seam: `/api/chat` for answers, `/api/embed` for vectors.

Answers are always streamed inside, whole ones too: a model that is slow shows signs of life, one that hangs does not,
and a call that is left stops computing at once.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from headgate.core.answer import Answer, Chunk
from headgate.core.call import Call, Format
from headgate.core.ports.provider import Sighting
from headgate.core.timeouts import Timeouts
from headgate.formats import chat, embeddings
from headgate.formats.ollama.answers import Line, LineReader, Tags, Vectors, to_answer, to_embeddings
from headgate.formats.ollama.requests import to_chat_body, to_embed_body
from headgate.formats.sse import Opening
from headgate.providers.addresses import endpoint_of, with_headers
from headgate.providers.exchange import (
    Exchange,
    Secrets,
    read_vectors,
    rest_of,
    stream_limits,
    whole_limits,
)
from headgate.providers.ollama.errors import hint_for, read_error
from headgate.providers.ollama.options import OllamaOptions
from headgate.transport import Limits, Transport

_NDJSON: Final = ("application/x-ndjson", "application/json")


class OllamaProvider:
    """One model of an Ollama server. Closes nothing: the transport is shared."""

    formats = frozenset({Format.CHAT, Format.EMBEDDINGS})
    reads = True

    def __init__(
        self, options: OllamaOptions, *, model: str, transport: Transport, timeouts: Timeouts
    ) -> None:
        self.model = model
        self._options = options
        self._transport = transport
        self._stream_limits = stream_limits(timeouts)
        self._whole_limits = whole_limits(timeouts)
        # Nothing bounds the first line of a whole answer: loading a model takes minutes, and the deadline holds.
        self._gathered_limits = Limits(connect_s=timeouts.connect_s, idle_s=timeouts.idle_s)
        self._chat = self._exchange(transport, "/api/chat")
        self._embed = self._exchange(transport, "/api/embed")

    async def send(self, call: Call) -> Answer:
        if call.format is Format.EMBEDDINGS:
            return await self._vectors(call)
        chunks = self._chunks(call, whole=True)
        # Lines that say nothing are not kept: there is no bound to them.
        said = [
            chunk async for chunk in chunks if chunk.has_content or chunk.reasoning or chunk.finish_reason
        ]
        return to_answer(said, call)

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        writer = chat.StreamWriter(call)
        async with aclosing(self._chunks(call, whole=False)) as chunks:
            async for chunk in chunks:
                if data := writer.write(chunk):
                    yield data
        yield writer.end()

    async def probe(self) -> Sighting:
        """The models that were pulled. `gemma3` means `gemma3:latest`."""
        listing = self._exchange(self._transport, "/api/tags", method="GET")
        tags = await listing.get_models(self._whole_limits, Tags)
        pulled = tuple(tag.name for tag in tags.models or ())
        wanted = self.model if ":" in self.model else f"{self.model}:latest"
        return Sighting(has_model=wanted in pulled, models=pulled, remark=f"ollama pull {self.model}")

    async def aclose(self) -> None:
        """Nothing to close."""

    async def _chunks(self, call: Call, *, whole: bool) -> AsyncGenerator[Chunk, None]:
        """Ends after the line that says `done`; raises when it does not come."""
        options = self._options
        body = to_chat_body(
            chat.read_request(call), model=self.model, options=options.options, keep_alive=options.keep_alive
        )
        reader, opening = LineReader(call.id), Opening()
        async with self._chat.post(body, self._limits(body, whole=whole), *_NDJSON) as response:
            lines = response.lines()
            async for line in lines:
                if line.strip():
                    yield reader.read(self._line(self._chat.keys.strike(line)))
                if reader.ended:
                    await rest_of(lines)
                    return
                opening.take(len(line) + 1, begun=reader.begun)
            raise self._chat.stream_cut()

    async def _vectors(self, call: Call) -> Answer:
        options, request = self._options, embeddings.read_request(call)
        body = to_embed_body(
            request, model=self.model, options=options.options, keep_alive=options.keep_alive
        )
        async with self._embed.post(body, self._whole_limits, "application/json") as response:
            data = await response.read()
        return await read_vectors(len(data), lambda: self._embeddings(data, len(request.texts), call))

    def _embeddings(self, data: bytes, count: int, call: Call) -> Answer:
        said = self._embed.decode(data, Vectors)
        if len(said.embeddings) != count:
            raise self._embed.bad_envelope(f"{len(said.embeddings)} vectors for {count} texts")
        # Read only to check them: they are passed on as they were written, and an empty one is a flaw.
        vectors = [vector if self._embed.decode(vector, list[float]) else () for vector in said.embeddings]
        return to_embeddings(vectors, said.prompt_eval_count, call)

    def _limits(self, body: Mapping[str, Any], *, whole: bool) -> Limits:
        if not whole:
            return self._stream_limits
        # A tool call is sent when its last word is there; writing a long one is silence, not a hang.
        return self._whole_limits if "tools" in body else self._gathered_limits

    def _line(self, data: bytes) -> Line:
        line = self._chat.decode(data, Line)
        if line.error is not None:
            raise self._chat.error_inside(data) or self._chat.bad_envelope("an error without words")
        return line

    def _exchange(self, transport: Transport, path: str, method: str = "POST") -> Exchange:
        options = self._options
        headers = with_headers({"content-type": "application/json"}, options.headers)
        base_url = options.base_url.rstrip("/").removesuffix("/v1").removesuffix("/api")
        return Exchange(
            transport,
            endpoint_of(base_url, path, headers=headers, query={}, method=method),
            read_error=read_error,
            hint=hint_for(self.model),
            secrets=options.headers.values(),
            keys=Secrets(named=(options.headers,)),
        )
