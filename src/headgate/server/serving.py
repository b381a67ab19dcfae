"""One gateway behind one port: put together, started, and drained when it goes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headgate.calls.requests import LARGE_BYTES
from headgate.core.call import Format
from headgate.core.errors import InvalidRequest
from headgate.core.ports.alerts import AlertBoard
from headgate.core.ports.clock import Clock
from headgate.gateway import Gateway
from headgate.mounting import AppRoute
from headgate.observe.recent import RecentRequests
from headgate.observe.ring import EventRing
from headgate.runner.submission import Submission
from headgate.server.access import Access, Headers
from headgate.server.app import HttpApp
from headgate.server.dashboard.dashboard import Dashboard
from headgate.server.dashboard.sources import listen
from headgate.server.events import EventRoutes
from headgate.server.http import HttpLimits, Server
from headgate.server.inference.route import Inference, JobAsked, Submitted
from headgate.server.rest import Rest

_TASKS = {Format.CHAT: "chat", Format.EMBEDDINGS: "embeddings"}


class Serving:
    """`await start(…)`, and `await stop(…)` when it is time to go."""

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        *,
        limits: HttpLimits,
        metrics: Callable[[], bytes],
        alerts: AlertBoard,
        clock: Clock,
        new_id: Callable[[], str],
        version: str,
        mounted: Sequence[AppRoute] = (),
    ) -> None:
        self._gateway = gateway
        self._access = access
        recent, self._ring = RecentRequests(clock.utc), EventRing(clock.utc)
        gateway.listen(recent)
        gateway.listen(self._ring)
        self._closing = asyncio.Event()
        self._events = EventRoutes(self._ring, access, self._closing, clock=clock, run=new_id())
        inference = Inference(
            gateway.requests,
            gateway.keyed,
            access,
            now=clock.now,
            new_id=new_id,
            mismatch_status=gateway.durable.idempotency.mismatch_status,
            submit=self._submit,
            draining=self._closing.is_set,
            emit=gateway.emit,
            bodies=gateway.bodies,
        )
        self._dashboard = Dashboard(listen(gateway, access, recent, clock, alerts, new_id), new_id)
        rest = Rest(
            gateway,
            access,
            closing=self._closing,
            metrics=metrics,
            recent=recent,
            alerts=alerts,
            events=self._events,
            dashboard=self._dashboard,
            mounted=mounted,
            started_at=clock.utc().timestamp(),
            version=version,
        )
        app = rest.app()
        self.routes = app.routes
        """All but those of inference."""
        http = HttpApp(inference, app, new_id, gateway.emit, gateway.bodies)
        self.server = Server(http, limits=limits, door=access, tenant_of=self._tenant_of)

    async def start(self, host: str, port: int) -> int:
        """Returns the port that is listened on."""
        return await self.server.start(host, port)

    async def stop(self, drain_s: float) -> None:
        """Ready is 503 and new requests are refused at once; who waits is dismissed, who is served may finish.

        While anybody is being served the port stays open, so that whoever asks hears of it.
        """
        ends_at = asyncio.get_running_loop().time() + drain_s
        self._closing.set()
        self._dashboard.close()
        self._gateway.routes.close()
        working = asyncio.ensure_future(self._gateway.durable.stop_working(drain_s))
        try:
            await self._gateway.landed(drain_s)
            self._ring.close()
            await self.server.drain(max(0.0, ends_at - asyncio.get_running_loop().time()))
        finally:
            await working

    def _tenant_of(self, headers: Headers) -> str | None:
        return self._access.tenant_of(headers) or self._dashboard.tenant_of(headers)

    async def _submit(self, asked: JobAsked) -> Submitted:
        """`Prefer: respond-async`: the request becomes a job, and the answer its record."""
        task = _TASKS.get(asked.wanted)
        if task is None:
            raise InvalidRequest(
                "this route cannot respond asynchronously; use chat completions", param="Prefer"
            )
        if asked.body.stream:
            raise InvalidRequest("a job cannot stream: leave out stream", param="stream")
        given = _read(asked.data)
        if len(asked.data) > LARGE_BYTES:
            await asyncio.sleep(0)
        if asked.body.tier is not None:
            given.pop("service_tier", None)  # It was ours, and is the job's lane now.
        [handle] = await self._gateway.jobs.submit_inside(
            [Submission(task=task, input=given, lane=asked.lane)],
            tenant=asked.tenant,
            idempotency_key=asked.key,
            # The place of a direct call's key: one that comes back the other way is another request's.
            endpoint=asked.wanted,
            inside=False,
        )
        return Submitted(handle.id, msgspec.json.encode(await handle.accepted()), handle.created)


def _read(body: bytes) -> dict[str, Any]:
    """Until here nobody has looked inside its values."""
    try:
        given: dict[str, Any] = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is no JSON that can be read: {error}") from None
    return given
