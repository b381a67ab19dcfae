"""Answers in Ollama's format, as its documentation shows them (docs.ollama.com/api): lines, errors, vectors."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.provider_stage import (
    KEY,
    RETRY_AFTER_S,
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
from headgate.providers.ollama import OllamaOptions, OllamaProvider
from headgate.transport import Transport

NDJSON = {"content-type": "application/x-ndjson"}
# The documented examples: streaming a chat, its last line, a tool call, an error in the middle, embeddings.
FIRST_LINE = """{"model":"llama3.2","created_at":"2023-08-04T08:52:19.385406455-07:00",
"message":{"role":"assistant","content":"The","images":null},"done":false}"""
LAST_LINE = """{"model":"llama3.2","created_at":"2023-08-04T19:22:45.499127Z","done":true,
"total_duration":4883583458,"load_duration":1334875,"prompt_eval_count":26,"prompt_eval_duration":342546000,
"eval_count":282,"eval_duration":4535599000}"""
TOOL_LINE = """{"model":"llama3.2","created_at":"2024-07-22T20:33:28.123648Z",
"message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"get_current_weather",
"arguments":{"format":"celsius","location":"Paris, FR"}}}]},"done_reason":"stop","done":true,
"total_duration":885095291,"load_duration":3753500,"prompt_eval_count":122,"prompt_eval_duration":328493000,
"eval_count":33,"eval_duration":552222000}"""
ERROR_LINE = """{"error":"an error was encountered while running the model"}"""
EMBEDDED = """{"model":"all-minilm","embeddings":[[0.010071029,-0.0017594862,0.05007221],
[-0.0098027075,0.06042469,0.025257962]],"total_duration":14143917,"load_duration":1019500,"prompt_eval_count":8}"""


def documented(*lines: str, **reply: Any) -> Reply:
    """Examples from the documentation, each put on a line of its own."""
    return Reply(b"".join(line.replace("\n", "").encode() + b"\n" for line in lines), headers=NDJSON, **reply)


def line(content: str = "", *, done: bool = False, **fields: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": content, **fields.pop("message", {})}
    return {
        "model": "gemma3:4b",
        "created_at": "2026-01-01T00:00:00Z",
        "message": said,
        "done": done,
        **fields,
    }


def last(reason: str | None = "stop", **fields: Any) -> dict[str, Any]:
    counts = {"prompt_eval_count": 26, "eval_count": 282}
    return line(done=True, **({"done_reason": reason} if reason else {}), **(counts | fields))


def calls(*functions: tuple[str, Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    """A line with tool calls, without ids, as servers before 0.12 send them."""
    told = [{"function": {"name": name, "arguments": arguments}} for name, arguments in functions]
    return line(message={"tool_calls": told}, **fields)


def lines(*told: Mapping[str, Any], **reply: Any) -> Reply:
    return Reply(b"".join(json.dumps(one).encode() + b"\n" for one in told), headers=NDJSON, **reply)


def error(status: int, text: str = "it went wrong", headers: Mapping[str, str] | None = None) -> Reply:
    sent = {"content-type": "application/json; charset=utf-8", **(headers or {})}
    return Reply(json.dumps({"error": text}).encode(), status=status, headers=sent)


def vectors(*embedded: Sequence[Any] | None, **fields: Any) -> Reply:
    body = {"model": "all-minilm", "embeddings": embedded, "prompt_eval_count": 8, **fields}
    return Reply(json.dumps(body).encode(), headers={"content-type": "application/json"})


_QUOTED = f"this is about {KEY}"
_BEGUN = line(WORDS[0])
_WHOLE = lines(*(line(word) for word in WORDS), last())
_CALLED = TOOL_CALL["function"]
_EXTRAS = lines(
    line(message={"thinking": THOUGHT}),
    *(line(word) for word in WORDS),
    calls((_CALLED["name"], json.loads(_CALLED["arguments"]))),
    last(),
)
_PARTS: Mapping[Part, Reply] = {
    Part.ANSWER: _WHOLE,
    Part.EXTRAS: _EXTRAS,
    Part.BLANK: lines(last()),
    Part.STREAM: _WHOLE,
    Part.EMBEDDINGS: vectors(*VECTORS),
    Part.THROTTLED: error(429, _QUOTED, headers={"retry-after": str(RETRY_AFTER_S)}),
    Part.OVERLOADED: error(503, _QUOTED),
    Part.UNAUTHORISED: error(401, _QUOTED),
    Part.REJECTED: error(400, _QUOTED),
    Part.UNKNOWN_MODEL: error(404, "model 'gemma3:4b' not found"),
    Part.HTML: Reply(b"<html>Please log in</html>", headers={"content-type": "text/html"}),
    Part.CUT_BODY: Reply(b'{"model": "gem', headers=NDJSON, ending=CUT),
    Part.CUT_STREAM: lines(_BEGUN, ending=CUT),
    Part.SHORT_STREAM: lines(_BEGUN),
    Part.FAILING_STREAM: lines(_BEGUN, {"error": "an error was encountered while running the model"}),
    Part.SILENT: Reply(silent=True),
    Part.STALLING_STREAM: lines(_BEGUN, ending=HANG),
}


def _provider(stub: Stub, transport: Transport) -> Provider:
    assert isinstance(stub, ScriptedStub)
    options = OllamaOptions(base_url=stub.url, headers={"authorization": f"Bearer {KEY}"})
    return OllamaProvider(options, model="gemma3:4b", transport=transport, timeouts=TIMEOUTS)


TROUPE = Troupe(
    make_stub=lambda part: ScriptedStub(_PARTS[part]),
    make_provider=_provider,
    extras=frozenset({Extra.TOOL_CALLS, Extra.REASONING}),
)
