"""Requests and answers as they travel in OpenAI's format: JSON that passes through, read no further than needed.

A request keeps its fields as they came, so what we do not know reaches the provider untouched. An answer is the bytes
the caller gets, with the little that the gateway must know of them.
"""

import enum
from collections.abc import Mapping

import msgspec

from headgate.core.messages import Lane, Usage


class Endpoint(enum.StrEnum):
    """What is asked for, by its path below the version in OpenAI's API."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"


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


class WireAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer: the body in OpenAI's shape."""

    body: bytes
    usage: Usage | None = None
    blank: bool = False
    """No content, no tool call, no refusal in it: the provider was paid for nothing."""
