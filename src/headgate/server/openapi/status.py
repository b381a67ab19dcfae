"""Queues, health, metrics and this document itself, in the OpenAPI document."""

from typing import Final

from headgate.server.openapi.shapes import FLAG, TEXT, WHOLE, Json, a_list, an_object, look, tell

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
        "/openapi.json": tell("This document", "application/json", an_object(("openapi", "paths"))),
        "/health/live": health,
        "/health": health,
        "/api/v1/health": health,
        "/health/ready": look("Send traffic here?", "Ready", also="503"),
    }
