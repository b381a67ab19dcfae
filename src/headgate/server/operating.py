"""The routes of operators: pausing models, alerts, and what became of the last calls."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.core.access import Action
from headgate.core.ports.alerts import AlertBoard
from headgate.gateway import Gateway
from headgate.observe.alerts import told
from headgate.observe.recent import RecentRequests, Status
from headgate.runner.jobs import check_limit
from headgate.server.access import Access, Caller
from headgate.server.jobs import USUAL_LIMIT
from headgate.server.reading import Nothing, Word, read_body, read_query
from headgate.server.replies import admit, json_reply, page, route


class Named(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/models/pause` and `/v1/models/resume`."""

    model: Word


class Recent(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `GET /v1/requests`."""

    model: Word | None = None
    status: Status | None = None
    limit: int = USUAL_LIMIT
    after: str | None = None


_named: Final = msgspec.json.Decoder(Named)


class Operating:
    """Over one gateway, its alerts and the calls it remembers."""

    def __init__(self, gateway: Gateway, access: Access, recent: RecentRequests, alerts: AlertBoard) -> None:
        self._gateway = gateway
        self._access = access
        self._recent = recent
        self._alerts = alerts

    def routes(self) -> list[Route]:
        return [
            route("/v1/models/pause", POST=self._pause),
            route("/v1/models/resume", POST=self._resume),
            route("/v1/alerts", GET=self._tell_alerts),
            route("/v1/requests", GET=self._list),
            route("/v1/requests/{request_id}", GET=self._show),
        ]

    async def _pause(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.OPERATE)
        named = await read_body(request, _named)
        caller.check_model(named.model)
        pause = await self._gateway.models.pause(named.model, by=caller.name)
        return json_reply({"model": pause.model, "paused": True, "since": pause.since, "by": pause.by})

    async def _resume(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.OPERATE)
        named = await read_body(request, _named)
        caller.check_model(named.model)
        await self._gateway.models.resume(named.model)
        return json_reply({"model": named.model, "paused": False})

    async def _tell_alerts(self, request: Request) -> Response:
        """Those that are active, then those that are over, the latest first: few enough for one page."""
        admit(self._access, request, Action.WATCH)
        read_query(request, Nothing)
        alerts = [*self._alerts.active(), *self._alerts.recent()]
        data = [{"object": "alert", **told(alert)} for alert in alerts]
        return json_reply({"object": "list", "data": data, "has_more": False, "last_id": None})

    async def _list(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        asked = read_query(request, Recent)
        check_limit(asked.limit)
        found = self._recent.list(
            tenant=_whose(caller),
            model=asked.model,
            status=asked.status,
            limit=asked.limit + 1,
            after=asked.after,
        )
        return json_reply(page(found[: asked.limit], has_more=len(found) > asked.limit))

    async def _show(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        read_query(request, Nothing)
        return json_reply(self._recent.get(request.path_params["request_id"], tenant=_whose(caller)))


def _whose(caller: Caller) -> str | None:
    """Operators see everybody's."""
    return None if caller.may(Action.OPERATE) else caller.tenant
