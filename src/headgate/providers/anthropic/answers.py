"""Anthropic's message as an `Answer`, and the small meanings that whole answers and streams share.

Text and tool calls are the answer. Thinking is not, nor is what Anthropic's own tools did on the way.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from headgate.core.messages import Answer, Tokens, Usage
from headgate.providers.exchange import read_counts

DECLINED: Final = "The provider declined to answer."
"""Stands in when a refusal comes without an explanation."""
# `pause_turn` ends a long turn of Anthropic's own tools half-way: like `length`, it says that more would come.
_FINISH_REASONS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class TokenCounts(msgspec.Struct, frozen=True):
    """Input is counted in three parts: what came from the prompt cache and what went there stand apart."""

    input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None

    def updated(self, newer: "TokenCounts") -> "TokenCounts":
        """Counts in a stream are cumulative; a later event repeats only those that it knows."""
        told = {name: count for name, count in msgspec.structs.asdict(newer).items() if count is not None}
        return msgspec.structs.replace(self, **told)

    def usage(self) -> Usage | None:
        if self.input_tokens is None and self.output_tokens is None:
            return None
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return Usage((self.input_tokens or 0) + cached, self.output_tokens or 0)


_NULL: Final = msgspec.Raw(b"null")
_read_counts = msgspec.json.Decoder(TokenCounts | None).decode


def counts_in(usage: msgspec.Raw) -> TokenCounts | None:
    """What a `usage` object counts: nothing where there is none; None when it cannot be believed."""
    return read_counts(usage, lambda raw: _read_counts(raw) or TokenCounts())


class StopDetails(msgspec.Struct, frozen=True):
    explanation: str | None = None


class Block(msgspec.Struct, frozen=True):
    """A content block; the fields depend on its type."""

    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class Listed(msgspec.Struct, frozen=True):
    """`/v1/models/{model}`."""

    id: str


class Whole(msgspec.Struct, frozen=True):
    """The body of an answer that is not streamed."""

    type: Literal["message"]
    content: list[Block]
    stop_reason: str | None = None
    stop_details: StopDetails | None = None
    usage: msgspec.Raw = _NULL


def to_answer(whole: Whole) -> Answer:
    counts = counts_in(whole.usage)
    texts = [block.text for block in whole.content if block.type == "text"]
    return Answer(
        content="".join(texts) if texts else None,
        tool_calls=[_tool_call(block) for block in whole.content if block.type == "tool_use"],
        refusal=refusal_of(whole.stop_reason, whole.stop_details),
        finish_reason=finish_reason_of(whole.stop_reason),
        usage=counts.usage() if counts else None,
    )


def finish_reason_of(stop_reason: str | None) -> str | None:
    return None if stop_reason is None else _FINISH_REASONS.get(stop_reason, "stop")


def refusal_of(stop_reason: str | None, details: StopDetails | None) -> str | None:
    if stop_reason != "refusal":
        return None
    return (details.explanation if details else None) or DECLINED


def _tool_call(block: Block) -> dict[str, Any]:
    function = {"name": block.name, "arguments": bytes(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}
