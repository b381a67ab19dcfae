"""The alerts of one gateway, put together: what they listen to, what they look at, whom they tell."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from headgate.core.ports.clock import Clock
from headgate.gateway import Gateway
from headgate.observe.alert_sources import Sources
from headgate.observe.alerts import Alerts
from headgate.settings import Settings
from headgate.wiring.apps import build_apps


def build_alerts(settings: Settings, gateway: Gateway, clock: Clock) -> Alerts:
    """They listen, and judge once they are started."""
    sources = Sources(
        status=gateway.status,
        models=gateway.routes.names,
        store=gateway.durable.store,
        folder=settings.data_dir,
        min_free_bytes=settings.limits.min_free_bytes,
        failed_runs={
            app.name: partial(app.failed_runs, gateway)
            for app in build_apps(settings.apps)
            if app.failed_runs is not None
        },
        clock=clock,
    )
    alerts = Alerts(settings.alerts, sources, send=gateway.webhooks.alert, clock=clock)
    gateway.listen(alerts)
    return alerts


@asynccontextmanager
async def alerting(settings: Settings, gateway: Gateway, clock: Clock) -> AsyncIterator[Alerts]:
    """Judge for as long as the block lasts."""
    alerts = build_alerts(settings, gateway, clock)
    alerts.start()
    try:
        yield alerts
    finally:
        await alerts.aclose()
