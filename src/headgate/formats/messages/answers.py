"""Anthropic's messages and its server-sent events as chat completions. Pure: the provider does the reading.

Text and tool calls are the answer. Thinking goes beside it, as text and as the blocks that Anthropic wants back with
their signatures. What Anthropic's own tools did is left out.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from headgate.core.answer import Answer, Chunk, Tokens, Usage
from headgate.core.call import Call
from headgate.formats import chat
from headgate.formats.foreign_bodies import UNREADABLE

DECLINED: Final = "The provider declined to answer."
"""The text of a refusal that comes without an explanation."""
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
_NULL: Final = msgspec.Raw(b"null")
_NOTHING: Final = Chunk()
"""For events that hold nothing of the answer."""


class TokenCounts(msgspec.Struct, frozen=True):
    """Input is counted in three parts: `input_tokens` is without what came from the prompt cache or went there."""

    input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None

    def updated(self, newer: "TokenCounts") -> "TokenCounts":
        """Counts in a stream are cumulative; a later event repeats only those that it knows."""
        known = {name: count for name, count in msgspec.structs.asdict(newer).items() if count is not None}
        return msgspec.structs.replace(self, **known)

    def usage(self) -> Usage | None:
        if self.input_tokens is None and self.output_tokens is None:
            return None
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return Usage((self.input_tokens or 0) + cached, self.output_tokens or 0)

    def details(self) -> dict[str, Any]:
        """What the prompt cache had to do with it: under OpenAI's name, and under Anthropic's own."""
        details: dict[str, Any] = {}
        if self.cache_read_input_tokens is not None:
            details["prompt_tokens_details"] = {"cached_tokens": self.cache_read_input_tokens}
            details["cache_read_input_tokens"] = self.cache_read_input_tokens
        if self.cache_creation_input_tokens is not None:
            details["cache_creation_input_tokens"] = self.cache_creation_input_tokens
        return details


_read_counts: Final = msgspec.json.Decoder(TokenCounts | None).decode


def counts_in(usage: msgspec.Raw) -> TokenCounts | None:
    """What a `usage` object counts: nothing where it is missing; None when its numbers are impossible."""
    try:
        return _read_counts(usage) or TokenCounts()
    except UNREADABLE:
        return None


class StopDetails(msgspec.Struct, frozen=True):
    explanation: str | None = None


class ContentBlock(msgspec.Struct, frozen=True):
    """Which of the fields it has depends on its type."""

    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    thinking: str = ""
    signature: str | None = None
    data: msgspec.Raw = _NULL
    """Of a thought that is encrypted."""


# ---- Whole answers ------------------------------------------------------------------------------------------


class WholeMessage(msgspec.Struct, frozen=True):
    """The body of an answer that is not streamed."""

    type: Literal["message"]
    content: list[ContentBlock]
    stop_reason: str | None = None
    stop_details: StopDetails | None = None
    usage: msgspec.Raw = _NULL


def to_answer(call: Call, message: WholeMessage) -> Answer:
    blocks = message.content
    counts = counts_in(message.usage) or TokenCounts()
    usage = counts.usage()
    texts = [block.text for block in blocks if block.type == "text"]
    return chat.write_answer(
        call,
        content="".join(texts) if texts else None,
        tool_calls=[_tool_call(block) for block in blocks if block.type == "tool_use"],
        refusal=_refusal(message.stop_reason, message.stop_details),
        reasoning="".join(block.thinking for block in blocks if block.type == "thinking"),
        thinking_blocks=[thought for block in blocks for thought in _thoughts(block)],
        finish_reason=_finish_reason(message.stop_reason),
        usage=usage,
        usage_details=counts.details() if usage else None,
    )


def _finish_reason(stop_reason: str | None) -> str | None:
    return None if stop_reason is None else _FINISH_REASONS.get(stop_reason, "stop")


def _refusal(stop_reason: str | None, details: StopDetails | None) -> str | None:
    if stop_reason != "refusal":
        return None
    return (details.explanation if details else None) or DECLINED


def _tool_call(block: ContentBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": bytes(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _thoughts(block: ContentBlock) -> list[dict[str, Any]]:
    """The block as the client has to send it back, where it is one of thinking."""
    if block.type == "redacted_thinking":
        return [{"type": block.type, "data": block.data}]
    return _thought(block.thinking, block.signature) if block.type == "thinking" else []


def _thought(text: str, signature: str | None) -> list[dict[str, Any]]:
    if not (text or signature):
        return []
    thought = {"type": "thinking", "thinking": text}
    # Servers that imitate Anthropic may not sign.
    return [thought if signature is None else {**thought, "signature": signature}]


# ---- Streams ------------------------------------------------------------------------------------------------


class Delta(msgspec.Struct, frozen=True):
    """What an event adds to a block (text, a piece of a tool's input) or to the message (why it stopped)."""

    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: StopDetails | None = None


class MessageStart(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = _NULL


class MessageEvent(msgspec.Struct, frozen=True):
    """The data of one event; which fields it has depends on its type."""

    type: str
    message: MessageStart | None = None
    index: int = 0
    content_block: ContentBlock | None = None
    delta: Delta | None = None
    usage: msgspec.Raw = _NULL


class _Thinking(msgspec.Struct):
    """A block that grows."""

    texts: list[str]
    signature: str | None


class MessageReader:
    """Follows one answer. `ended` turns true with `message_stop`, whose chunk says why and how much."""

    def __init__(self) -> None:
        self.ended = False
        self.begun = False
        """Something was said, or thought."""
        self.usage_details: dict[str, Any] | None = None
        """Of the usage in the last chunk."""
        self._counts: TokenCounts | None = TokenCounts()
        """None as soon as one of them is impossible: they are cumulative."""
        self._stop_reason: str | None = None
        self._stop_details: StopDetails | None = None
        self._tools: dict[int, int] = {}
        """Anthropic numbers all blocks, OpenAI the tool calls only."""
        self._silent_tools: set[int] = set()
        """Tools whose input has not begun: one without arguments may never say `{}`."""
        self._thinking: dict[int, _Thinking] = {}
        """Blocks that have begun and not ended."""

    def read(self, event: MessageEvent) -> Chunk:
        match event.type:
            case "message_start" if event.message is not None:
                self._count(event.message.usage)
            case "content_block_start" if event.content_block is not None:
                block = event.content_block
                self.begun = self.begun or bool(block.text or block.id or block.thinking)
                return self._block_started(event.index, block)
            case "content_block_delta" if event.delta is not None:
                delta = event.delta
                self.begun = self.begun or bool(delta.text or delta.partial_json or delta.thinking)
                return self._block_grew(event.index, delta)
            case "content_block_stop":
                return self._block_ended(event.index)
            case "message_delta":
                self._message_grew(event)
            case "message_stop":
                self.ended = True
                return self._last()
        return _NOTHING  # `ping`, and kinds of events that are yet to be invented.

    def _block_started(self, index: int, block: ContentBlock) -> Chunk:
        match block.type:
            case "text":
                return Chunk(text=block.text)
            case "thinking":
                self._thinking[index] = _Thinking([block.thinking], block.signature)
                return Chunk(reasoning=block.thinking)
            case "redacted_thinking":
                return self._thought_ended(_thoughts(block))
            case "tool_use":
                return self._tool_started(index, block)
        return _NOTHING  # Anthropic's own tools.

    def _tool_started(self, index: int, block: ContentBlock) -> Chunk:
        self._tools[index] = len(self._tools)
        arguments = bytes(block.input).decode()
        whole = arguments.strip("{} \r\n\t") != ""
        if not whole:
            self._silent_tools.add(index)
        function = {"name": block.name, "arguments": arguments if whole else ""}
        return self._tool(index, {"id": block.id, "type": "function", "function": function})

    def _block_grew(self, index: int, delta: Delta) -> Chunk:
        thinking = self._thinking.get(index)
        match delta.type:
            case "text_delta":
                return Chunk(text=delta.text)
            case "input_json_delta" if delta.partial_json and index in self._tools:
                self._silent_tools.discard(index)
                return self._tool(index, {"function": {"arguments": delta.partial_json}})
            case "thinking_delta":
                if thinking is not None:
                    thinking.texts.append(delta.thinking)
                return Chunk(reasoning=delta.thinking)
            case "signature_delta" if thinking is not None:
                thinking.signature = delta.signature
        return _NOTHING  # Citations, and the input of Anthropic's own tools.

    def _block_ended(self, index: int) -> Chunk:
        if (thinking := self._thinking.pop(index, None)) is not None:
            return self._thought_ended(_thought("".join(thinking.texts), thinking.signature))
        if index not in self._silent_tools:
            return _NOTHING
        self._silent_tools.discard(index)
        return self._tool(index, {"function": {"arguments": "{}"}})

    def _thought_ended(self, blocks: list[dict[str, Any]]) -> Chunk:
        self.begun = self.begun or bool(blocks)
        return Chunk(thinking_blocks=blocks)

    def _message_grew(self, event: MessageEvent) -> None:
        self._count(event.usage)
        if event.delta is not None:
            self._stop_reason = event.delta.stop_reason or self._stop_reason
            self._stop_details = event.delta.stop_details or self._stop_details

    def _count(self, usage: msgspec.Raw) -> None:
        newer = counts_in(usage)
        self._counts = None if self._counts is None or newer is None else self._counts.updated(newer)

    def _tool(self, index: int, call: dict[str, Any]) -> Chunk:
        return Chunk(tool_calls=[{"index": self._tools[index], **call}])

    def _last(self) -> Chunk:
        if self._counts is not None:
            self.usage_details = self._counts.details()
        return Chunk(
            refusal=_refusal(self._stop_reason, self._stop_details),
            finish_reason=_finish_reason(self._stop_reason) or "stop",
            usage=None if self._counts is None else self._counts.usage(),
        )
