"""Replies in OpenAI's shapes: the form in which the built-in tasks and the HTTP routes answer."""

from typing import Any

from headgate.core.embeddings import EmbeddingReply
from headgate.core.messages import Reply


def completion_body(reply: Reply, *, created: float) -> dict[str, Any]:
    """A chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.refusal is not None:
        message["refusal"] = reply.refusal
    if reply.tool_calls:
        message["tool_calls"] = list(reply.tool_calls)
    return {
        "id": f"chatcmpl-{reply.request_id}",
        "object": "chat.completion",
        "created": int(created),
        "model": reply.model,
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason or "stop"}],
        "usage": {
            "prompt_tokens": reply.usage.input_tokens,
            "completion_tokens": reply.usage.output_tokens,
            "total_tokens": reply.usage.total_tokens,
        },
    }


def embeddings_body(reply: EmbeddingReply) -> dict[str, Any]:
    """A list of embeddings."""
    return {
        "object": "list",
        "model": reply.model,
        "data": [
            {"object": "embedding", "index": index, "embedding": list(vector)}
            for index, vector in enumerate(reply.vectors)
        ],
        "usage": {"prompt_tokens": reply.usage.input_tokens, "total_tokens": reply.usage.total_tokens},
    }
