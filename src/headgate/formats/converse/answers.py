"""Answers of Converse in chat's format, and the events of ConverseStream as chunks.

Reads events, not frames: what an event stream says of errors is the provider's to know. A thought without a signature
is only text: Bedrock takes back no other than signed ones, so it makes no thinking block.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from headgate.core.answer import Answer, Chunk, Tokens, Usage
from headgate.core.call import Call
from headgate.formats import chat
from headgate.formats.converse.failures import bad_envelope, decoded, malformed, stream_cut
from headgate.formats.foreign_bodies import UNREADABLE

NULL: Final = msgspec.Raw(b"null")
MAX_THOUGHT_BYTES: Final = 16 * 1024 * 1024
"""Of reasoning in one stream: a block is kept until it ends. No model thinks that much."""
_FINISH: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
_MALFORMED: Final = frozenset({"malformed_model_output", "malformed_tool_use"})

# ---- What Bedrock sends, as far as it is read here ------------------------------------------------------------


class _Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Names in Bedrock's own spelling; any field may be missing or null."""


class _TokenUsage(_Shape, frozen=True):
    """`input_tokens` leaves out what came from or went into the prompt cache."""

    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cache_read_input_tokens: Tokens | None = None
    cache_write_input_tokens: Tokens | None = None


class _ToolUse(_Shape, frozen=True):
    """A tool call. One with a type is run by Bedrock itself and does not concern the caller."""

    tool_use_id: str = ""
    name: str = ""
    input: Any = None
    type: str | None = None


class _Thought(_Shape, frozen=True):
    """Reasoning, and the signature that proves it unchanged. Also the shape of a piece of it in a stream."""

    text: str | None = None
    signature: str | None = None
    redacted_content: bytes | None = None
    """Reasoning that only the model can read; Bedrock sends it as base64."""


class _Reasoning(_Shape, frozen=True):
    """A block of reasoning in a whole answer."""

    reasoning_text: _Thought | None = None
    redacted_content: bytes | None = None


class _CitedText(_Shape, frozen=True):
    """A piece of an answer that has sources."""

    text: str | None = None


class _Citations(_Shape, frozen=True):
    """Text with its sources."""

    content: list[_CitedText] = []


class _Block(_Shape, frozen=True):
    """One part of an answer. Images and the results of Bedrock's own tools are not passed on."""

    text: str | None = None
    tool_use: _ToolUse | None = None
    citations_content: _Citations | None = None
    reasoning_content: _Reasoning | None = None


class _ModelMessage(_Shape, frozen=True):
    """The model's turn."""

    content: list[_Block]


class _Output(_Shape, frozen=True):
    """The wrapper around it."""

    message: _ModelMessage


class _Converse(_Shape, frozen=True):
    """The answer of Converse."""

    output: _Output
    stop_reason: str | None = None
    usage: msgspec.Raw = NULL


class _BlockStart(_Shape, frozen=True):
    """How a block of a stream begins; text and reasoning have no such beginning."""

    tool_use: _ToolUse | None = None


class _ContentBlockStart(_Shape, frozen=True):
    """The event `contentBlockStart`."""

    start: _BlockStart
    content_block_index: int


class _ToolInput(_Shape, frozen=True):
    """A piece of a tool call's JSON."""

    input: str = ""


class _BlockDelta(_Shape, frozen=True):
    """A piece of a block."""

    text: str | None = None
    reasoning_content: _Thought | None = None
    tool_use: _ToolInput | None = None


class _ContentBlockDelta(_Shape, frozen=True):
    """The event `contentBlockDelta`."""

    delta: _BlockDelta
    content_block_index: int


class _ContentBlockStop(_Shape, frozen=True):
    """The event `contentBlockStop`."""

    content_block_index: int


class _MessageStop(_Shape, frozen=True):
    """The event `messageStop`: the answer is whole."""

    stop_reason: str


class _Metadata(_Shape, frozen=True):
    """The event `metadata`, the last one."""

    usage: msgspec.Raw = NULL


