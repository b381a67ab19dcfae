"""Ollama's lines of JSON as `Chunk`s, the chunks of one answer put together, and vectors.

`thinking` is reasoning, not content. Tool calls come whole, in any line; older servers give them no id.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from headgate.core.answer import Answer, Chunk, Tokens, Usage, Vector
from headgate.core.call import Call
from headgate.formats import chat, embeddings
from headgate.formats.foreign_bodies import UNREADABLE

_LENGTH: Final = "length"
_NULL: Final = msgspec.Raw(b"null")
_read_count: Final = msgspec.json.Decoder(Tokens | None).decode


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class CalledTool(msgspec.Struct, frozen=True):
    function: CalledFunction
    id: str = ""


class Said(msgspec.Struct, frozen=True):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[CalledTool] | None = None


class Line(msgspec.Struct, frozen=True):
    """One line of an answer; the last is `done` and counts the tokens."""

    done: bool
    error: str | None = None
    message: Said | None = None
    done_reason: str | None = None
    prompt_eval_count: msgspec.Raw = _NULL
    eval_count: msgspec.Raw = _NULL


class Tag(msgspec.Struct, frozen=True):
    """A model that was pulled."""

    name: str


class Tags(msgspec.Struct, frozen=True):
    """`/api/tags`."""

    models: Sequence[Tag] | None
    """None where nothing was pulled, in its older versions."""


class Vectors(msgspec.Struct, frozen=True):
    embeddings: list[msgspec.Raw]
    prompt_eval_count: msgspec.Raw = _NULL


class LineReader:
    """Follows one answer. `ended` turns true with the line that says `done`."""

    def __init__(self, request_id: str) -> None:
        self.ended = False
        self.begun = False
        """Something was said, or thought."""
        self._request_id = request_id
        self._calls = 0

    def read(self, line: Line) -> Chunk:
        said = line.message or Said()
        chunk = Chunk(
            text=said.content or "",
            tool_calls=[self._call(call) for call in said.tool_calls or ()],
            reasoning=said.thinking or "",
        )
        self.begun = self.begun or chunk.has_content or bool(chunk.reasoning)
        if not line.done:
            return chunk
        self.ended = True
        return msgspec.structs.replace(chunk, finish_reason=self._finish_reason(line), usage=_usage(line))

    def _call(self, call: CalledTool) -> dict[str, Any]:
        index = self._calls
        self._calls += 1
        function = {"name": call.function.name, "arguments": bytes(call.function.arguments).decode()}
        return {
            "index": index,
            "id": call.id or _call_id(self._request_id, index),
            "type": "function",
            "function": function,
        }

    def _finish_reason(self, line: Line) -> str:
        if line.done_reason == _LENGTH:
            return _LENGTH
        return "tool_calls" if self._calls else "stop"


def to_answer(chunks: Sequence[Chunk], call: Call) -> Answer:
    """The whole of a streamed answer. Its last chunk is the one that ended it."""
    tool_calls = [tool_call for chunk in chunks for tool_call in chunk.tool_calls]
    return chat.write_answer(
        call,
        content="".join(chunk.text for chunk in chunks) or None,
        tool_calls=[{key: value for key, value in told.items() if key != "index"} for told in tool_calls],
        reasoning="".join(chunk.reasoning for chunk in chunks),
        finish_reason=chunks[-1].finish_reason,
        usage=chunks[-1].usage,
    )


def to_embeddings(
    vectors: Sequence[msgspec.Raw | Vector], prompt_eval_count: msgspec.Raw, call: Call
) -> Answer:
    count = _counted(prompt_eval_count)
    return embeddings.write_answer(call, vectors, None if count is None else Usage(count, 0))


def _usage(line: Line) -> Usage | None:
    """A server that took the prompt from its cache may not count it; then nothing is known of the call's size."""
    asked = _counted(line.prompt_eval_count)
    said = 0 if bytes(line.eval_count) == b"null" else _counted(line.eval_count)
    return None if asked is None or said is None else Usage(asked, said)


def _counted(count: msgspec.Raw) -> int | None:
    """None where it is missing or impossible."""
    try:
        tokens: int | None = _read_count(count)
    except UNREADABLE:
        return None
    return tokens


def _call_id(request_id: str, index: int) -> str:
    """Short and plain, as every format takes it, and never the same for two calls of a conversation."""
    return "call_" + hashlib.sha256(f"{request_id}\n{index}".encode()).hexdigest()[:24]
