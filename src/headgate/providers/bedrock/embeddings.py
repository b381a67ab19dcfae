"""Embeddings through InvokeModel, where each family of models has a format of its own: Titan's and Cohere's."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headgate.core.answer import Tokens
from headgate.formats.converse.failures import bad_envelope, decoded
from headgate.formats.converse.requests import encoded
from headgate.formats.params import refused
from headgate.providers.exchange import read_counts

# How vectors are written is between us and the caller; the rest tells Bedrock nothing.
_HARMLESS: Final = frozenset({"encoding_format", "user"})
_read_count = msgspec.json.Decoder(Tokens | None).decode
_TOKENS_HEADER: Final = "x-amzn-bedrock-input-token-count"
_NULL: Final = msgspec.Raw(b"null")


class _TitanEmbedding(msgspec.Struct, frozen=True, rename="camel"):
    """Titan embeds one text per call."""

    embedding: msgspec.Raw
    input_text_token_count: msgspec.Raw = _NULL


class _CohereVectors(msgspec.Struct, frozen=True):
    """Vectors by their number format, when formats were asked for."""

    floats: list[msgspec.Raw] = msgspec.field(name="float")


class _CohereEmbeddings(msgspec.Struct, frozen=True):
    """Cohere embeds a list; tokens are only counted in a header."""

    embeddings: list[msgspec.Raw] | _CohereVectors


@dataclass(frozen=True, slots=True)
class EmbeddingFormat:
    """How one family is asked and read."""

    texts_per_call: int
    body: Callable[[str, Sequence[str], Mapping[str, Any]], dict[str, Any]]
    """Model, texts, parameters."""
    read: Callable[[bytes, Mapping[str, str], str], tuple[Sequence[msgspec.Raw], int | None]]
    """Vectors, not checked yet, and tokens of an answer: body, headers, host."""


def embedding_format(model: str) -> EmbeddingFormat | None:
    """By the model's id; a profile's ARN that does not tell it has none."""
    return next((form for pattern, form in _FORMATS if re.search(pattern, model)), None)


def embedding_body(
    form: EmbeddingFormat, model: str, texts: Sequence[str], params: Mapping[str, Any]
) -> bytes:
    known = {name: value for name, value in params.items() if value is not None and name not in _HARMLESS}
    return encoded(form.body(model, texts, known))


def read_embeddings(
    form: EmbeddingFormat, body: bytes, headers: Mapping[str, str], *, host: str, count: int
) -> tuple[Sequence[msgspec.Raw], int | None]:
    """Vectors stay JSON, as the caller gets them. Each is decoded only to check it, one by one: see `read_vectors`."""
    vectors, tokens = form.read(body, headers, host)
    if len(vectors) != count:
        raise bad_envelope(host, f"with {len(vectors)} vectors for {count} texts")
    for vector in vectors:
        decoded(vector, list[float], host)
    return vectors, tokens


def _titan_body(_model: str, texts: Sequence[str], params: Mapping[str, Any]) -> dict[str, Any]:
    return {"inputText": texts[0], **params}


def _read_titan(
    body: bytes, _headers: Mapping[str, str], host: str
) -> tuple[Sequence[msgspec.Raw], int | None]:
    said = decoded(body, _TitanEmbedding, host)
    return [said.embedding], read_counts(said.input_text_token_count, _read_count)


def _cohere_body(model: str, texts: Sequence[str], params: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(params)
    dimensions = fields.pop("dimensions", None)
    if dimensions is not None:
        if "embed-v4" not in model:
            raise refused("dimensions", f"cannot be chosen with {model}; leave it out")
        fields["output_dimension"] = dimensions
    if "embedding_types" in fields:
        raise refused("embedding_types", "cannot be chosen: vectors are passed on as floats")
    # Cohere asks for it, OpenAI's format has no word for it: what is stored is embedded more often than what is sought.
    return {"texts": list(texts), "input_type": "search_document", **fields}


def _read_cohere(
    body: bytes, headers: Mapping[str, str], host: str
) -> tuple[Sequence[msgspec.Raw], int | None]:
    said = decoded(body, _CohereEmbeddings, host).embeddings
    counted = msgspec.Raw(headers.get(_TOKENS_HEADER, "").encode())
    vectors = said.floats if isinstance(said, _CohereVectors) else said
    return vectors, read_counts(counted, _read_count)


_FORMATS: Final = (
    (r"\bamazon\.titan-embed-(g1-)?text", EmbeddingFormat(1, _titan_body, _read_titan)),
    (r"\bcohere\.embed-", EmbeddingFormat(96, _cohere_body, _read_cohere)),
)
