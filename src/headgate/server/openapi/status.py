"""Queues, health, metrics, events and this document itself, in the OpenAPI document."""

from typing import Final

from headgate.server.openapi.shapes import (
    EVENT,
    FLAG,
    SOME_TEXT,
    TEXT,
    WHOLE,
    Json,
    a_list,
    an_object,
    look,
    parameter,
    tell,
)

_GATE: Final = {
    "rt_queue": WHOLE,
    "be_queue": WHOLE,
    "total_slots": WHOLE,
    "available_slots": WHOLE,
    "accepting": FLAG,
    "max_queue_depth": WHOLE,
}
SCHEMAS: Final = {
    "Status": an_object(
        (*_GATE, "upstreams"),
        **_GATE,
        upstreams=a_list(an_object((*_GATE, "model", "upstream"), model=TEXT, upstream=TEXT, **_GATE)),
    ),
    "Live": an_object(("status",), status=TEXT),
    "Ready": an_object(("status", "database"), status=TEXT, database=TEXT),
}


def paths() -> Json:
    health = look("Is the process alive?", "Live")
    return {
        "/queue/status": look("Queues and slots", "Status"),
        "/metrics": tell("Numbers for Prometheus", "text/plain", TEXT),
        "/events": tell(
            "What happens, as server-sent events",
            "text/event-stream",
            EVENT,
            parameter("types", SOME_TEXT, "Only events of these types, with commas between them."),
            parameter("model", SOME_TEXT, "Only events of this model."),
            parameter("after", SOME_TEXT, "Go on after the event with this id; 0: with all that are kept."),
            parameter("Last-Event-ID", SOME_TEXT, "The same, and it comes first.", where="header"),
        ),
        "/openapi.json": tell("This document", "application/json", an_object(("openapi", "paths"))),
        "/health/live": health,
        "/health": health,
        "/api/v1/health": health,
        "/health/ready": look("Send traffic here?", "Ready", also="503"),
    }
