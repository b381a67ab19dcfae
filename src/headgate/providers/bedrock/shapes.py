"""What Bedrock sends: answers, events of a stream and errors, as far as we read them. The rest is passed over."""

from typing import Any, Final

import msgspec

from headgate.core.messages import Tokens

NULL: Final = msgspec.Raw(b"null")


class _Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Names in Bedrock's own spelling; any field may be missing or null."""


class TokenUsage(_Shape, frozen=True):
    """`input_tokens` leaves out what came from or went into the prompt cache."""

    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cache_read_input_tokens: Tokens | None = None
    cache_write_input_tokens: Tokens | None = None


class ToolUse(_Shape, frozen=True):
    """A tool call. One with a type is run by Bedrock itself and none of the caller's business."""

    tool_use_id: str = ""
    name: str = ""
    input: Any = None
    type: str | None = None


class CitedText(_Shape, frozen=True):
    """A piece of an answer that has sources."""

    text: str | None = None


class Citations(_Shape, frozen=True):
    """Text with its sources."""

    content: list[CitedText] = []


class Block(_Shape, frozen=True):
    """One part of an answer. Reasoning, images and the results of Bedrock's own tools are none we pass on."""

    text: str | None = None
    tool_use: ToolUse | None = None
    citations_content: Citations | None = None


class ModelMessage(_Shape, frozen=True):
    """The model's turn."""

    content: list[Block]


class Output(_Shape, frozen=True):
    """The wrapper around it."""

    message: ModelMessage


class Converse(_Shape, frozen=True):
    """The answer of Converse."""

    output: Output
    stop_reason: str | None = None
    usage: msgspec.Raw = NULL


class BlockStart(_Shape, frozen=True):
    """How a block of a stream begins; text has no such beginning."""

    tool_use: ToolUse | None = None


class ContentBlockStart(_Shape, frozen=True):
    """The event `contentBlockStart`."""

    start: BlockStart
    content_block_index: int


class ToolInput(_Shape, frozen=True):
    """A piece of a tool call's JSON."""

    input: str = ""


class BlockDelta(_Shape, frozen=True):
    """A piece of a block; of reasoning only that it came is of interest."""

    text: str | None = None
    reasoning_content: Any = None
    tool_use: ToolInput | None = None


class ContentBlockDelta(_Shape, frozen=True):
    """The event `contentBlockDelta`."""

    delta: BlockDelta
    content_block_index: int


class ContentBlockStop(_Shape, frozen=True):
    """The event `contentBlockStop`."""

    content_block_index: int


class MessageStop(_Shape, frozen=True):
    """The event `messageStop`: the answer is whole."""

    stop_reason: str


class Metadata(_Shape, frozen=True):
    """The event `metadata`, the last one."""

    usage: msgspec.Raw = NULL


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error, in the spellings of Bedrock, its front doors and the services before them."""

    type: str | None = msgspec.field(default=None, name="__type")
    code: str | None = None
    message: str | None = None
    capital_message: str | None = msgspec.field(default=None, name="Message")


class TitanEmbedding(_Shape, frozen=True):
    """Titan embeds one text per call."""

    embedding: list[float]
    input_text_token_count: msgspec.Raw = NULL


class CohereVectors(msgspec.Struct, frozen=True):
    """Vectors by their number format, when formats were asked for."""

    floats: list[list[float]] = msgspec.field(name="float")


class CohereEmbeddings(msgspec.Struct, frozen=True):
    """Cohere embeds a list; tokens are only counted in a header."""

    embeddings: list[list[float]] | CohereVectors
