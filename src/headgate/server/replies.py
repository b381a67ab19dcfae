"""What the unhurried routes share: letting a request in, answering in JSON, telling errors."""

import logging
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headgate.core.access import Action
from headgate.server.access import Access, Caller
from headgate.server.errors import Failed, crash_story, is_crash, read_error

logger = logging.getLogger("headgate")
_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


def admit(access: Access, request: Request, action: Action) -> Caller:
    """Let a request in that is over in a moment: it takes no place among its caller's parallel ones."""
    caller = access.admit(request.scope["headers"], action)
    caller.leave()
    return caller


def json_reply(value: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


async def tell_http_error(request: Request, error: Exception) -> Response:
    """No such route, or not this method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    failed = Failed(
        status, _CODES.get(status, "invalid_request"), f"{request.method} {request.scope['path']}: {error}"
    )
    response = _failed(failed)
    # A 405 says which methods there are.
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def tell_error(request: Request, error: Exception) -> Response:
    failed = read_error(error)
    if is_crash(error):
        logger.error("%s broke\n%s", request.scope["path"], crash_story(error))
    return _failed(failed)


def _failed(failed: Failed) -> Response:
    response = Response(failed.body, status_code=failed.status)
    for name, value in failed.headers():
        response.headers[name.decode()] = value.decode()
    return response
