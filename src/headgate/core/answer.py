"""What a provider answered: the body as the caller gets it, and the little that was read from it, once."""

import base64
import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec

from headgate.core.call import MAX_TOKENS

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
"""A count of tokens in a provider's answer. An impossible one makes the usage unknown, never the answer wrong."""
Vector = Sequence[float]
UNREASONED: Final = frozenset({None, "", "stop"})
"""Finish reasons that do not explain why there is no content."""
BLANK: Final = "the answer is blank"
"""The flaw of one without content, tool call or refusal, and without a reason for it."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the provider counted them; `estimated` when it did not say."""

    input_tokens: int
    output_tokens: int
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Answer(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A whole answer in the caller's format. What is inside the body is read when it is first asked for."""

    body: bytes
    usage: Usage | None = None
    flaw: str | None = None
    """Why it cannot be used: it is blank, or a vector is missing."""
    finish_reason: str | None = None
    """Of the first choice."""

    @property
    def blank(self) -> bool:
        return self.flaw is not None

    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)

    @cached_property
    def message(self) -> Mapping[str, Any]:
        """The message of the first choice, with all that the provider said in it."""
        choice = _read_choices(self.body).choices[0]
        return choice.message if choice.text is None else {"content": choice.text}

    @property
    def content(self) -> str | None:
        return text_of(self.message.get("content"))

    @property
    def tool_calls(self) -> Sequence[Mapping[str, Any]]:
        return tool_calls_of(self.message.get("tool_calls"), self.message.get("function_call"))

    @property
    def refusal(self) -> str | None:
        return self.message.get("refusal")

    @property
    def reasoning(self) -> str | None:
        """What the model thought, where its provider tells."""
        return self.message.get("reasoning_content") or self.message.get("reasoning")

    @cached_property
    def vectors(self) -> Sequence[Vector]:
        """The embeddings, one per text in the order of the request, whatever order they came in."""
        items = sorted(_read_vectors(self.body).data, key=lambda item: item.index or 0)
        return [_vector(item.embedding) for item in items]


class Reply(Answer, frozen=True, kw_only=True, dict=True):
    """An answer with its story: which upstream gave it, after how many attempts and how long."""

    request_id: str
    model: str
    upstream: str
    usage: Usage
    attempts: int = 1
    latency_ms: float = 0.0
    queue_ms: float = 0.0
    upstream_ms: float = 0.0
    """With providers, and between attempts."""
    cost_usd: float | None = None
    """None when the price is not known."""
    replayed: bool = False
    """Returned again under its idempotency key: no provider was called for it this time."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a streamed answer. A piece without content (role, usage, finish) commits to nothing."""

    text: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    refusal: str | None = None
    reasoning: str = ""
    thinking_blocks: Sequence[Mapping[str, Any]] = ()
    """Reasoning as Anthropic writes it, with the signatures that it wants back."""
    finish_reason: str | None = None
    usage: Usage | None = None

    @property
    def has_content(self) -> bool:
        return bool(self.text or self.tool_calls or self.refusal)


# ---- Reading the hub's format -------------------------------------------------------------------------------

Content = str | list[dict[str, Any]] | None
"""Text, or parts of which those with text count (Mistral answers so when it thinks)."""


class _Choice(msgspec.Struct):
    message: dict[str, Any] = {}
    text: str | None = None


class _Choices(msgspec.Struct):
    choices: list[_Choice]


class _Item(msgspec.Struct):
    embedding: msgspec.Raw
    index: int | None = None


class _Items(msgspec.Struct):
    data: list[_Item]


_read_choices: Final = msgspec.json.Decoder(_Choices).decode
_read_vectors: Final = msgspec.json.Decoder(_Items).decode
_read_vector: Final = msgspec.json.Decoder(list[float] | str).decode


def text_of(content: Content) -> str | None:
    if content is None or isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if isinstance(part.get("text"), str))


def tool_calls_of(
    tool_calls: list[dict[str, Any]] | None, function_call: dict[str, Any] | None
) -> Sequence[Mapping[str, Any]]:
    """Tool calls; the one function call of the older format becomes one."""
    if function_call and not tool_calls:
        return [{"index": 0, "id": "", "type": "function", "function": function_call}]
    return tool_calls or ()


def _vector(raw: msgspec.Raw) -> Vector:
    """Numbers, or the little-endian floats of `encoding_format: base64`."""
    embedding = _read_vector(raw)
    if isinstance(embedding, list):
        return embedding
    data = base64.b64decode(embedding, validate=True)
    return struct.unpack(f"<{len(data) // 4}f", data)