_read_counts: Final = msgspec.json.Decoder(_TokenUsage | None).decode

# ---- Whole answers ----------------------------------------------------------------------------------------------


def read_answer(call: Call, body: bytes, host: str) -> Answer:
    said = decoded(body, _Converse, host)
    blocks = said.output.message.content
    counted = _counted(said.usage)
    return chat.write_answer(
        call,
        content="".join(_texts(blocks)) or None,
        tool_calls=[
            _tool_call(block.tool_use) for block in blocks if block.tool_use and not block.tool_use.type
        ],
        reasoning="".join(_thoughts(blocks)),
        thinking_blocks=list(_thinking_blocks(blocks)),
        finish_reason=_finish_reason(said.stop_reason, host),
        usage=counted.usage,
        usage_details=counted.details,
    )


def _texts(blocks: Iterable[_Block]) -> Iterator[str]:
    for block in blocks:
        if block.text:
            yield block.text
        if block.citations_content is not None:
            yield from (piece.text for piece in block.citations_content.content if piece.text)


def _thoughts(blocks: Iterable[_Block]) -> Iterator[str]:
    for block in blocks:
        thought = block.reasoning_content
        if thought is not None and thought.reasoning_text is not None:
            yield thought.reasoning_text.text or ""


def _thinking_blocks(blocks: Iterable[_Block]) -> Iterator[dict[str, str]]:
    for block in blocks:
        reasoning = block.reasoning_content
        if reasoning is None:
            continue
        thought = reasoning.reasoning_text or _Thought()
        whole = _thinking_block(
            thought.text or "", thought.signature or "", reasoning.redacted_content or b""
        )
        if whole is not None:
            yield whole


def _thinking_block(text: str, signature: str, redacted: bytes) -> dict[str, str] | None:
    """As Anthropic writes it. A signature may come without text, where the model does not show its thoughts."""
    if redacted:
        return {"type": "redacted_thinking", "data": b64encode(redacted).decode()}
    return {"type": "thinking", "thinking": text, "signature": signature} if signature else None


