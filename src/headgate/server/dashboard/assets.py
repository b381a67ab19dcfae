"""The style sheet, the script and the icon, as they are in `static/`. Their addresses change when they do."""

import hashlib
import importlib.resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.server.replies import route

_HERE: Final = importlib.resources.files(__package__) / "static"
_TYPES: Final = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_FOLDER: Final = "/static/dashboard"
_CONTENTS: Final = {name: (_HERE / name).read_bytes() for name in _TYPES}
_HEADERS: Final = {
    "cache-control": "public, max-age=31536000, immutable",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    # An SVG is a document of its own when somebody opens it.
    "content-security-policy": "default-src 'none'; style-src 'self'",
}


def address(name: str) -> str:
    return f"{_FOLDER}/{name}?v={hashlib.sha256(_CONTENTS[name]).hexdigest()[:12]}"


def asset_routes() -> list[Route]:
    return [_route(name) for name in _TYPES]


def _route(name: str) -> Route:
    async def serve(_: Request) -> Response:
        return Response(_CONTENTS[name], media_type=_TYPES[name], headers=_HEADERS)

    return route(f"{_FOLDER}/{name}", GET=serve)
