"""The routes that are not in a hurry, put together; those on models, status, health and metrics are here."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.core.access import Action
from headgate.core.errors import HeadgateError, UnknownModel
from headgate.core.ports.alerts import AlertBoard
from headgate.core.ports.store import StoreHealth
from headgate.gateway import Gateway
from headgate.mounting import AppRoute
from headgate.observe.recent import RecentRequests
from headgate.server.access import Access
from headgate.server.apps import AppRoutes
from headgate.server.batches import BatchRoutes
from headgate.server.dashboard.dashboard import Dashboard
from headgate.server.dead_letters import DeadLetterRoutes
from headgate.server.events import EventRoutes
from headgate.server.files import FileRoutes
from headgate.server.jobs import JobRoutes
from headgate.server.openapi import document
from headgate.server.operating import Operating
from headgate.server.replies import admit, json_reply, route, tell_error, tell_nobody
from headgate.server.webhooks import WebhookRoutes


class Rest:
    """Builds the Starlette app over one gateway."""

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        *,
        closing: asyncio.Event,
        metrics: Callable[[], bytes],
        recent: RecentRequests,
        alerts: AlertBoard,
        events: EventRoutes,
        dashboard: Dashboard,
        mounted: Sequence[AppRoute],
        started_at: float,
        version: str,
    ) -> None:
        self._gateway = gateway
        self._access = access
        self._closing = closing
        self._metrics = metrics
        self._mounted = mounted
        self._operating = Operating(gateway, access, recent, alerts)
        self._events = events
        self._dashboard = dashboard
        self._started_at = started_at
        self._document = msgspec.json.encode(document(version, mounted))

    def app(self) -> Starlette:
        mismatch_status = self._gateway.durable.idempotency.mismatch_status
        tell = partial(tell_error, mismatch_status=mismatch_status)
        app = Starlette(
            routes=[
                *self._operating.routes(),
                *self._events.routes(),
                Route("/v1/models", self._models),
                route("/v1/models/{name:path}", GET=self._model),
                Route("/queue/status", self._status),
                Route("/metrics", self._tell_metrics),
                *(Route(path, self._live) for path in ("/health", "/health/live", "/api/v1/health")),
                Route("/health/ready", self._ready),
                Route("/openapi.json", self._openapi),
                *JobRoutes(self._gateway, self._access, self._closing).routes(),
                *DeadLetterRoutes(self._gateway, self._access, self._closing).routes(),
                *FileRoutes(self._gateway, self._access, self._closing).routes(),
                *BatchRoutes(self._gateway, self._access, self._closing).routes(),
                *WebhookRoutes(self._gateway, self._access, self._closing).routes(),
                *AppRoutes(self._mounted, self._access, self._closing).routes(),
                *self._dashboard.routes(),
            ],
            exception_handlers={
                HTTPException: self._dashboard.tell_http_error,
                ClientDisconnect: tell_nobody,
                HeadgateError: tell,
                Exception: tell,
            },
        )
        # It would send people to whatever the Host header says.
        app.router.redirect_slashes = False
        return app

    async def _models(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        names = [name for name in self._gateway.routes.names() if caller.may_use(name)]
        return json_reply({"object": "list", "data": [self._shown(name) for name in names]})

    async def _model(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        name = request.path_params["name"]
        if not caller.may_use(name):
            raise UnknownModel(f"there is no model {name[:100]!r}", param="model")
        self._gateway.routes.check(name)
        return json_reply(self._shown(name))

    async def _status(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.WATCH)
        return json_reply(self._gateway.status(caller.tenant))

    async def _tell_metrics(self, request: Request) -> Response:
        admit(self._access, request, Action.WATCH)
        return Response(self._metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _live(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's shape
        return json_reply({"status": "ok"})

    async def _ready(self, request: Request) -> Response:  # noqa: ARG002 - as above
        """Whether to send traffic here. A store that is away does not stop direct calls; one that is lost needs a restart."""
        store = self._gateway.durable.store
        removed = store.files_removed
        told = {
            "status": "draining" if self._closing.is_set() else "database_lost" if removed else "ready",
            "database": "ok" if store.health is StoreHealth.OK and not removed else "down",
        }
        return json_reply(told, status=200 if told["status"] == "ready" else 503)

    async def _openapi(self, request: Request) -> Response:  # noqa: ARG002 - as above
        return Response(self._document, media_type="application/json")

    def _shown(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": int(self._started_at), "owned_by": "headgate"}
