"""Jobs and dead letters, in the OpenAPI document."""

from typing import Any, Final

from headgate.core.call import Lane
from headgate.core.job import JobState, Reason
from headgate.core.job_rules import ERROR_CLASSES
from headgate.runner.jobs import MOST_LISTED
from headgate.runner.submission import LONGEST_WAIT_S as LONGEST_S
from headgate.runner.submission import MOST_AT_ONCE
from headgate.server.jobs import LONGEST_WAIT_S, USUAL_LIMIT
from headgate.server.openapi.shapes import (
    FLAG,
    KEY,
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

_STATE: Final = {"type": "string", "enum": [str(state) for state in JobState]}
_CLASS: Final = {"type": "string", "enum": list(ERROR_CLASSES)}
_REASON: Final = {"type": "string", "enum": [str(reason) for reason in Reason]}
_SECONDS: Final = or_null({"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST_S})
_ANYTHING: Final[Json] = {}
_JOB: Final[dict[str, Any]] = {
    "id": TEXT,
    "task": TEXT,
    "state": _STATE,
    "tenant": TEXT,
    "model": or_null(TEXT),
    "lane": {"type": "string", "enum": [str(lane) for lane in Lane]},
    "priority": WHOLE,
    "attempts": WHOLE,
    "max_attempts": WHOLE,
    "generation": WHOLE,
    "crashes": WHOLE,
    "dedup_key": or_null(TEXT),
    "batch_id": or_null(TEXT),
    "webhook": or_null(TEXT),
    "metadata": _ANYTHING,
    "progress": _ANYTHING,
    "input": _ANYTHING,
    "result": _ANYTHING,
    "error": or_null(TEXT),
    "reason": or_null(TEXT),
    "history": a_list({"type": "object"}),
    "created_at": MOMENT,
    "run_at": MOMENT,
    "started_at": or_null(MOMENT),
    "finished_at": or_null(MOMENT),
}
_DEAD: Final[dict[str, Any]] = {
    "job_type": TEXT,
    "failed_at": or_null(MOMENT),
    "error_message": or_null(TEXT),
    "retryable": FLAG,
}
_FILTERS: Final[dict[str, Any]] = {
    "task": SOME_TEXT,
    "reason": _REASON,
    "model": SOME_TEXT,
    "class": _CLASS,
    "since": MOMENT,
    "until": MOMENT,
}
SCHEMAS: Final = {
    "Submission": closed(
        ("task",),
        task=NAMED,
        input=_ANYTHING,
        model=or_null(NAMED),
        lane={"type": "string", "enum": [str(lane) for lane in Lane]},
        priority={"type": "integer", "minimum": 0, "maximum": 9},
        max_attempts=or_null({"type": "integer", "minimum": 1, "maximum": 100}),
        run_at=or_null(MOMENT),
        expires_after_s=_SECONDS,
        timeout_s=_SECONDS,
        dedup_key=or_null(NAMED),
        hold=FLAG,
        webhook=or_null(TEXT),
        metadata=or_null({"type": "object"}),
    ),
    "Submissions": {
        "anyOf": [ref("Submission"), a_list(ref("Submission"), minItems=1, maxItems=MOST_AT_ONCE)]
    },
    "Job": an_object(tuple(_JOB), **_JOB),
    "Jobs": a_page("Job"),
    "TakenIn": an_object(("id", "task", "state"), id=TEXT, task=TEXT, state=or_null(_STATE)),
    "JobsTakenIn": a_page("TakenIn"),
    "Replay": closed(input=_ANYTHING),
    "Nothing": closed(),
    "DeadLetter": an_object((*_JOB, *_DEAD), **_JOB, **_DEAD),
    "DeadLetters": a_page("DeadLetter"),
    "Bulk": {
        **closed(
            (),
            **_FILTERS,
            per_second={"type": "number", "exclusiveMinimum": 0, "maximum": 10_000},
            dry_run=FLAG,
        ),
        "anyOf": [{"required": [name]} for name in _FILTERS],
    },
    "Matched": an_object(("matched",), matched=WHOLE),
}
JOB_ID: Final = parameter("job_id", NAMED, where="path")
_PAGE: Final = (
    parameter(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": USUAL_LIMIT},
        "So many at most.",
    ),
    parameter(
        "after",
        {"type": "string", "pattern": "^job_[0-9a-f]{12}[0-9A-Za-z_-]*$"},
        "The last id of the page before.",
    ),
)
_WAIT: Final = parameter(
    "wait",
    {**NUMBER, "minimum": 0, "maximum": LONGEST_WAIT_S},
    "Answer when the job has ended, but no later than after so many seconds.",
)


def paths() -> Json:
    job = {"200": as_json(ref("Job"), "The job as it is now.")}
    taken = {"202": as_json(ref("Job"), "The job, found again at Location.")}
    bulk = {**taken, "200": as_json(ref("Matched"), "With `dry_run`: how many match; nothing is done.")}
    either = {"anyOf": [ref("Job"), ref("JobsTakenIn")]}
    return {
        "/v1/jobs": {
            **look(
                "The jobs of the caller's tenant, newest first",
                "Jobs",
                parameter("state", _STATE),
                parameter("task", SOME_TEXT),
                parameter("model", SOME_TEXT),
                *_PAGE,
            ),
            **change(
                "Submit a job, or up to 1,000: all or none",
                {"202": as_json(either, "The job, found again at Location; of a list their ids.")},
                KEY,
                body="Submissions",
            ),
        },
        "/v1/jobs/{job_id}": look("One job", "Job", JOB_ID, _WAIT),
        "/v1/jobs/{job_id}/cancel": change("Stop a job", job, JOB_ID, body="Nothing", needs_body=False),
        "/v1/jobs/{job_id}/replay": change(
            "Send a dead letter back to work", taken, JOB_ID, KEY, body="Replay", needs_body=False
        ),
        "/v1/dead-letters": look(
            "Jobs that need a person, newest first",
            "DeadLetters",
            *(parameter(name, schema) for name, schema in _FILTERS.items()),
            *_PAGE,
        ),
        "/v1/dead-letters/{job_id}": {
            **look("One dead letter", "DeadLetter", JOB_ID),
            **change("Let a dead letter go", job, JOB_ID, method="delete"),
        },
        "/v1/dead-letters/replay": change("Send all that match back to work", bulk, KEY, body="Bulk"),
        "/v1/dead-letters/discard": change("Let all that match go", bulk, KEY, body="Bulk"),
    }
