"""The page at `/bookmarks`: HTML, a script and a style sheet as they are in `static/`. It holds nobody's data."""

import importlib.resources
from collections.abc import Sequence
from typing import Final

import headgate

_HERE: Final = importlib.resources.files(__package__) / "static"
_FILES: Final = (
    ("/bookmarks", "index.html", "text/html; charset=utf-8"),
    ("/bookmarks/app.js", "app.js", "text/javascript; charset=utf-8"),
    ("/bookmarks/outbox.js", "outbox.js", "text/javascript; charset=utf-8"),
    ("/bookmarks/style.css", "style.css", "text/css; charset=utf-8"),
)
HEADERS: Final = {
    # Nothing from elsewhere, nothing inline: what a model or a page wrote cannot run here.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes() -> Sequence[headgate.AppRoute]:
    return [_route(path, (_HERE / name).read_bytes(), media_type) for path, name, media_type in _FILES]


def _route(path: str, content: bytes, media_type: str) -> headgate.AppRoute:
    reply = headgate.AppReply(value=content, media_type=media_type, headers=HEADERS)

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
