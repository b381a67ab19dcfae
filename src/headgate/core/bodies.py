"""Answers in OpenAI's shapes: the form in which the built-in tasks and the HTTP routes give them."""

from collections.abc import Sequence
from typing import Any

from headgate.core.embeddings import Vector
from headgate.core.messages import Answer, Chunk, Reply, Usage


def completion_body(reply: Reply, *, created: float) -> dict[str, Any]:
    """A chat completion out of a reply."""
    return answer_body(reply, reply.usage, request_id=reply.request_id, model=reply.model, created=created)


def answer_body(
    answer: Answer | Reply, usage: Usage, *, request_id: str, model: str, created: float
) -> dict[str, Any]:
    """A chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.refusal is not None:
        message["refusal"] = answer.refusal
    if answer.tool_calls:
        message["tool_calls"] = list(answer.tool_calls)
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason or "stop"}
    return {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": int(created),
        "model": model,
        "choices": [choice],
        "usage": _usage(usage),
    }


def text_body(answer: Answer, usage: Usage, *, request_id: str, model: str, created: float) -> dict[str, Any]:
    """A completion of the older kind, which is only text."""
    choice = {
        "index": 0,
        "text": answer.content or "",
        "logprobs": None,
        "finish_reason": answer.finish_reason or "stop",
    }
    return {
        "id": f"cmpl-{request_id}",
        "object": "text_completion",
        "created": int(created),
        "model": model,
        "choices": [choice],
        "usage": _usage(usage),
    }


def chunk_body(chunk: Chunk, *, request_id: str, model: str, created: float, first: bool) -> dict[str, Any]:
    """A piece of a streamed chat completion. One with nothing but usage has no choices."""
    delta: dict[str, Any] = {"role": "assistant"} if first else {}
    if chunk.text:
        delta["content"] = chunk.text
    if chunk.refusal is not None:
        delta["refusal"] = chunk.refusal
    if chunk.tool_calls:
        delta["tool_calls"] = list(chunk.tool_calls)
    choice = {"index": 0, "delta": delta, "finish_reason": chunk.finish_reason}
    return _chunk("chatcmpl", "chat.completion.chunk", chunk, choice, request_id, model, created)


def text_chunk_body(
    chunk: Chunk,
    *,
    request_id: str,
    model: str,
    created: float,
    first: bool,  # noqa: ARG001 - pieces of text all look alike
) -> dict[str, Any]:
    choice = {"index": 0, "text": chunk.text, "logprobs": None, "finish_reason": chunk.finish_reason}
    return _chunk("cmpl", "text_completion", chunk, choice, request_id, model, created)


def embeddings_body(vectors: Sequence[Vector], usage: Usage, *, model: str) -> dict[str, Any]:
    """A list of embeddings."""
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": list(vector)}
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": usage.input_tokens, "total_tokens": usage.total_tokens},
    }


def _chunk(
    prefix: str,
    kind: str,
    chunk: Chunk,
    choice: dict[str, Any],
    request_id: str,
    model: str,
    created: float,
) -> dict[str, Any]:
    says = chunk.has_content or chunk.finish_reason is not None
    body: dict[str, Any] = {
        "id": f"{prefix}-{request_id}",
        "object": kind,
        "created": int(created),
        "model": model,
        "choices": [choice] if says else [],
    }
    if not says and chunk.usage is not None:
        body["usage"] = _usage(chunk.usage)
    return body


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
