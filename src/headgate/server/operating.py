"""The routes of operators: pausing models, and what became of the last calls."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.core.access import Action
from headgate.core.errors import InvalidRequest
from headgate.gateway import Gateway
from headgate.observe.recent import MOST_LISTED, RecentRequests, Status
from headgate.server.access import Access, Caller
from headgate.server.replies import admit, json_reply

_LISTED: Final = 20
_FILTERS: Final = frozenset({"model", "status", "limit", "after"})


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    model: str


class Operating:
    """Over one gateway and the calls it remembers."""

    def __init__(self, gateway: Gateway, access: Access, recent: RecentRequests) -> None:
        self._gateway = gateway
        self._access = access
        self._recent = recent

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models/pause", self._pause, methods=["POST"]),
            Route("/v1/models/resume", self._resume, methods=["POST"]),
            Route("/v1/requests", self._list),
            Route("/v1/requests/{request_id}", self._show),
        ]

    async def _pause(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.OPERATE)
        pause = await self._gateway.models.pause(await _model(request), by=caller.name)
        return json_reply({"model": pause.model, "paused": True, "since": pause.since, "by": pause.by})

    async def _resume(self, request: Request) -> Response:
        admit(self._access, request, Action.OPERATE)
        model = await _model(request)
        await self._gateway.models.resume(model)
        return json_reply({"model": model, "paused": False})

    async def _list(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        asked = request.query_params
        if unknown := sorted(set(asked) - _FILTERS):
            raise InvalidRequest(
                f"there is no filter {unknown[0][:100]!r}; there are {', '.join(sorted(_FILTERS))}",
                param=unknown[0][:100],
            )
        limit = _limit(asked.get("limit"))
        found = self._recent.list(
            tenant=_whose(caller),
            model=asked.get("model"),
            status=_status(asked.get("status")),
            limit=limit + 1,
            after=asked.get("after"),
        )
        page = found[:limit]
        last_id = page[-1].id if page else None
        return json_reply(
            {"object": "list", "data": page, "has_more": len(found) > limit, "last_id": last_id}
        )

    async def _show(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        return json_reply(self._recent.get(request.path_params["request_id"], tenant=_whose(caller)))


def _whose(caller: Caller) -> str | None:
    """Operators see everybody's."""
    return None if caller.may(Action.OPERATE) else caller.tenant


async def _model(request: Request) -> str:
    try:
        return msgspec.json.decode(await request.body(), type=_Named).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f'the body must be {{"model": "NAME"}}: {error}') from None


def _limit(given: str | None) -> int:
    if given is None:
        return _LISTED
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and 1 <= int(given) <= MOST_LISTED):
        raise InvalidRequest(f"limit must be a whole number from 1 to {MOST_LISTED}", param="limit")
    return int(given)


def _status(given: str | None) -> Status | None:
    if given is None:
        return None
    try:
        return Status(given)
    except ValueError:
        known = ", ".join(Status)
        raise InvalidRequest(f"status must be one of {known}, not {given[:100]!r}", param="status") from None
