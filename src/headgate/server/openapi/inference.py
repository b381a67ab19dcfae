"""The routes that ask models, in the OpenAPI document."""

from typing import Any, Final

from headgate.server.openapi.shapes import (
    EVENT,
    FLAG,
    IN_HEADER,
    KEY,
    NAMED,
    SOME_TEXT,
    TEXT,
    TIMEOUT,
    WAIT,
    WHOLE,
    Json,
    a_list,
    an_object,
    as_json,
    failures,
    look,
    parameter,
    ref,
)

_ONE_TEXT: Final = {"anyOf": [SOME_TEXT, a_list(SOME_TEXT, minItems=1, maxItems=1)]}
_SOME_TEXTS: Final = {"anyOf": [SOME_TEXT, a_list(SOME_TEXT, minItems=1, maxItems=2048)]}
_USAGE: Final = an_object(prompt_tokens=WHOLE, completion_tokens=WHOLE, total_tokens=WHOLE)
_MESSAGE: Final = an_object(
    ("role",), role=TEXT, content={"anyOf": [TEXT, {"type": "null"}, a_list({"type": "object"})]}
)
SCHEMAS: Final = {
    "Chat": an_object(
        ("model", "messages"),
        model=NAMED,
        messages=a_list(_MESSAGE, minItems=1),
        stream=FLAG,
        service_tier=TEXT,
    ),
    "Completion": an_object(
        ("id", "object", "choices"),
        id=TEXT,
        object=TEXT,
        created=WHOLE,
        model=TEXT,
        choices=a_list({"type": "object"}),
        usage=_USAGE,
    ),
    "Prompt": an_object(("model", "prompt"), model=NAMED, prompt=_ONE_TEXT, stream=FLAG),
    "Texts": an_object(("model", "input"), model=NAMED, input=_SOME_TEXTS),
    "Embeddings": an_object(
        ("object", "data"),
        object={"const": "list"},
        model=TEXT,
        data=a_list({"type": "object"}),
        usage=_USAGE,
    ),
    "Models": an_object(("object", "data"), object={"const": "list"}, data=a_list(ref("Model"))),
    "Model": an_object(("id", "object"), id=TEXT, object={"const": "model"}, created=WHOLE, owned_by=TEXT),
}
_LANES: Final = {"type": "string", "enum": ["interactive", "batch"]}
_HEADERS: Final = [
    parameter("X-Headgate-Lane", _LANES, "Which line to wait in.", where="header"),
    TIMEOUT,
    WAIT,
    parameter("X-Headgate-Agent", IN_HEADER, "Who asks, for the logs.", where="header"),
    KEY,
]
_NAME: Final = parameter("name", SOME_TEXT, where="path")


def paths() -> Json:
    return {
        "/v1/chat/completions": _ask("Ask a model", "Chat", "Completion", streams=True),
        "/v1/completions": _ask("Complete a text", "Prompt", "Completion", streams=True),
        "/v1/embeddings": _ask("Embed texts", "Texts", "Embeddings", streams=False),
        "/v1/models": look("The models there are", "Models"),
        "/v1/models/{name}": look("One model", "Model", _NAME),
    }


def _ask(summary: str, request: str, answer: str, *, streams: bool) -> dict[str, Any]:
    given = as_json(ref(answer), "The answer.")
    if streams:
        given["content"]["text/event-stream"] = {"schema": EVENT}
    return {
        "post": {
            "summary": summary,
            "parameters": _HEADERS,
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": ref(request)}},
            },
            "responses": {
                "200": given,
                "202": as_json(ref("Job"), "With `Prefer: respond-async`: the job, found again at Location."),
                **failures(),
            },
        }
    }
