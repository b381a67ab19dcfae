"""Answers in Anthropic's format, as its documentation shows them: messages, events, errors."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.provider_stage import (
    CACHED_TOKENS,
    KEY,
    RETRY_AFTER_S,
    SAID,
    THOUGHT,
    TIMEOUTS,
    TOOL_CALL,
    WORDS,
    Extra,
    Part,
    ScriptedStub,
    Stub,
    Troupe,
)
from providers.stubs.scripted import CUT, HANG, Reply

from headgate.core.ports.provider import Provider
from headgate.providers.anthropic import AnthropicOptions, AnthropicProvider
from headgate.transport import Transport

USAGE: Mapping[str, int] = {
    "input_tokens": 25,
    "cache_creation_input_tokens": 100,
    "cache_read_input_tokens": 1000,
    "output_tokens": 15,
}
TEXT_BLOCK: Mapping[str, Any] = {"type": "text", "text": "Hello!"}
TOOL_BLOCK: Mapping[str, Any] = {
    "type": "tool_use",
    "id": "toolu_01T1x1fJ34qAmk2tNTrN7Up6",
    "name": "get_weather",
    "input": {"location": "San Francisco, CA"},
}
THINKING_BLOCK: Mapping[str, Any] = {
    "type": "thinking",
    "thinking": THOUGHT,
    "signature": "EqQBCgIYAhIM",
}


def message(
    *content: Mapping[str, Any], stop_reason: str | None = "end_turn", **fields: Any
) -> dict[str, Any]:
    return {
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "content": list(content),
        "model": "claude-test",
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": USAGE,
        **fields,
    }


def whole(body: Any, **reply: Any) -> Reply:
    headers = {"content-type": "application/json", "request-id": "req_018EeWyXxfu5pfWkrYcMdjWG"}
    return Reply(json.dumps(body).encode(), headers=headers | reply.pop("headers", {}), **reply)


def said(*content: Mapping[str, Any], stop_reason: str | None = "end_turn", **fields: Any) -> Reply:
    return whole(message(*content, stop_reason=stop_reason, **fields))


def error_body(kind: str, text: str = "it went wrong", error_code: str | None = None) -> dict[str, Any]:
    error: dict[str, Any] = {"type": kind, "message": text}
    if error_code is not None:
        error["details"] = {"error_code": error_code}
    return {"type": "error", "error": error, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}


def error(status: int, kind: str, text: str = "it went wrong", **more: Any) -> Reply:
    return whole(error_body(kind, text, more.pop("error_code", None)), status=status, **more)


def events(*data: Mapping[str, Any], **reply: Any) -> Reply:
    body = b"".join(
        b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in data
    )
    return Reply(body, headers={"content-type": "text/event-stream; charset=utf-8"}, **reply)


PING: Mapping[str, Any] = {"type": "ping"}
STOP: Mapping[str, Any] = {"type": "message_stop"}
START: Mapping[str, Any] = {
    "type": "message_start",
    "message": message(stop_reason=None, usage={**USAGE, "output_tokens": 1}),
}


def block(index: int, start: Mapping[str, Any], *deltas: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """A content block from its start to its stop."""
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_block(index: int, *texts: str) -> Sequence[Mapping[str, Any]]:
    return block(
        index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": text} for text in texts)
    )


def tool_block(index: int, tool_id: str, name: str, *pieces: str) -> Sequence[Mapping[str, Any]]:
    start = {"type": "tool_use", "id": tool_id, "name": name, "input": {}}
    return block(index, start, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def thinking_block(index: int) -> Sequence[Mapping[str, Any]]:
    return block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see…"},
        {"type": "signature_delta", "signature": "EqQBCgIYAhIM"},
    )


def ending(stop_reason: str = "end_turn", **delta: Any) -> Sequence[Mapping[str, Any]]:
    told = {"stop_reason": stop_reason, "stop_sequence": None, **delta}
    return [{"type": "message_delta", "delta": told, "usage": {"output_tokens": 15}}, STOP]


_QUOTED = f"this is about {KEY}"
_BEGUN = (START, PING, *text_block(0, WORDS[0])[:-1])
_SAID = {"type": "text", "text": SAID}
_CALLED = TOOL_CALL["function"]
_TOOL_USE = {**TOOL_BLOCK, "name": _CALLED["name"], "input": json.loads(_CALLED["arguments"])}
_PARTS: Mapping[Part, Reply] = {
    Part.ANSWER: said(_SAID),
    Part.EXTRAS: said(
        THINKING_BLOCK, _SAID, _TOOL_USE, usage={**USAGE, "cache_read_input_tokens": CACHED_TOKENS}
    ),
    Part.BLANK: said(),
    Part.STREAM: events(START, *text_block(0, *WORDS), *ending()),
    Part.THROTTLED: error(429, "rate_limit_error", _QUOTED, headers={"retry-after": str(RETRY_AFTER_S)}),
    Part.OVERLOADED: error(503, "api_error", _QUOTED),
    Part.UNAUTHORISED: error(401, "authentication_error", _QUOTED),
    Part.REJECTED: error(400, "invalid_request_error", _QUOTED),
    Part.UNKNOWN_MODEL: error(404, "not_found_error", "model: claude-test"),
    Part.HTML: Reply(b"<html>Please log in</html>", headers={"content-type": "text/html"}),
    Part.CUT_BODY: Reply(b'{"type": "mess', headers={"content-type": "application/json"}, ending=CUT),
    Part.CUT_STREAM: events(*_BEGUN, ending=CUT),
    Part.SHORT_STREAM: events(*_BEGUN),
    Part.FAILING_STREAM: events(*_BEGUN, error_body("api_error", "Internal server error")),
    Part.SILENT: Reply(silent=True),
    Part.STALLING_STREAM: events(*_BEGUN, ending=HANG),
}


def _provider(stub: Stub, transport: Transport) -> Provider:
    assert isinstance(stub, ScriptedStub)
    options = AnthropicOptions(base_url=stub.url, api_key=KEY)
    return AnthropicProvider(options, model="claude-test", transport=transport, timeouts=TIMEOUTS)


TROUPE = Troupe(
    make_stub=lambda part: ScriptedStub(_PARTS[part]),
    make_provider=_provider,
    cannot=frozenset({Part.EMBEDDINGS}),
    extras=frozenset({Extra.TOOL_CALLS, Extra.REASONING, Extra.USAGE_DETAILS}),
)
