"""The routes of webhooks: a tenant's secret, and delivering again."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.core.access import Action
from headgate.gateway import Gateway
from headgate.server.access import Access
from headgate.server.replies import admit, json_reply


class WebhookRoutes:
    """Of the caller's tenant, like everything about jobs."""

    def __init__(self, gateway: Gateway, access: Access) -> None:
        self._gateway = gateway
        self._access = access

    def routes(self) -> list[Route]:
        return [
            Route("/v1/webhooks/secret", self._secret),
            Route("/v1/jobs/{job_id}/redeliver", self._redeliver, methods=["POST"]),
        ]

    async def _secret(self, request: Request) -> Response:
        """For who may submit jobs: who only looks could forge messages with it."""
        caller = admit(self._access, request, Action.CALL)
        return json_reply({"secret": await self._gateway.webhooks.secret(tenant=caller.tenant)})

    async def _redeliver(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.CALL)
        handle = await self._gateway.webhooks.redeliver(request.path_params["job_id"], tenant=caller.tenant)
        reply = json_reply(await handle.job(), status=202)
        reply.headers["location"] = f"/v1/jobs/{handle.id}"
        return reply
