"""The page at `/bookmarks`: HTML, scripts and a style sheet as they are in `static/`. It holds no user's data.

Its service worker names the version of these files: when one of them changes, browsers fetch them all anew.
"""

import hashlib
import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Final

import headgate

_HERE: Final = importlib.resources.files(__package__) / "static"
_FILES: Final = (
    ("/bookmarks", "index.html", "text/html; charset=utf-8"),
    ("/bookmarks/app.js", "app.js", "text/javascript; charset=utf-8"),
    ("/bookmarks/cards.js", "cards.js", "text/javascript; charset=utf-8"),
    ("/bookmarks/gateway.js", "gateway.js", "text/javascript; charset=utf-8"),
    ("/bookmarks/outbox.js", "outbox.js", "text/javascript; charset=utf-8"),
    ("/bookmarks/style.css", "style.css", "text/css; charset=utf-8"),
)
_WORKER: Final = "/bookmarks/worker.js"
_UNVERSIONED: Final = b'"unversioned"'
HEADERS: Final = {
    # Nothing from elsewhere, nothing inline: what a model or a page wrote cannot run here.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " worker-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes() -> Sequence[headgate.AppRoute]:
    files = [(path, (_HERE / name).read_bytes(), media_type) for path, name, media_type in _FILES]
    worker = (_HERE / "worker.js").read_bytes()
    version = hashlib.sha256(b"".join([worker, *(content for _, content, _ in files)])).hexdigest()[:16]
    script = worker.replace(_UNVERSIONED, b'"%b"' % version.encode())
    # A worker may look after its own folder; this one looks after the page above it.
    allowed = {**HEADERS, "service-worker-allowed": "/bookmarks"}
    return [
        *(_route(path, content, media_type, HEADERS) for path, content, media_type in files),
        _route(_WORKER, script, "text/javascript; charset=utf-8", allowed),
    ]


def _route(path: str, content: bytes, media_type: str, headers: Mapping[str, str]) -> headgate.AppRoute:
    reply = headgate.AppReply(value=content, media_type=media_type, headers=headers)

    async def handle(_: headgate.AppCall) -> headgate.AppReply:
        return reply

    return headgate.AppRoute(
        method="GET",
        path=path,
        handle=handle,
        door=headgate.AppDoor.OPEN,
        summary="The bookmarks page",
        media_type=media_type,
    )
