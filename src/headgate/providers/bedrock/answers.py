"""The answer of Converse, turned into our own. Reasoning is no content."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from headgate.core.messages import Answer, Usage
from headgate.providers.bedrock.errors import decoded, malformed
from headgate.providers.bedrock.shapes import Block, Converse, TokenUsage, ToolUse
from headgate.providers.exchange import read_counts

_FINISH: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
_read_counts = msgspec.json.Decoder(TokenUsage | None).decode
_MALFORMED: Final = frozenset({"malformed_model_output", "malformed_tool_use"})


def read_answer(body: bytes, host: str) -> Answer:
    said = decoded(body, Converse, host)
    blocks = said.output.message.content
    return Answer(
        content="".join(_texts(blocks)) or None,
        tool_calls=[
            _tool_call(block.tool_use) for block in blocks if block.tool_use and not block.tool_use.type
        ],
        finish_reason=finish_reason(said.stop_reason, host),
        usage=read_usage(said.usage),
    )


def finish_reason(stop_reason: str | None, host: str) -> str | None:
    """In OpenAI's words; what nobody knows yet is passed on as it is."""
    if stop_reason is None:
        return None
    if stop_reason in _MALFORMED:
        raise malformed(host, stop_reason)
    return _FINISH.get(stop_reason, stop_reason)


def read_usage(raw: msgspec.Raw) -> Usage | None:
    """What came from the prompt cache is input, too: Bedrock only counts it apart."""
    usage = read_counts(raw, _read_counts)
    if usage is None:
        return None
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_write_input_tokens or 0)
    return Usage(usage.input_tokens + cached, usage.output_tokens)


def _texts(blocks: Iterable[Block]) -> Iterable[str]:
    for block in blocks:
        if block.text:
            yield block.text
        if block.citations_content is not None:
            yield from (piece.text for piece in block.citations_content.content if piece.text)


def _tool_call(call: ToolUse) -> dict[str, Any]:
    arguments = msgspec.json.encode({} if call.input is None else call.input).decode()
    return {
        "id": call.tool_use_id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
