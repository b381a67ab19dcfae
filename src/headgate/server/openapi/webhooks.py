"""Webhooks, in the OpenAPI document."""

from typing import Final

from headgate.server.openapi.jobs import JOB_ID
from headgate.server.openapi.shapes import TEXT, Json, an_object, as_json, change, look, ref

SCHEMAS: Final = {"WebhookSecret": an_object(("secret",), secret=TEXT)}


def paths() -> Json:
    taken = {"202": as_json(ref("Job"), "The job that delivers it, found again at Location.")}
    return {
        "/v1/webhooks/secret": look("What the tenant's receivers check signatures with", "WebhookSecret"),
        "/v1/jobs/{job_id}/redeliver": change(
            "Deliver again what was told of a job, under the same webhook-id",
            taken,
            JOB_ID,
            body="Nothing",
            needs_body=False,
        ),
    }
