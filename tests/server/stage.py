"""A real gateway behind a real port, in the test's own loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headgate import wiring
from headgate.core.events import Event
from headgate.core.ports.alerts import AlertBoard
from headgate.gateway import Gateway
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id
from headgate.mounting import AppRoute
from headgate.observe.tracing import Tracing
from headgate.runner.tasks import Task
from headgate.server.access import Access, OpenAccess
from headgate.server.http import HttpLimits
from headgate.server.serving import Serving
from headgate.wiring.alerting import build_alerts


@dataclass
class House:
    """What a test can reach."""

    gateway: Gateway
    serving: Serving
    port: int
    events: list[Event] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def all_free(self) -> bool:
        status = self.gateway.status()
        return status.available_slots == status.total_slots and not status.rt_queue + status.be_queue


@asynccontextmanager
async def opened(
    settings: Mapping[str, Any],
    *,
    access: Access | None = None,
    limits: HttpLimits | None = None,
    work: bool = False,
    tasks: Iterable[Task[Any, Any]] = (),
    mount: Callable[[Gateway], Sequence[AppRoute]] | None = None,
    tracing: Tracing | None = None,
    alerts: AlertBoard | None = None,
    providers: Mapping[str, wiring.ProviderKind] = wiring.PROVIDERS,
) -> AsyncIterator[House]:
    """Serve these settings until the block ends; `mount` in place of the applications they list."""
    clock = SystemClock()
    checked = wiring.read_settings(settings, env={}, providers=providers)
    gateway = wiring.build(checked, clock=clock, tasks=tasks, tracing=tracing, providers=providers)
    serving = Serving(
        gateway,
        access or OpenAccess(),
        limits=limits or HttpLimits(),
        metrics=lambda: b"",
        alerts=alerts or build_alerts(checked, gateway, clock),
        clock=clock,
        new_id=random_id,
        version="test",
        mounted=wiring.build_routes(checked.apps, gateway) if mount is None else mount(gateway),
    )
    house = House(gateway, serving, await serving.start("127.0.0.1", 0))
    gateway.listen(house.events.append)
    try:
        if work:
            await gateway.work()
        yield house
    finally:
        async with asyncio.timeout(20):
            await serving.stop(1.0)
            await gateway.aclose(1.0)
