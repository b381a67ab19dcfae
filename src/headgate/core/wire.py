"""Requests and answers as they travel in OpenAI's format: JSON that passes through, read no further than needed.

A request keeps its fields as they came, so what we do not know reaches the provider untouched. An answer is the bytes
the caller gets, with the little that the gateway must know of them.
"""

import enum
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from headgate.core.messages import (
    CHARS_PER_TOKEN,
    MOST_TOKENS,
    Lane,
    Usage,
    output_tokens,
    read_count,
)

_MAX_NUMBER_CHARS: Final = 100
_SEVERAL: Final = re.compile(rb'\s*\[\s*["\[]')
_read_prompts: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Endpoint(enum.StrEnum):
    """What is asked for, by its path below the version in OpenAI's API."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"


_OPERATIONS: Final = {
    Endpoint.CHAT: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.EMBEDDINGS: "embeddings",
}


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `fields` holds the whole body but `model` and `stream`, each value still JSON."""

    id: str
    endpoint: Endpoint
    model: str
    """The public name; a provider knows its own."""
    fields: Mapping[str, msgspec.Raw]
    size_bytes: int
    """Of the body as it came."""
    stream: bool = False
    lane: Lane = Lane.INTERACTIVE
    tenant: str = "local"
    agent_id: str | None = None
    wait: bool = True
    """Waits while its upstreams take no calls; else it is refused at once."""

    @property
    def operation(self) -> str:
        return _OPERATIONS[self.endpoint]


class WireAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer: the body in OpenAI's shape."""

    body: bytes
    usage: Usage | None = None
    blank: bool = False
    """No content, no tool call, no refusal in it: the provider was paid for nothing."""


class WireReply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with its story."""

    request_id: str
    model: str
    upstream: str
    body: bytes
    usage: Usage
    attempts: int = 1
    latency_ms: float = 0.0
    queue_ms: float = 0.0
    upstream_ms: float = 0.0
    """With providers, and between attempts."""
    cost_usd: float | None = None
    """What it cost; None when nobody knows the price."""
    replayed: bool = False
    """Told again under its idempotency key; nobody was asked for it this time."""


def wire_tokens(request: WireRequest) -> int:
    """How many tokens to reserve before the call: a guess from bytes, and the bound of each answer where there is one."""
    asked = -(-request.size_bytes // CHARS_PER_TOKEN)
    if request.endpoint is Endpoint.EMBEDDINGS:
        return asked
    fields = request.fields
    choices = bound = 0
    # Which of two names a server obeys is not known here, so the larger number counts.
    for name in ("n", "best_of"):
        if name in fields:
            choices = max(choices, _read_count(fields[name]))
    for name in ("max_completion_tokens", "max_tokens"):
        if name in fields:
            bound = max(bound, _read_count(fields[name]))
    prompts = _count_prompts(fields["prompt"]) if "prompt" in fields else 1
    return asked + output_tokens(bound, choices, prompts)


def _read_count(raw: msgspec.Raw) -> int:
    """A number that is too large, or too long to be read quickly, is as large as can be."""
    if len(raw) > _MAX_NUMBER_CHARS:
        return MOST_TOKENS
    try:
        return read_count(msgspec.json.decode(raw))
    except msgspec.MsgspecError:
        return MOST_TOKENS


def _count_prompts(raw: msgspec.Raw) -> int:
    """Each text or list of tokens in a list is a prompt, and answered apart; a list of numbers is one prompt."""
    return len(_read_prompts(raw)) if _SEVERAL.match(raw) is not None else 1


def estimate_wire_usage(request: WireRequest, output_tokens: int) -> Usage:
    """For upstreams that do not count."""
    return Usage(-(-request.size_bytes // CHARS_PER_TOKEN), output_tokens, estimated=True)
