"""Anthropic's server-sent events as `Chunk`s. Pure: events in, chunks out; the provider does the reading."""

from typing import Any, Final

import msgspec

from headgate.core.messages import Chunk
from headgate.providers.anthropic.answers import (
    Block,
    StopDetails,
    TokenCounts,
    counts_in,
    finish_reason_of,
    refusal_of,
)

_NULL: Final = msgspec.Raw(b"null")
_ALIVE: Final = Chunk()
"""For events that are no content: whoever waits for the next piece sees that somebody is at work."""


class Delta(msgspec.Struct, frozen=True):
    """What an event adds to a block (text, a piece of a tool's input) or to the message (why it stopped)."""

    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    stop_reason: str | None = None
    stop_details: StopDetails | None = None


class Started(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = _NULL


class Event(msgspec.Struct, frozen=True):
    """The data of one event; which fields it has depends on its type."""

    type: str
    message: Started | None = None
    index: int = 0
    content_block: Block | None = None
    delta: Delta | None = None
    usage: msgspec.Raw = _NULL


class StreamReader:
    """Follows one answer. `ended` turns true with `message_stop`; only then the last chunk is told."""

    def __init__(self) -> None:
        self.ended = False
        self.begun = False
        """Something was said, or thought."""
        self._counts: TokenCounts | None = TokenCounts()
        """None as soon as one of them cannot be believed: they are cumulative."""
        self._stop_reason: str | None = None
        self._stop_details: StopDetails | None = None
        self._tools: dict[int, int] = {}
        """Anthropic numbers all blocks, OpenAI the tool calls only."""
        self._silent_tools: set[int] = set()
        """Tools whose input has not begun: one without arguments may never say `{}`."""

    def read(self, event: Event) -> Chunk:
        match event.type:
            case "message_start" if event.message is not None:
                self._count(event.message.usage)
            case "content_block_start" if event.content_block is not None:
                self.begun = self.begun or bool(event.content_block.text or event.content_block.id)
                return self._block_started(event.index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                delta = event.delta
                self.begun = self.begun or bool(delta.text or delta.partial_json or delta.thinking)
                return self._block_grew(event.index, event.delta)
            case "content_block_stop":
                return self._block_ended(event.index)
            case "message_delta":
                self._message_grew(event)
            case "message_stop":
                self.ended = True
                return self._last()
        return _ALIVE  # `ping`, and kinds of events that are yet to be invented.

    def _block_started(self, index: int, block: Block) -> Chunk:
        if block.type == "text":
            return Chunk(text=block.text)
        if block.type != "tool_use":
            return _ALIVE
        self._tools[index] = len(self._tools)
        arguments = bytes(block.input).decode()
        whole = arguments.strip("{} \r\n\t") != ""
        if not whole:
            self._silent_tools.add(index)
        function = {"name": block.name, "arguments": arguments if whole else ""}
        return self._tool(index, {"id": block.id, "type": "function", "function": function})

    def _block_grew(self, index: int, delta: Delta) -> Chunk:
        if delta.type == "text_delta" and delta.text:
            return Chunk(text=delta.text)
        if delta.type == "input_json_delta" and delta.partial_json and index in self._tools:
            self._silent_tools.discard(index)
            return self._tool(index, {"function": {"arguments": delta.partial_json}})
        return _ALIVE  # Thinking, signatures, citations, and the input of Anthropic's own tools.

    def _block_ended(self, index: int) -> Chunk:
        if index not in self._silent_tools:
            return _ALIVE
        self._silent_tools.discard(index)
        return self._tool(index, {"function": {"arguments": "{}"}})

    def _message_grew(self, event: Event) -> None:
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
        return Chunk(
            refusal=refusal_of(self._stop_reason, self._stop_details),
            finish_reason=finish_reason_of(self._stop_reason) or "stop",
            usage=None if self._counts is None else self._counts.usage(),
        )
