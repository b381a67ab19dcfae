"""OpenAI's embeddings: texts in, one vector for each of them out."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.core.answer import Answer, Usage, Vector
from headgate.core.call import Call, count_entries, input_tokens, read_texts
from headgate.formats.foreign_bodies import EMPTY, UNREADABLE, read_usage
from headgate.formats.reading import NoAnswer, read_fields, read_value

_NULL: Final = msgspec.Raw(b"null")
_EMPTY: Final = msgspec.Raw(b"[]")
_NO_VECTOR_BYTES: Final = 5
"""As long as the longest word for nothing."""
_LIST: Final = re.compile(rb'\[\s*["\[]')
"""Of texts or lists of tokens; a list of numbers is one text."""
_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_encode: Final = msgspec.json.Encoder().encode


class EmbeddingRequest(msgspec.Struct, frozen=True):
    """A request as translating providers read it."""

    texts: tuple[str, ...]
    params: Mapping[str, Any]
    """All other fields."""


class _Answered(msgspec.Struct):
    embedding: msgspec.Raw
    index: int | None = None


class _Vectors(msgspec.Struct):
    data: list[_Answered]
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


_read_vectors: Final = msgspec.json.Decoder(_Vectors).decode


def read_request(call: Call) -> EmbeddingRequest:
    """Read once per call; `InvalidRequest` names the field that makes no sense."""
    if call.read is None:
        params = read_fields(call.fields)
        call.read = EmbeddingRequest(read_texts(params.pop("input", None)), params)
    request: EmbeddingRequest = call.read
    return request


def read_answer(body: bytes, call: Call) -> Answer:
    """The answer in a body, which is kept as it is: as many vectors as there were texts. Raises `NoAnswer`."""
    try:
        vectors = _read_vectors(body)
    except UNREADABLE as error:
        raise NoAnswer(f"its body is no list of embeddings: {error}") from None
    if vectors.error is not _NULL and bytes(vectors.error) not in EMPTY:
        raise NoAnswer("its body is an error")
    asked = count_entries(call.fields.get("input"))
    if len(vectors.data) != asked:
        raise NoAnswer(f"it holds {len(vectors.data)} embeddings for {asked} texts")
    # Some servers number none of them. The same index twice would give a text the vector of another.
    indexes = sorted([item.index or 0 for item in vectors.data])
    if any(indexes) and indexes != list(range(asked)):
        raise NoAnswer("its embeddings are not numbered as the texts are")
    empty = next((place for place, item in enumerate(vectors.data) if _is_nothing(item.embedding)), None)
    flaw = None if empty is None else f"vector {empty} is empty"
    return Answer(body=body, usage=read_usage(vectors.usage), flaw=flaw)


def _is_nothing(vector: msgspec.Raw) -> bool:
    return len(vector) <= _NO_VECTOR_BYTES and bytes(vector) in EMPTY


def write_answer(call: Call, vectors: Sequence[Vector | msgspec.Raw], usage: Usage | None) -> Answer:
    """Vectors as another format brought them; they may be JSON already."""
    if not _is_list(vectors) or not all(map(_is_vector, vectors)):
        raise TypeError("the vectors of an answer must be a list of vectors, each a list of numbers")
    usage = usage or Usage(input_tokens(call), 0, estimated=True)
    body = {
        "object": "list",
        "model": call.model,
        "data": _numbered(vectors),
        "usage": _usage_body(usage),
    }
    return Answer(
        body=_encode(body),
        usage=usage,
        flaw=_flaw(vectors, count_entries(read_value(call.fields.get("input")))),
    )


def _is_vector(value: object) -> bool:
    return isinstance(value, msgspec.Raw) or _is_list(value)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _numbered(vectors: Sequence[Vector | msgspec.Raw]) -> list[dict[str, Any]]:
    return [
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
    ]


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "total_tokens": usage.total_tokens,
        **({"estimated": True} if usage.estimated else {}),
    }


def _flaw(vectors: Sequence[Vector | msgspec.Raw], asked: int) -> str | None:
    if len(vectors) != asked:
        return f"vectors in the answer: {len(vectors)}, texts in the request: {asked}"
    empty = next((index for index, vector in enumerate(vectors) if not vector or vector == _EMPTY), None)
    return None if empty is None else f"vector {empty} is empty"


# ---- Several requests in one ----------------------------------------------------------------------------------


_read_body: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_items: Final = msgspec.json.Decoder(list[_Answered]).decode
_read_raws: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def entries_of(call: Call) -> Sequence[Any]:
    """What is to be embedded, one by one. Texts and lists of tokens stay as they are."""
    given = call.fields.get("input")
    if isinstance(given, msgspec.Raw):
        return _read_raws(given) if _LIST.match(given) is not None else [given]
    return [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given or ())


def join_inputs(calls: Sequence[Call]) -> Any:
    """The inputs of all as one. What came as JSON stays so, or the provider could not read it."""
    entries = [entry for call in calls for entry in entries_of(call)]
    came = all(isinstance(entry, msgspec.Raw) for entry in entries)
    return msgspec.Raw(_encode(entries)) if came else entries


def other_fields(call: Call) -> bytes | None:
    """What must be the same in requests that are sent as one; None where it cannot be written as JSON."""
    try:
        return _sorted({name: value for name, value in call.fields.items() if name != "input"})
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def split_answer(answer: Answer, calls: Sequence[Call]) -> list[Answer]:
    """One answer for each of the calls whose inputs were sent as one, its usage shared out by their sizes.

    Raises `NoAnswer` when it does not hold a vector for each input.
    """
    try:
        body = _read_body(answer.body)
        # As `Answer.vectors` has them: some servers number none of them.
        items = sorted(_read_items(body["data"]), key=lambda item: item.index or 0)
    except (*UNREADABLE, KeyError) as error:
        raise NoAnswer(f"its body is no list of embeddings: {error}") from None
    asked = sum(len(entries_of(call)) for call in calls)
    if len(items) != asked:
        raise NoAnswer(f"it holds {len(items)} embeddings for {asked} texts")
    sizes = [max(1, input_tokens(call)) for call in calls]
    tokens = 0 if answer.usage is None else answer.usage.input_tokens
    answers, begin, told, weight = [], 0, 0, 0
    for call, size in zip(calls, sizes, strict=True):
        end = begin + len(entries_of(call))
        weight += size
        share = tokens * weight // sum(sizes) - told
        told += share
        usage = None if answer.usage is None else Usage(share, 0, estimated=answer.usage.estimated)
        parts: dict[str, Any] = {**body, "data": _numbered([item.embedding for item in items[begin:end]])}
        if usage is not None:
            parts["usage"] = _usage_body(usage)
        answers.append(Answer(body=_encode(parts), usage=usage))
        begin = end
    return answers
