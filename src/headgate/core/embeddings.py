"""Texts to be embedded and the vectors that come back: what is asked, what is answered, what is refused.

Knows nothing of providers, gates or HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from headgate.core.errors import InvalidRequest
from headgate.core.messages import CHARS_PER_TOKEN, LONGEST_TEXT_CHARS, Lane, Usage, check_text, read_lane

MOST_TEXTS: Final = 2048

Vector = Sequence[float]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed in one call. `params` passes to the provider untouched (dimensions, …)."""

    id: str
    model: str
    input: tuple[str, ...]
    params: Mapping[str, Any] = {}
    lane: Lane = Lane.INTERACTIVE
    tenant: str = "local"
    agent_id: str | None = None
    operation: ClassVar[str] = "embeddings"

    def __post_init__(self) -> None:
        if type(self.lane) is not Lane:
            msgspec.structs.force_setattr(self, "lane", read_lane(self.lane))


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider answered: one vector per text, in the order asked."""

    vectors: Sequence[Vector]
    usage: Usage | None = None


class EmbeddingReply(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors with their story: which upstream gave them, after how many attempts and how long."""

    request_id: str
    model: str
    upstream: str
    vectors: Sequence[Vector]
    usage: Usage
    attempts: int = 1
    latency_ms: float = 0.0
    queue_ms: float = 0.0


def read_input(given: object) -> tuple[str, ...]:
    """One text or a list of them, as the tuple a request holds; what is in the list is checked later."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given, bytes | bytearray | Mapping) or not isinstance(given, Sequence):
        raise InvalidRequest("input must be a text or a list of texts", param="input")
    _check_count(given)
    return tuple(given)


def check_embedding(request: EmbeddingRequest) -> None:
    """Refuse what no provider could embed, before it takes a place in any queue."""
    check_text("request_id", request.id)
    check_text("tenant", request.tenant)
    check_text("model", request.model)
    if request.agent_id is not None:
        check_text("agent_id", request.agent_id)
    _check_texts(request.input)


def _check_count(texts: Sequence[object]) -> None:
    if not texts:
        raise InvalidRequest("input must hold at least one text", param="input")
    if len(texts) > MOST_TEXTS:
        raise InvalidRequest(
            f"input holds {len(texts):,} texts; the most is {MOST_TEXTS:,}. Send several requests.",
            param="input",
        )


def _check_texts(texts: object) -> None:
    if not isinstance(texts, tuple):
        raise InvalidRequest("input must be a tuple of texts", param="input")
    _check_count(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"input[{index}] must be a text that is not empty", param=f"input[{index}]")
    chars = sum(map(len, texts))
    if chars > LONGEST_TEXT_CHARS:
        raise InvalidRequest(
            f"input holds {chars:,} characters; the most is {LONGEST_TEXT_CHARS:,}. Send less.", param="input"
        )


def embedding_tokens(request: EmbeddingRequest) -> int:
    """How many tokens to reserve before the call: a guess from characters, each text by itself."""
    return sum(-(-len(text) // CHARS_PER_TOKEN) for text in request.input)


def estimate_embedding_usage(request: EmbeddingRequest) -> Usage:
    """For providers that do not count. Vectors are not made of tokens: nothing comes out."""
    return Usage(embedding_tokens(request), 0, estimated=True)
