"""A reply as it is kept under its idempotency key: JSON, so that a look into the table shows the answer itself."""

from typing import Any, Final

import msgspec

from headgate.core.answer import Reply, Usage

_NOTHING: Final = msgspec.Raw()
_LEFT_OUT: Final = frozenset({"body", "flaw"})


class _Stored(msgspec.Struct, kw_only=True, omit_defaults=True):
    request_id: str
    model: str
    upstream: str
    usage: Usage
    body: msgspec.Raw = _NOTHING
    """Of a whole answer."""
    events: str | None = None
    """Of a stream, and whatever else is text."""
    octets: bytes | None = None
    """What is not UTF-8."""
    finish_reason: str | None = None
    attempts: int = 1
    latency_ms: float = 0.0
    queue_ms: float = 0.0
    upstream_ms: float = 0.0
    cost_usd: float | None = None
    content: str | None = None
    """Until 0.2 the library's replies were kept by their parts."""
    tool_calls: list[dict[str, Any]] = []
    refusal: str | None = None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Stored).decode
_decode_older: Final = msgspec.msgpack.Decoder(Reply).decode


def encode_reply(reply: Reply) -> bytes:
    parts: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(reply).items() if name not in _LEFT_OUT
    }
    # White space around it would be lost.
    if reply.body.startswith(b"{") and reply.body.endswith(b"}"):
        parts["body"] = msgspec.Raw(reply.body)
    else:
        try:
            parts["events"] = reply.body.decode()
        except UnicodeDecodeError:
            parts["octets"] = reply.body
    return _encode(parts)


def decode_reply(data: bytes) -> Reply:
    if not data.startswith(b"{"):
        return _decode_older(data)
    stored = _decode(data)
    return Reply(
        body=_body(stored),
        usage=stored.usage,
        finish_reason=stored.finish_reason,
        request_id=stored.request_id,
        model=stored.model,
        upstream=stored.upstream,
        attempts=stored.attempts,
        latency_ms=stored.latency_ms,
        queue_ms=stored.queue_ms,
        upstream_ms=stored.upstream_ms,
        cost_usd=stored.cost_usd,
    )


def _body(stored: _Stored) -> bytes:
    if len(stored.body):
        return bytes(stored.body)
    if stored.events is not None:
        return stored.events.encode()
    if stored.octets is not None:
        return stored.octets
    message: dict[str, Any] = {"role": "assistant", "content": stored.content, "refusal": stored.refusal}
    if stored.tool_calls:
        message["tool_calls"] = stored.tool_calls
    choice = {"index": 0, "message": message, "finish_reason": stored.finish_reason}
    return _encode({"object": "chat.completion", "model": stored.model, "choices": [choice]})
