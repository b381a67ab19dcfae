"""Between OpenAI's format and our own records, for providers that speak another language."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.calls.work import close_stream
from headgate.core.bodies import answer_body, chunk_body, embeddings_body, text_body, text_chunk_body
from headgate.core.embeddings import (
    EmbeddingRequest,
    Embeddings,
    check_embedding,
    estimate_embedding_usage,
    read_input,
)
from headgate.core.errors import InvalidRequest
from headgate.core.messages import Answer, Chunk, Message, Request, Usage, check_request, estimate_usage
from headgate.core.wire import Endpoint, WireAnswer, WireRequest

DONE: Final = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode
_NUMBERS_AT_ONCE: Final = 100_000
_SLICE_BYTES: Final = 1_000_000
_MOST_THINGS: Final = 200_000
_MOST_COMMAS: Final = 2_000_000
"""Lists, objects and texts in a body that is to be read; brackets and commas inside texts count, too. A text of a
million tokens has fewer. Millions of empty lists take seconds to read, and everybody else would wait."""


def to_request(wire: WireRequest) -> Request:
    """A chat request out of a body; `InvalidRequest` names the field that makes none."""
    params = _read_fields(wire.fields)
    params.pop("stream_options", None)
    messages = _prompt(params) if wire.endpoint is Endpoint.COMPLETIONS else params.pop("messages", ())
    request = Request(
        id=wire.id,
        model=wire.model,
        messages=messages,
        params=params,
        lane=wire.lane,
        tenant=wire.tenant,
        agent_id=wire.agent_id,
    )
    check_request(request)
    return request


def to_embedding_request(wire: WireRequest) -> EmbeddingRequest:
    params = _read_fields(wire.fields)
    request = EmbeddingRequest(
        id=wire.id,
        model=wire.model,
        input=read_input(params.pop("input", None)),
        params=params,
        lane=wire.lane,
        tenant=wire.tenant,
        agent_id=wire.agent_id,
    )
    check_embedding(request)
    return request


def from_answer(answer: Answer, request: Request, endpoint: Endpoint, *, created: float) -> WireAnswer:
    usage = answer.usage or estimate_usage(request, answer.content or "")
    shape = text_body if endpoint is Endpoint.COMPLETIONS else answer_body
    body = shape(answer, usage, request_id=request.id, model=request.model, created=created)
    return WireAnswer(body=_encode(body), usage=usage, blank=answer.blank)


async def from_embeddings(answer: Embeddings, request: EmbeddingRequest) -> WireAnswer:
    """Millions of numbers are encoded a few vectors at a time, so that other calls go on meanwhile."""
    usage = answer.usage or estimate_embedding_usage(request)
    body = embeddings_body(answer.vectors, usage, model=request.model)
    numbers = 0
    for item in body["data"]:
        numbers += len(item["embedding"])
        item["embedding"] = msgspec.Raw(_encode(item["embedding"]))
        if numbers >= _NUMBERS_AT_ONCE:
            numbers = 0
            await asyncio.sleep(0)
    return WireAnswer(body=_encode(body), usage=usage)


async def from_chunks(
    chunks: AsyncIterator[Chunk], request: Request, wire: WireRequest, *, created: float
) -> AsyncIterator[bytes]:
    """Server-sent events of a stream. Usage is told when it was asked for, as OpenAI does."""
    shape = text_chunk_body if wire.endpoint is Endpoint.COMPLETIONS else chunk_body
    usage: Usage | None = None
    chars, first = 0, True
    try:
        async for chunk in chunks:
            usage = chunk.usage or usage
            chars += len(chunk.text)
            if chunk.has_content or chunk.finish_reason is not None:
                body = shape(chunk, request_id=request.id, model=request.model, created=created, first=first)
                first = False
                yield b"data: %b\n\n" % _encode(body)
    finally:
        # Left early, this generator is closed at once; the provider's would wait for the garbage collector.
        await close_stream(chunks)
    if _wants_usage(wire):
        usage = usage or estimate_usage(request, " " * chars)
        told = shape(
            Chunk(usage=usage), request_id=request.id, model=request.model, created=created, first=False
        )
        yield b"data: %b\n\n" % _encode(told)
    yield DONE


def _read_fields(fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    for value in fields.values():
        _check_count(memoryview(value))
    try:
        return {name: msgspec.json.decode(value) for name, value in fields.items()}
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON that can be read: {error}") from None


def _check_count(value: memoryview) -> None:
    """In slices, and first in one pass: a large body of texts costs little, one of nothing else is found out early."""
    if len(value) <= _SLICE_BYTES:
        return
    signs = things = commas = 0
    for start in range(0, len(value), _SLICE_BYTES):
        part = bytes(value[start : start + _SLICE_BYTES])
        signs += len(part) - len(part.translate(None, b'[{",'))
        if signs > _MOST_THINGS:
            things += part.count(b"[") + part.count(b"{") + (part.count(b'"') - part.count(b'\\"')) // 2
            commas += part.count(b",")
        if things > _MOST_THINGS or commas > _MOST_COMMAS:
            raise InvalidRequest("the body holds more lists, objects and texts than can be read; send less")


def _prompt(params: dict[str, Any]) -> Sequence[Message]:
    prompt = params.pop("prompt", None)
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise InvalidRequest("prompt must be one text: this model's upstream takes no list", param="prompt")
    return [{"role": "user", "content": prompt}]


def _wants_usage(wire: WireRequest) -> bool:
    options = wire.fields.get("stream_options")
    return options is not None and b'"include_usage":true' in bytes(options).replace(b" ", b"")
