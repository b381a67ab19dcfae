"""Every route with what it takes, and every error with the routes that can meet it.

A new route needs one line in `MATRIX`: its method and path, the action its key must be allowed, and what applies
of the rest. From that line all its errors follow, and `test_error_matrix.py` asks for each of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from server.locked_stage import BODY

from headgate.core.access import Action

SUBMISSION: Final = {"task": "chat", "input": BODY}
DEAD: Final = {"task": "fragile"}
UPLOAD: Final = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhello\r\n--x--\r\n'
)
NEW_BATCH: Final = {
    "input_file_id": "{file_id}",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}

ARTICLE: Final = {"article_id": "a1", "content": "A sentence of the article. " * 10}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one route takes and does. Defaults: an open GET that needs nothing."""

    action: Action | None = None
    """What a key must be allowed; None: open to everybody."""
    body: Any = None
    """A body that is right, as JSON or, if it is none, as bytes; None: the route takes none. `{file_id}` is filled in."""
    headers: tuple[str, ...] = ()
    """Headers that the body needs."""
    wrong: Mapping[str, Any] = field(default_factory=dict)
    """Fields that make the body wrong; an error names the first of them."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Fields that make it another request, for those that take an Idempotency-Key."""
    passes: bool = False
    """Fields nobody knows go to the provider instead of being refused."""
    query: str | None = None
    """A query that is wrong; an error names its parameter, and unknown ones are refused too."""
    model: bool = False
    """It asks a model, or sends work to one."""
    asks: bool = False
    """It waits for a provider's answer."""
    keyed: bool = False
    """It takes an Idempotency-Key."""
    needs_key: bool = False
    """It takes nothing without one."""
    refuses_key: bool = False
    stored: bool = False
    """It needs the database."""
    works: bool = False
    """It takes new work on, which a process that is going away does not."""
    conflicts: bool = False
    """A job or a batch that is pending is in the wrong state for it."""
    backlog: bool = False
    """It adds to the jobs that wait."""


def _asks(**asked: Any) -> Row:
    return Row(
        action=Action.CALL,
        body={"model": "simulated/instant", **asked},
        wrong=dict.fromkeys(asked, 7),
        other={"user": "somebody"},
        passes=True,
        model=True,
        asks=True,
        keyed=True,
        works=True,
    )


def _looks(**more: Any) -> Row:
    return Row(action=Action.LOOK, stored=True, **more)


def _works(**more: Any) -> Row:
    return Row(action=Action.CALL, stored=True, works=True, **more)


def _operates(**more: Any) -> Row:
    return Row(action=Action.OPERATE, stored=True, **more)


MATRIX: Final[Mapping[str, Row]] = {
    "POST /v1/chat/completions": _asks(messages=BODY["messages"]),
    "POST /v1/completions": _asks(prompt="hello"),
    "POST /v1/embeddings": _asks(input="hello"),
    "GET /v1/models": Row(action=Action.LOOK),
    "GET /v1/models/{name:path}": Row(action=Action.LOOK),
    "POST /v1/models/pause": _operates(body={"model": "simulated"}, wrong={"model": 7}),
    "POST /v1/models/resume": _operates(body={"model": "simulated"}, wrong={"model": 7}),
    "GET /v1/alerts": Row(action=Action.WATCH, query="limit=1"),
    "GET /v1/requests": Row(action=Action.LOOK, query="limit=many"),
    "GET /v1/requests/{request_id}": Row(action=Action.LOOK, query="wait=1"),
    "GET /v1/jobs": _looks(query="limit=many"),
    "POST /v1/jobs": _works(
        body=SUBMISSION, wrong={"priority": 10}, other={"priority": 1}, model=True, keyed=True, backlog=True
    ),
    "GET /v1/jobs/{job_id}": _looks(query="wait=61"),
    "POST /v1/jobs/{job_id}/cancel": _works(body={}),
    "POST /v1/jobs/{job_id}/replay": _works(body={}, model=True, conflicts=True),
    "GET /v1/dead-letters": _looks(query="since=yesterday"),
    "POST /v1/dead-letters/replay": _works(
        body=DEAD, wrong={"per_second": 0}, other={"reason": "poison"}, model=True, keyed=True, backlog=True
    ),
    "POST /v1/dead-letters/discard": _works(
        body=DEAD,
        wrong={"reason": "boredom"},
        other={"reason": "poison"},
        model=True,
        keyed=True,
        backlog=True,
    ),
    "GET /v1/dead-letters/{job_id}": _looks(conflicts=True),
    "DELETE /v1/dead-letters/{job_id}": _works(conflicts=True),
    "GET /v1/files": _looks(query="limit=many"),
    "POST /v1/files": _works(body=UPLOAD, headers=("Content-Type: multipart/form-data; boundary=x",)),
    "GET /v1/files/{file_id}": _looks(),
    "GET /v1/files/{file_id}/content": _looks(),
    "DELETE /v1/files/{file_id}": _works(conflicts=True),
    "GET /v1/batches": _looks(query="limit=many"),
    "POST /v1/batches": _works(
        body=NEW_BATCH,
        wrong={"completion_window": "soon"},
        other={"completion_window": "1h"},
        keyed=True,
        backlog=True,
    ),
    "GET /v1/batches/{batch_id}": _looks(),
    "POST /v1/batches/{batch_id}/cancel": _works(body={}),
    "POST /v1/batches/{batch_id}/retry": _works(body={}, conflicts=True),
    "GET /v1/webhooks/secret": Row(action=Action.CALL, query="tenant=other"),
    "POST /v1/jobs/{job_id}/redeliver": _works(body={}, conflicts=True),
    "GET /queue/status": Row(action=Action.WATCH),
    "GET /metrics": Row(action=Action.WATCH),
    "GET /events": Row(action=Action.LOOK, query="types=Nonsense", works=True),
    "GET /health": Row(),
    "GET /health/live": Row(),
    "GET /health/ready": Row(),
    "GET /api/v1/health": Row(),
    "GET /openapi.json": Row(),
    # ---- Applications, where they are mounted
    "POST /api/v1/summarize": Row(
        action=Action.CALL,
        body=ARTICLE,
        wrong={"priority": "urgent"},
        model=True,
        refuses_key=True,
        works=True,
    ),
    "POST /api/v1/summarize/queue": _works(
        body=ARTICLE,
        wrong={"priority": "urgent"},
        other={"article_id": "a2"},
        model=True,
        keyed=True,
        backlog=True,
    ),
    "GET /api/v1/summarize/status/{job_id}": _looks(),
    "POST /v1/bookmarks": _works(
        body={"url": "https://example.org/matrix"},
        wrong={"title": 5},
        other={"url": "https://example.org/other"},
        model=True,
        keyed=True,
        needs_key=True,
        backlog=True,
    ),
    "GET /v1/bookmarks": _looks(query="limit=many"),
    "GET /v1/bookmarks/{bookmark_id}": _looks(),
    "DELETE /v1/bookmarks/{bookmark_id}": _works(),
    "POST /v1/bookmarks/{bookmark_id}/reprocess": _works(model=True, keyed=True),
    "GET /bookmarks": Row(),
    "GET /bookmarks/style.css": Row(),
    "GET /bookmarks/app.js": Row(),
    "GET /bookmarks/cards.js": Row(),
    "GET /bookmarks/gateway.js": Row(),
    "GET /bookmarks/outbox.js": Row(),
    "GET /bookmarks/worker.js": Row(),
}
