"""Pauses, alerts and the last calls, in the OpenAPI document."""

from typing import Final

from headgate.core.alert_rules import Rule
from headgate.core.call import Lane
from headgate.observe.recent import Status
from headgate.runner.jobs import MOST_LISTED
from headgate.server.jobs import USUAL_LIMIT
from headgate.server.openapi.shapes import (
    FLAG,
    MOMENT,
    NAMED,
    NUMBER,
    SOME_TEXT,
    TEXT,
    WHOLE,
    Json,
    a_list,
    a_page,
    an_object,
    as_json,
    change,
    closed,
    look,
    or_null,
    parameter,
    ref,
)

_STATUS: Final = {"type": "string", "enum": [status.value for status in Status]}
_ATTEMPT: Final = {
    "upstream": TEXT,
    "attempt": WHOLE,
    "duration_ms": NUMBER,
    "error": or_null(TEXT),
    "wait_ms": or_null(NUMBER),
}
_REFUSAL: Final = {"upstream": TEXT, "reason": TEXT, "retry_after_s": or_null(NUMBER)}
_REQUEST: Final = {
    "object": {"const": "request"},
    "id": TEXT,
    "tenant": TEXT,
    "model": TEXT,
    "upstream": or_null(TEXT),
    "lane": {"type": "string", "enum": [lane.value for lane in Lane]},
    "status": _STATUS,
    "error": or_null(TEXT),
    "agent_id": or_null(TEXT),
    "started_at": or_null(MOMENT),
    "ended_at": MOMENT,
    "latency_ms": or_null(NUMBER),
    "queue_ms": or_null(NUMBER),
    "first_token_ms": or_null(NUMBER),
    "usage": or_null(an_object(input_tokens=WHOLE, output_tokens=WHOLE, estimated=FLAG)),
    "cost_usd": or_null(NUMBER),
    "attempts": a_list(an_object(tuple(_ATTEMPT), **_ATTEMPT)),
    "refusals": a_list(an_object(tuple(_REFUSAL), **_REFUSAL)),
}
_ALERT: Final = {
    "object": {"const": "alert"},
    "rule": {"type": "string", "enum": [rule.value for rule in Rule]},
    "subject": TEXT,
    "message": TEXT,
    "value": or_null(NUMBER),
    "threshold": or_null(NUMBER),
    "fired_at": MOMENT,
    "cleared_at": or_null(MOMENT),
}
SCHEMAS: Final = {
    "Alert": an_object(tuple(_ALERT), **_ALERT),
    "Alerts": a_page("Alert"),
    "ModelName": closed(("model",), model=NAMED),
    "Pause": an_object(("model", "paused"), model=TEXT, paused=FLAG, since=MOMENT, by=TEXT),
    "Request": an_object(tuple(_REQUEST), **_REQUEST),
    "Requests": a_page("Request"),
}


def paths() -> Json:
    now = {"200": as_json(ref("Pause"), "As it is from now on.")}
    limit = {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": USUAL_LIMIT}
    return {
        "/v1/models/pause": change("Refuse a model's calls until it is resumed", now, body="ModelName"),
        "/v1/models/resume": change("Let a paused model go on", now, body="ModelName"),
        "/v1/alerts": look("What is wrong, then what was", "Alerts"),
        "/v1/requests": look(
            "The last calls of the caller's tenant, the latest first",
            "Requests",
            parameter("model", SOME_TEXT),
            parameter("status", _STATUS),
            parameter("limit", limit, "So many at most."),
            parameter("after", TEXT, "The last id of the page before."),
        ),
        "/v1/requests/{request_id}": look(
            "What became of one call", "Request", parameter("request_id", NAMED, where="path")
        ),
    }