def _tool_call(call: _ToolUse) -> dict[str, Any]:
    arguments = msgspec.json.encode({} if call.input is None else call.input).decode()
    return {
        "id": call.tool_use_id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _finish_reason(stop_reason: str | None, host: str) -> str | None:
    """In OpenAI's words; an unknown reason is passed on as it is."""
    if stop_reason is None:
        return None
    if stop_reason in _MALFORMED:
        raise malformed(host, stop_reason)
    return _FINISH.get(stop_reason, stop_reason)


class _Counted(NamedTuple):
    usage: Usage | None = None
    details: Mapping[str, Any] | None = None
    """Of the prompt cache, under the names that chat clients know."""


def _counted(raw: msgspec.Raw) -> _Counted:
    """What came from the prompt cache is input, too: Bedrock only counts it apart. An impossible count counts nothing."""
    try:
        counts = _read_counts(raw)
    except UNREADABLE:
        return _Counted()
    if counts is None:
        return _Counted()
    read, written = counts.cache_read_input_tokens, counts.cache_write_input_tokens
    usage = Usage(counts.input_tokens + (read or 0) + (written or 0), counts.output_tokens)
    details: dict[str, Any] = {}
    if read is not None:
        details |= {"prompt_tokens_details": {"cached_tokens": read}, "cache_read_input_tokens": read}
    if written is not None:
        details["cache_creation_input_tokens"] = written
    return _Counted(usage, details)


# ---- Streams ------------------------------------------------------------------------------------------------------


class EventReader:
    """Turns the events of one stream into chunks. OpenAI counts tool calls from 0, Bedrock counts all blocks."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._calls: dict[int, int] = {}
        self._without_input: set[int] = set()
        self._thoughts: dict[int, _OpenThought] = {}
        self._thought_bytes = 0
        self.begun = False
        """Something was said, or thought."""
        self.usage_details: Mapping[str, Any] | None = None
        """Those of the usage in the last chunk."""
        self._stopped = False
        self._was_counted = False

    def read(self, kind: object, payload: bytes) -> Chunk | None:
        """The chunk of an event of this type, if it makes one: beginnings and unknown events make none."""
        match kind:
            case "contentBlockDelta":
                return self._delta(decoded(payload, _ContentBlockDelta, self._host))
            case "contentBlockStart":
                return self._start(decoded(payload, _ContentBlockStart, self._host))
            case "contentBlockStop":
                return self._block_stop(decoded(payload, _ContentBlockStop, self._host).content_block_index)
            case "messageStop":
                self._stopped = True
                reason = decoded(payload, _MessageStop, self._host).stop_reason
                return Chunk(finish_reason=_finish_reason(reason, self._host))
            case "metadata":
                self._was_counted = True
                usage, self.usage_details = _counted(decoded(payload, _Metadata, self._host).usage)
                return Chunk(usage=usage) if usage else None
        return None

    @property
    def ended(self) -> bool:
        """The last event has come; whatever follows is of no interest."""
        return self._stopped and self._was_counted

    def end(self) -> None:
        """The connection ended. `messageStop` is what makes an answer whole."""
        if not self._stopped:
            raise stream_cut(self._host)

    def _start(self, event: _ContentBlockStart) -> Chunk | None:
        call = event.start.tool_use
        if call is None or call.type:
            return None
        block = event.content_block_index
        index = self._calls[block] = len(self._calls)
        self._without_input.add(block)
        self.begun = True
        function = {"name": call.name, "arguments": ""}
        begun = {"index": index, "id": call.tool_use_id, "type": "function", "function": function}
        return Chunk(tool_calls=[begun])

    def _delta(self, event: _ContentBlockDelta) -> Chunk | None:
        delta, block = event.delta, event.content_block_index
        if delta.text:
            self.begun = True
            return Chunk(text=delta.text)
        if delta.reasoning_content is not None:
            return self._think(block, delta.reasoning_content)
        piece = delta.tool_use
        if piece is None or not piece.input or block not in self._calls:
            return None
        self._without_input.discard(block)
        return self._input(block, piece.input)

    def _think(self, block: int, piece: _Thought) -> Chunk | None:
        self._thought_bytes += self._thoughts.setdefault(block, _OpenThought()).add(piece)
        if self._thought_bytes > MAX_THOUGHT_BYTES:
            raise bad_envelope(self._host, f"with more than {MAX_THOUGHT_BYTES} bytes of reasoning")
        self.begun = self.begun or self._thought_bytes > 0
        return Chunk(reasoning=piece.text) if piece.text else None

    def _block_stop(self, block: int) -> Chunk | None:
        if block in self._thoughts:
            whole = self._thoughts.pop(block).end()
            return Chunk(thinking_blocks=[whole]) if whole else None
        if block in self._without_input:
            # A call without arguments streams none at all; a caller that parses them needs an empty object.
            self._without_input.discard(block)
            return self._input(block, "{}")
        return None

    def _input(self, block: int, arguments: str) -> Chunk:
        return Chunk(tool_calls=[{"index": self._calls[block], "function": {"arguments": arguments}}])


class _OpenThought:
    """A block of reasoning that has not ended: its signature comes last and covers all of it."""

    __slots__ = ("_redacted", "_signature", "_text")

    def __init__(self) -> None:
        # Not lists: pieces of a few characters would need many times their size.
        self._text = bytearray()
        self._signature = bytearray()
        self._redacted = bytearray()

    def add(self, piece: _Thought) -> int:
        """How many bytes it adds."""
        text, signature = (piece.text or "").encode(), (piece.signature or "").encode()
        redacted = piece.redacted_content or b""
        self._text += text
        self._signature += signature
        self._redacted += redacted
        return len(text) + len(signature) + len(redacted)

    def end(self) -> dict[str, str] | None:
        return _thinking_block(self._text.decode(), self._signature.decode(), bytes(self._redacted))
