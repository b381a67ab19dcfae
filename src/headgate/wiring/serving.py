"""`headgate serve`, put together: a gateway, its keys, its metrics, one port."""

import gc
import logging
import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import headgate
from headgate.core.access import check_listening
from headgate.gateway import Gateway
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id
from headgate.observe.alerts import Alerts
from headgate.observe.metrics import Metrics
from headgate.observe.prices import Prices
from headgate.server.access import KeyedAccess
from headgate.server.files import FRAMING_BYTES, UPLOADS
from headgate.server.http import HttpLimits
from headgate.server.serving import Serving
from headgate.settings import Settings
from headgate.settings.front import Address
from headgate.wiring import opened
from headgate.wiring.alerting import alerting
from headgate.wiring.apps import build_routes

logger = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class Served:
    """What is running, and where."""

    gateway: Gateway
    serving: Serving
    host: str
    port: int
    note: str | None
    """What to know about who may connect, if anything."""

    @property
    def url(self) -> str:
        return f"http://{Address(self.host, self.port)}"


@asynccontextmanager
async def serve(settings: Settings, *, work: bool = True) -> AsyncIterator[Served]:
    """Serve until the block ends, then drain. With `work` the process also runs jobs."""
    clock, prices = SystemClock(), Prices()
    async with (
        opened(settings, clock=clock, prices=prices) as gateway,
        alerting(settings, gateway, clock) as alerts,
    ):
        # A node even before its first key: on PostgreSQL it follows the database's clock with each renewal.
        await gateway.durable.join()
        await gateway.models.watch()
        access = KeyedAccess(gateway.durable.store, clock, gateway.durable.meters)
        await access.start()
        metrics = _metrics(gateway, access, alerts)
        try:
            address = settings.address
            note = check_listening(address.host, has_keys=access.has_keys)
            serving = Serving(
                gateway,
                access,
                limits=_limits(settings),
                metrics=metrics.exposition,
                alerts=alerts,
                clock=clock,
                new_id=random_id,
                version=headgate.__version__,
                mounted=build_routes(settings.apps, gateway),
            )
            port = await serving.start(address.host, address.port)
            try:
                threading.Thread(target=_settle, args=[prices.load()], daemon=True).start()
                if work:
                    await gateway.work()
                yield Served(gateway, serving, address.host, port, note)
            finally:
                await serving.stop(settings.limits.drain_s)
        finally:
            await access.aclose()
            await metrics.aclose()


def _settle(loading: threading.Thread) -> None:
    """What is loaded by now stays for good. Looking for garbage among it would stop everybody for 20 ms at a time."""
    loading.join()
    gc.freeze()


def _limits(settings: Settings) -> HttpLimits:
    limits = settings.limits
    return HttpLimits(
        body_bytes=limits.body_bytes,
        larger_bodies={UPLOADS: limits.file_bytes + FRAMING_BYTES},
        header_timeout_s=limits.header_timeout_s,
        body_timeout_s=limits.body_timeout_s,
        connections=limits.connections,
    )


def _metrics(gateway: Gateway, access: KeyedAccess, alerts: Alerts) -> Metrics:
    metrics = Metrics(
        models=gateway.routes.names,
        status=gateway.status,
        paused=lambda: gateway.routes.pauses,
        front_refusals=lambda: access.refusals,
        alerts=alerts.active,
        loop_lag_s=lambda: alerts.loop_lag_s,
        backlog=lambda: gateway.durable.store.backlog(dead_since=math.inf),
        count_jobs=lambda: gateway.jobs.count(tenant=None),
        stored_bytes=gateway.durable.store.stored_bytes,
        epoch=gateway.now,
    )
    gateway.listen(metrics)
    gateway.durable.store.on_trip(metrics.store_took)
    return metrics
