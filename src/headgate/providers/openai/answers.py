"""Bodies in OpenAI's format as our answers and vectors."""

import base64
import sys
from array import array
from typing import Any, Final

import msgspec

from headgate.core.embeddings import EmbeddingRequest, Embeddings, Vector
from headgate.core.messages import Answer
from headgate.core.wire_bodies import EMPTY, UNREADABLE, read_usage
from headgate.providers.openai.errors import ErrorReader

_NULL: Final = msgspec.Raw(b"null")
Content = str | list[dict[str, Any]] | None
"""Text, or parts of which those with text count (Mistral answers so when it thinks)."""


class _Message(msgspec.Struct):
    content: Content = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


class _Item(msgspec.Struct):
    embedding: msgspec.Raw
    index: int | None = None


class _List(msgspec.Struct):
    data: list[_Item]
    usage: msgspec.Raw = _NULL


class _Named(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Named]


_read_models = msgspec.json.Decoder(_Models).decode
_read_completion = msgspec.json.Decoder(_Completion).decode
_read_list = msgspec.json.Decoder(_List).decode
_read_embedding = msgspec.json.Decoder(list[float] | str).decode


def read_answer(body: bytes, errors: ErrorReader) -> Answer:
    """The first choice of a chat completion."""
    try:
        completion = _read_completion(body)
    except UNREADABLE as error:
        raise errors.no_answer(body, f"its body is no chat completion: {error}") from None
    if not completion.choices or bytes(completion.error) not in EMPTY:
        raise errors.no_answer(body, "its body holds no answer")
    choice = completion.choices[0]
    return Answer(
        content=text_of(choice.message.content),
        tool_calls=tool_calls_of(choice.message.tool_calls, choice.message.function_call),
        refusal=choice.message.refusal,
        finish_reason=choice.finish_reason,
        usage=read_usage(completion.usage),
    )


def read_models(body: bytes, errors: ErrorReader) -> tuple[str, ...]:
    """The names in a list of models."""
    try:
        return tuple(model.id for model in _read_models(body).data)
    except UNREADABLE as error:
        raise errors.no_answer(body, f"its body is no list of models: {error}") from None


def text_of(content: Content) -> str | None:
    if content is None or isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if isinstance(part.get("text"), str))


def tool_calls_of(
    tool_calls: list[dict[str, Any]] | None, function_call: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Tool calls; the one function call of the older format becomes one."""
    if function_call and not tool_calls:
        return [{"index": 0, "id": "", "type": "function", "function": function_call}]
    return tool_calls or []


def read_embeddings(body: bytes, request: EmbeddingRequest, errors: ErrorReader) -> Embeddings:
    """One vector per text, in the order asked, whatever order they came in."""
    try:
        answer = _read_list(body)
        items = sorted(answer.data, key=lambda item: item.index or 0)
        vectors = [_vector(item.embedding) for item in items]
    except UNREADABLE as error:
        raise errors.no_answer(body, f"its body is no list of embeddings: {error}") from None
    if not _fit(items, len(request.input)):
        raise errors.no_answer(body, f"it holds {len(items)} embeddings for {len(request.input)} texts")
    return Embeddings(vectors=vectors, usage=read_usage(answer.usage))


def _fit(items: list[_Item], count: int) -> bool:
    """One vector for each text. Some servers number none of them."""
    numbers = [item.index for item in items]
    return len(items) == count and (numbers == list(range(count)) or not any(numbers))


def _vector(raw: msgspec.Raw) -> Vector:
    """Numbers, or the little-endian floats of `encoding_format: base64`."""
    embedding = _read_embedding(raw)
    if isinstance(embedding, list):
        return embedding
    floats = array("f", base64.b64decode(embedding, validate=True))
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tolist()
