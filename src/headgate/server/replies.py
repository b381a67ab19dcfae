"""What the unhurried routes share: letting a request in, answering in JSON, telling errors."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.core.access import Action
from headgate.core.errors import InvalidRequest, UnknownModel
from headgate.core.job import Job
from headgate.server.access import CALLER, Access, Caller
from headgate.server.errors import Failed, going_away, log_error, note_error, read_error
from headgate.server.http import Exchange

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
MAX_PARAMETERS: Final = 100
"""Of a query, on every route."""
MAX_SHOWN_CHARS: Final = 200
"""Of a path that leads nowhere."""
_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


def admit(access: Access, request: Request, action: Action) -> Caller:
    """Let a request in that is over in a moment: it takes no place among its caller's parallel ones."""
    caller = access.admit(request.scope["headers"], action)
    caller.leave()
    request.scope[CALLER] = caller
    return caller


def admit_work(access: Access, request: Request, closing: asyncio.Event) -> Caller:
    """The same for one that changes something: a process that is going away takes nothing new on."""
    if closing.is_set():
        raise going_away()
    return admit(access, request, Action.CALL)


@contextlib.contextmanager
def cancelled_when_gone(request: Request) -> Iterator[None]:
    """Inside, the running task is cancelled the moment the client leaves."""
    exchange: Exchange = request.scope["extensions"]["headgate"]
    exchange.on_disconnect(exchange.task.cancel)
    try:
        yield
    finally:
        exchange.on_disconnect(None)


def route(path: str, **by_method: Handler) -> Route:
    """All methods of one path together, so that a 405 knows them all."""

    async def answer(request: Request) -> Response:
        # Before anything parses it: to decode 60 KB of them takes longer than most requests.
        if request.scope["query_string"].count(b"&") >= MAX_PARAMETERS:
            raise InvalidRequest(f"a query may have at most {MAX_PARAMETERS} parameters")
        request.scope["path_params"] = decoded(request.path_params)
        return await by_method["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, answer, methods=list(by_method))


def decoded(params: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a path, which is matched as it was sent: an encoded slash belongs to an id."""
    return {name: unquote(value) for name, value in params.items()}


def json_reply(value: object, *, status: int = 200, replayed: bool = False) -> Response:
    """`replayed`: an idempotency key brought this back."""
    response = Response(msgspec.json.encode(value), status_code=status, media_type="application/json")
    if replayed:
        response.headers["idempotent-replayed"] = "true"
    return response


def accepted(job: Job, *, replayed: bool = False) -> Response:
    """202: the job that will do it, and where to find it."""
    response = json_reply(job, status=202, replayed=replayed)
    response.headers["location"] = f"/v1/jobs/{job.id}"
    return response


def page(found: Sequence[Any], *, has_more: bool = False) -> dict[str, Any]:
    """A list; the next page goes on after `last_id`."""
    last_id = found[-1].id if found else None
    return {"object": "list", "data": found, "has_more": has_more, "last_id": last_id}


async def paged(look: Callable[..., Awaitable[Sequence[Any]]], *, limit: int, after: str | None) -> Response:
    """One page of what `look` finds, and whether there is another."""
    found = await look(limit=limit, after=after)
    more = len(found) == limit and await look(limit=1, after=found[-1].id)
    return json_reply(page(found, has_more=bool(more)))


async def tell_http_error(request: Request, error: Exception) -> Response:
    """No such route, or not this method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    failed = Failed(
        status,
        _CODES.get(status, "invalid_request"),
        f"{request.method} {request.scope['path'][:MAX_SHOWN_CHARS]}: {error}",
    )
    response = _failed(failed)
    # A 405 says which methods there are.
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def tell_nobody(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's shape
    """The client left while it was still sending."""
    return Response(status_code=400)


async def tell_error(request: Request, error: Exception, *, mismatch_status: int) -> Response:
    if isinstance(error, UnknownModel) and (caller := request.scope.get(CALLER)) is not None:
        error.narrow(caller.may_use)
    failed = read_error(error, mismatch_status=mismatch_status)
    log_error(request.scope["path"], error)
    note_error(request.scope, error)
    return _failed(failed)


def _failed(failed: Failed) -> Response:
    response = Response(failed.body, status_code=failed.status)
    for name, value in failed.headers():
        response.headers[name.decode()] = value.decode()
    return response
