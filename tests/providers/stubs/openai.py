"""Answers in OpenAI's format, as the real servers write them, and the parts of the contract in it."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from contracts.provider_stage import (
    CACHED_TOKENS,
    KEY,
    RETRY_AFTER_S,
    SAID,
    THOUGHT,
    TIMEOUTS,
    TOOL_CALL,
    VECTORS,
    WORDS,
    Extra,
    Part,
    ScriptedStub,
    Stub,
    Troupe,
)
from providers.stubs.scripted import CUT, HANG, Reply

from headgate.core.ports.provider import Provider
from headgate.providers.openai import OpenAIOptions, OpenAIProvider
from headgate.transport import Transport

JSON: Final = {"Content-Type": "application/json"}
EVENTS: Final = {"Content-Type": "text/event-stream; charset=utf-8"}
USAGE: Final = {
    "prompt_tokens": 12,
    "completion_tokens": 4,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS, "audio_tokens": 0},
}
DONE: Final = b"data: [DONE]\n\n"


class OpenAIStub(ScriptedStub):
    """A scripted server whose address ends with the version path."""

    @property
    def url(self) -> str:
        return f"{super().url}/v1"


# ---- Bodies as the real servers write them ------------------------------------------------------------


def completion(message: Mapping[str, Any] | None = None, **changes: Any) -> Reply:
    """A whole chat completion."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": SAID, "refusal": None, **(message or {})},
        "logprobs": None,
        "finish_reason": "stop",
    }
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": "gpt-upstream-2026-01-01",
        "choices": [choice],
        "usage": USAGE,
        "system_fingerprint": "fp_1",
    }
    return whole({**body, **changes})


def with_extras() -> Reply:
    """Two choices with their log probabilities; the first thinks and calls a tool."""
    said: dict[str, Any] = {"role": "assistant", "content": SAID, "refusal": None, "annotations": []}
    tokens: list[Any] = [
        {"token": word, "logprob": -0.25, "bytes": None, "top_logprobs": []} for word in WORDS
    ]
    first = {**said, "reasoning_content": THOUGHT, "tool_calls": [TOOL_CALL]}
    choices = [
        {"index": index, "message": message, "logprobs": {"content": tokens}, "finish_reason": "stop"}
        for index, message in enumerate((first, said))
    ]
    return completion(choices=choices, service_tier="default")


def text_completion(text: str = SAID, **changes: Any) -> Reply:
    """An answer of the older kind."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
    body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return whole({**body, "usage": USAGE, **changes})


def embeddings(vectors: Iterable[Any] = VECTORS, **changes: Any) -> Reply:
    data = [
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return whole({"object": "list", "data": data, "model": "m", "usage": usage, **changes})


def whole(body: object, *, status: int = 200, headers: Mapping[str, str] = JSON) -> Reply:
    return Reply(json.dumps(body).encode(), status, headers)


def error(
    status: int,
    message: str = "It went wrong.",
    *,
    code: object = None,
    kind: str | None = "invalid_request_error",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return whole(body, status=status, headers={**JSON, **(headers or {})})


def event(
    delta: Mapping[str, Any] | None = None, *, finish_reason: str | None = None, **changes: Any
) -> bytes:
    """One event of a streamed chat completion."""
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish_reason}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-upstream"}
    return b"data: %b\n\n" % json.dumps({**body, "choices": [choice], **changes}).encode()


def events(*deltas: Mapping[str, Any], finish_reason: str = "stop", usage: bool = True) -> list[bytes]:
    """A whole stream: the role, the pieces, the end, the usage, and `[DONE]`."""
    return [
        event({"role": "assistant", "content": "", "refusal": None}, usage=None),
        *(event(delta, usage=None) for delta in deltas),
        event({}, finish_reason=finish_reason, usage=None),
        *([event(choices=[], usage=USAGE)] if usage else []),
        DONE,
    ]


def words(count: int = len(WORDS)) -> list[Mapping[str, Any]]:
    return [{"content": word} for word in WORDS[:count]]


def stream(pieces: Iterable[bytes], ending: str | None = None) -> Reply:
    return Reply(b"".join(pieces), headers=EVENTS, ending=ending)


# ---- The parts of the contract --------------------------------------------------------------------------

_OPENING: Final = events(*words(1))[:2]
_SERVER_ERROR: Final = {
    "message": "The server had an error",
    "type": "server_error",
    "param": None,
    "code": None,
}
_PARTS: Final[Mapping[Part, Callable[[], Reply]]] = {
    Part.ANSWER: completion,
    Part.EXTRAS: with_extras,
    Part.BLANK: lambda: completion({"content": ""}),
    Part.STREAM: lambda: stream(events(*words())),
    Part.EMBEDDINGS: embeddings,
    Part.THROTTLED: lambda: error(
        429,
        f"Rate limit reached for {KEY}",
        code="rate_limit_exceeded",
        kind="requests",
        headers={"Retry-After": f"{RETRY_AFTER_S:g}"},
    ),
    Part.OVERLOADED: lambda: error(503, f"The engine is overloaded for {KEY}", kind="server_error"),
    Part.UNAUTHORISED: lambda: error(401, f"Incorrect API key provided: {KEY}.", code="invalid_api_key"),
    Part.REJECTED: lambda: error(400, f"{KEY}: 'messages' is too short", code="context_length_exceeded"),
    Part.UNKNOWN_MODEL: lambda: error(404, "The model `x` does not exist", code="model_not_found"),
    Part.HTML: lambda: Reply(b"<html><h1>Log in</h1></html>", headers={"Content-Type": "text/html"}),
    Part.CUT_BODY: lambda: Reply(b'{"id": "chatcmpl-1", "choices": [{"mess', headers=JSON, ending=CUT),
    Part.CUT_STREAM: lambda: stream(_OPENING, CUT),
    Part.SHORT_STREAM: lambda: stream(_OPENING),
    Part.FAILING_STREAM: lambda: stream(
        [*_OPENING, b"data: %b\n\n" % json.dumps({"error": _SERVER_ERROR}).encode(), DONE]
    ),
    Part.SILENT: lambda: Reply(silent=True),
    Part.STALLING_STREAM: lambda: stream(_OPENING, HANG),
}


def _make_stub(part: Part) -> OpenAIStub:
    return OpenAIStub(_PARTS[part]())


def _make_provider(stub: Stub, transport: Transport) -> Provider:
    assert isinstance(stub, OpenAIStub)
    options = OpenAIOptions(base_url=stub.url, api_key=KEY)
    return OpenAIProvider(options, model="upstream-model", transport=transport, timeouts=TIMEOUTS)


TROUPE: Final = Troupe(
    make_stub=_make_stub,
    make_provider=_make_provider,
    extras=frozenset(Extra),
    extras_body=with_extras().body,
)
