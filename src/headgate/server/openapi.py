"""The OpenAPI document, served at `/openapi.json`: what the routes take and give, for people and for checks."""

from collections.abc import Mapping
from typing import Any, Final

from headgate.core.job import JobState
from headgate.server.errors import STATUS_BY_CODE

_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_FLAG: Final = {"type": "boolean"}
_ERRORS: Final = tuple(
    sorted({str(status) for status in STATUS_BY_CODE.values()} - {"500"} | {"408", "417", "431"})
)


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(of: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(of)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": dict(schema)}}}


_ERROR: Final = _object(
    ("error",),
    error={
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {
            "message": _TEXT,
            "type": _TEXT,
            "param": {"type": ["string", "null"]},
            "code": {"type": "string", "enum": sorted({*STATUS_BY_CODE, "too_many_connections"})},
        },
    },
)
_USAGE: Final = _object(prompt_tokens=_WHOLE, completion_tokens=_WHOLE, total_tokens=_WHOLE)
_MODEL: Final = _object(("id", "object"), id=_TEXT, object={"const": "model"}, created=_WHOLE, owned_by=_TEXT)
_GATE: Final = {
    "rt_queue": _WHOLE,
    "be_queue": _WHOLE,
    "total_slots": _WHOLE,
    "available_slots": _WHOLE,
    "accepting": _FLAG,
    "max_queue_depth": _WHOLE,
}
_NAMED: Final = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
_SOME_TEXT: Final = {"type": "string", "minLength": 1}
_ONE_TEXT: Final = {"anyOf": [_SOME_TEXT, {**_list(_SOME_TEXT), "minItems": 1, "maxItems": 1}]}
_SOME_TEXTS: Final = {"anyOf": [_SOME_TEXT, {**_list(_SOME_TEXT), "minItems": 1, "maxItems": 2048}]}
_EVENT: Final = _object(("data",), event=_TEXT, data=_TEXT)
_MESSAGE: Final = _object(
    ("role",),
    role=_TEXT,
    content={"anyOf": [_TEXT, {"type": "null"}, _list({"type": "object"})]},
)
_SCHEMAS: Final = {
    "Error": _ERROR,
    "Chat": _object(
        ("model", "messages"),
        model=_NAMED,
        messages={**_list(_MESSAGE), "minItems": 1},
        stream=_FLAG,
        service_tier=_TEXT,
    ),
    "Completion": _object(
        ("id", "object", "choices"),
        id=_TEXT,
        object=_TEXT,
        created=_WHOLE,
        model=_TEXT,
        choices=_list({"type": "object"}),
        usage=_USAGE,
    ),
    "Prompt": _object(("model", "prompt"), model=_NAMED, prompt=_ONE_TEXT, stream=_FLAG),
    "Texts": _object(("model", "input"), model=_NAMED, input=_SOME_TEXTS),
    "Embeddings": _object(
        ("object", "data"),
        object={"const": "list"},
        model=_TEXT,
        data=_list({"type": "object"}),
        usage=_USAGE,
    ),
    "Models": _object(("object", "data"), object={"const": "list"}, data=_list(_ref("Model"))),
    "Model": _MODEL,
    "Status": _object(
        (*_GATE, "upstreams"),
        **_GATE,
        upstreams=_list(_object((*_GATE, "model", "upstream"), model=_TEXT, upstream=_TEXT, **_GATE)),
    ),
    "Job": _object(
        ("id", "task", "state", "result", "error"),
        id=_TEXT,
        task=_TEXT,
        state={"type": "string", "enum": [state.value for state in JobState]},
        error={"type": ["string", "null"]},
    ),
    "Live": _object(("status",), status=_TEXT),
    "Ready": _object(("status", "database"), status=_TEXT, database=_TEXT),
}
_HEADERS: Final = [
    {"name": name, "in": "header", "required": False, "schema": schema, "description": description}
    for name, schema, description in (
        ("X-Headgate-Lane", {"type": "string", "enum": ["interactive", "batch"]}, "Which line to wait in."),
        (
            "X-Headgate-Timeout",
            {"type": "number", "exclusiveMinimum": 0},
            "The deadline over everything, in seconds.",
        ),
        ("X-Headgate-Agent", {"type": "string", "minLength": 1, "maxLength": 255}, "Who asks, for the logs."),
        (
            "Idempotency-Key",
            {"type": "string", "minLength": 1, "maxLength": 255},
            "Same key, same answer, one call.",
        ),
    )
]


def _failures() -> dict[str, Any]:
    return {status: _json(_ref("Error"), "An error, in OpenAI's shape.") for status in _ERRORS}


def _inference(summary: str, request: str, answer: str, *, streams: bool) -> dict[str, Any]:
    given = _json(_ref(answer), "The answer.")
    if streams:
        given["content"]["text/event-stream"] = {"schema": _EVENT}
    return {
        "post": {
            "summary": summary,
            "parameters": _HEADERS,
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _ref(request)}},
            },
            "responses": {
                "200": given,
                "202": _json(_ref("Job"), "With `Prefer: respond-async`: the job, found again at Location."),
                **_failures(),
            },
        }
    }


def _look(
    summary: str, schema: str, *parameters: Mapping[str, Any], also: str | None = None
) -> dict[str, Any]:
    answers = {"200": _json(_ref(schema), "As it is now.")}
    if also is not None:
        answers[also] = _json(_ref(schema), "As it is now.")
    return {
        "get": {
            "summary": summary,
            "parameters": [dict(parameter) for parameter in parameters],
            "responses": {**_failures(), **answers},
        }
    }


def _tell(summary: str, kind: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    given = {"description": "As it is now.", "content": {kind: {"schema": dict(schema)}}}
    return {"get": {"summary": summary, "responses": {**_failures(), "200": given}}}


_JOB_ID: Final = {"name": "job_id", "in": "path", "required": True, "schema": _NAMED}
_NAME: Final = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def document(version: str) -> dict[str, Any]:
    """Everything in force."""
    health = _look("Is the process alive?", "Live")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headgate",
            "version": version,
            "description": "Dependable LLM calls. Unknown fields of a body pass to the provider untouched.",
        },
        "paths": {
            "/v1/chat/completions": _inference("Ask a model", "Chat", "Completion", streams=True),
            "/v1/completions": _inference("Complete a text", "Prompt", "Completion", streams=True),
            "/v1/embeddings": _inference("Embed texts", "Texts", "Embeddings", streams=False),
            "/v1/models": _look("The models there are", "Models"),
            "/v1/models/{name}": _look("One model", "Model", _NAME),
            "/v1/jobs/{job_id}": _look("One job of the caller's tenant", "Job", _JOB_ID),
            "/queue/status": _look("Queues and slots", "Status"),
            "/metrics": _tell("Numbers for Prometheus", "text/plain", _TEXT),
            "/openapi.json": _tell("This document", "application/json", _object(("openapi", "paths"))),
            "/health/live": health,
            "/health": health,
            "/api/v1/health": health,
            "/health/ready": _look("Send traffic here?", "Ready", also="503"),
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }
