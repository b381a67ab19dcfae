"""Files and batches, in the OpenAPI document."""

from typing import Any, Final

from headgate.batches.batches import MOST_LISTED as MOST_BATCHES
from headgate.batches.files import MOST_LISTED as MOST_FILES
from headgate.core.batch import (
    LONGEST_NAME_CHARS,
    LONGEST_VALUE_CHARS,
    MOST_PAIRS,
    TASKS,
    BatchState,
)
from headgate.server.batches import USUAL_LIMIT as USUAL_BATCHES
from headgate.server.files import USUAL_LIMIT as USUAL_FILES
from headgate.server.openapi.shapes import (
    FLAG,
    KEY,
    NAMED,
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
    failures,
    look,
    or_null,
    parameter,
    ref,
)

_MOMENT: Final = or_null(WHOLE)
_FILE: Final[dict[str, Any]] = {
    "id": TEXT,
    "object": {"const": "file"},
    "bytes": WHOLE,
    "created_at": WHOLE,
    "expires_at": WHOLE,
    "filename": TEXT,
    "purpose": {"type": "string", "enum": ["batch", "batch_output"]},
    "status": {"const": "processed"},
}
_ERROR: Final = an_object(
    ("code", "message"), code=TEXT, message=TEXT, line=or_null(WHOLE), param=or_null(TEXT)
)
_METADATA: Final = or_null(
    {
        "type": "object",
        "maxProperties": MOST_PAIRS,
        "propertyNames": {"minLength": 1, "maxLength": LONGEST_NAME_CHARS},
        "additionalProperties": {"type": "string", "maxLength": LONGEST_VALUE_CHARS},
    }
)
_BATCH: Final[dict[str, Any]] = {
    "id": TEXT,
    "object": {"const": "batch"},
    "endpoint": TEXT,
    "errors": or_null(an_object(("object", "data"), object={"const": "list"}, data=a_list(_ERROR))),
    "input_file_id": TEXT,
    "completion_window": TEXT,
    "status": {"type": "string", "enum": [str(state) for state in BatchState]},
    "output_file_id": or_null(TEXT),
    "error_file_id": or_null(TEXT),
    "created_at": WHOLE,
    "in_progress_at": _MOMENT,
    "expires_at": _MOMENT,
    "finalizing_at": _MOMENT,
    "completed_at": _MOMENT,
    "failed_at": _MOMENT,
    "expired_at": _MOMENT,
    "cancelling_at": _MOMENT,
    "cancelled_at": _MOMENT,
    "request_counts": an_object(("total", "completed", "failed"), total=WHOLE, completed=WHOLE, failed=WHOLE),
    "metadata": _METADATA,
}
SCHEMAS: Final = {
    "File": an_object(tuple(_FILE), **_FILE),
    "Files": a_page("File"),
    "FileDeleted": an_object(("id", "object", "deleted"), id=TEXT, object={"const": "file"}, deleted=FLAG),
    "Upload": closed(
        ("file", "purpose"), file={"type": "string", "format": "binary"}, purpose={"const": "batch"}
    ),
    "NewBatch": closed(
        ("input_file_id", "endpoint", "completion_window"),
        input_file_id=SOME_TEXT,
        endpoint={"type": "string", "enum": list(TASKS)},
        completion_window={"type": "string", "pattern": "^([1-9][0-9]?|1[0-5][0-9]|16[0-8])h$"},
        metadata=_METADATA,
    ),
    "Batch": an_object(tuple(_BATCH), **_BATCH),
    "Batches": a_page("Batch"),
}
_FILE_ID: Final = parameter("file_id", NAMED, where="path")
_BATCH_ID: Final = parameter("batch_id", NAMED, where="path")


def _page(prefix: str, usual: int, most: int) -> tuple[Json, Json]:
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    after = {"type": "string", "pattern": f"^{prefix}[0-9a-f]{{12}}[0-9A-Za-z]{{1,40}}$"}
    return parameter("limit", limit, "So many at most."), parameter(
        "after", after, "The last id of the page before."
    )


def _upload() -> Json:
    return {
        "post": {
            "summary": "Keep a file of requests, for a batch",
            "parameters": [],
            "requestBody": {
                "required": True,
                "content": {"multipart/form-data": {"schema": ref("Upload")}},
            },
            "responses": {**failures(), "200": as_json(ref("File"), "On the disk by now.")},
        }
    }


def _content() -> Json:
    given = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    answers = {"200": {"description": "Its bytes.", "content": given}}
    return {
        "get": {
            "summary": "A file's bytes",
            "parameters": [_FILE_ID],
            "responses": {**failures(), **answers},
        }
    }


def paths() -> Json:
    batch = {"200": as_json(ref("Batch"), "The batch as it is now.")}
    return {
        "/v1/files": {
            **look(
                "The files of the caller's tenant, newest first",
                "Files",
                parameter("purpose", SOME_TEXT),
                *_page("file-", USUAL_FILES, MOST_FILES),
            ),
            **_upload(),
        },
        "/v1/files/{file_id}": {
            **look("What is known of a file", "File", _FILE_ID),
            **change(
                "Remove a file that no batch needs",
                {"200": as_json(ref("FileDeleted"), "It is gone.")},
                _FILE_ID,
                method="delete",
            ),
        },
        "/v1/files/{file_id}/content": _content(),
        "/v1/batches": {
            **look(
                "The batches of the caller's tenant, newest first",
                "Batches",
                *_page("batch_", USUAL_BATCHES, MOST_BATCHES),
            ),
            **change("Run the lines of a file, each as a job", batch, KEY, body="NewBatch"),
        },
        "/v1/batches/{batch_id}": look("One batch", "Batch", _BATCH_ID),
        "/v1/batches/{batch_id}/cancel": change(
            "Stop a batch; what has ended by then is in its files",
            batch,
            _BATCH_ID,
            body="Nothing",
            needs_body=False,
        ),
        "/v1/batches/{batch_id}/retry": change(
            "Run the failed lines again, as a new batch",
            batch,
            KEY,
            _BATCH_ID,
            body="Nothing",
            needs_body=False,
        ),
    }
