"""The routes of webhooks: a tenant's secret, and delivering again."""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.core.access import Action
from headgate.gateway import Gateway
from headgate.server.access import Access
from headgate.server.reading import Nothing, read_body, read_query
from headgate.server.replies import accepted, admit, admit_work, json_reply, route

_nothing: Final = msgspec.json.Decoder(Nothing)


class WebhookRoutes:
    """The routes over one gateway. `closing` is set when the process begins to go away."""

    def __init__(self, gateway: Gateway, access: Access, closing: asyncio.Event) -> None:
        self._gateway = gateway
        self._access = access
        self._closing = closing

    def routes(self) -> list[Route]:
        return [
            route("/v1/webhooks/secret", GET=self._secret),
            route("/v1/jobs/{job_id}/redeliver", POST=self._redeliver),
        ]

    async def _secret(self, request: Request) -> Response:
        """For those who submit jobs: who may only look could else forge messages."""
        caller = admit(self._access, request, Action.CALL)
        read_query(request, Nothing)
        return json_reply({"secret": await self._gateway.webhooks.secret(tenant=caller.tenant)})

    async def _redeliver(self, request: Request) -> Response:
        caller = admit_work(self._access, request, self._closing)
        await read_body(request, _nothing, empty=b"{}")
        handle = await self._gateway.webhooks.redeliver(request.path_params["job_id"], tenant=caller.tenant)
        return accepted(await handle.job())
