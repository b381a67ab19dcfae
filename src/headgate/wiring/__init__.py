"""The composition root: the only place that names concrete providers and stores, and puts the parts together."""

import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headgate.batches.files import Files
from headgate.blocking import BlockingGateway
from headgate.calls.dispatcher import Dispatcher
from headgate.calls.gate import Gate
from headgate.calls.jobcalls import JobCalls
from headgate.calls.requests import Requests
from headgate.calls.routes import Route, Routes
from headgate.calls.upstream import Upstream
from headgate.core.budget import RetryBudget
from headgate.core.hedging import Hedging
from headgate.core.ports.clock import Chance, Clock
from headgate.core.ports.store import Store
from headgate.core.waiting import WaitingBytes
from headgate.gateway import Gateway
from headgate.machine.clock import SystemClock
from headgate.machine.disk import Disk, Quota
from headgate.machine.ids import random_id
from headgate.machine.secret_key import SecretKey
from headgate.mounting import App
from headgate.observe.eventlog import EventLog
from headgate.observe.fanout import EventFanout
from headgate.observe.prices import Prices
from headgate.observe.webhooks import Webhooks
from headgate.runner.builtin import BUILT_IN
from headgate.runner.durable import Durable
from headgate.runner.tasks import Task, TaskTable
from headgate.settings import ModelSettings, Settings, UpstreamSettings, load
from headgate.settings.found import missing_families
from headgate.settings.summary import summary
from headgate.wiring.apps import APPS, build_apps, build_routes
from headgate.wiring.providers import PROVIDERS, ProviderKind, Surroundings, Transports
from headgate.wiring.stores import build_store, database_file
from headgate.wiring.tracing import build_tracing

if TYPE_CHECKING:
    from headgate.observe.tracing import Tracing

logger = logging.getLogger("headgate")
SIMULATED: Final = "simulated"
__all__ = [
    "APPS",
    "PROVIDERS",
    "ProviderKind",
    "Surroundings",
    "build",
    "build_routes",
    "open",
    "open_blocking",
    "opened",
    "read_settings",
]

SettingsSource = Settings | Mapping[str, Any] | str | Path | None
"""Built settings, a mapping shaped like headgate.yaml, a path to one, or None for ./headgate.yaml or defaults."""


def read_settings(
    source: SettingsSource = None,
    *,
    env: Mapping[str, str] | None = None,
    providers: Mapping[str, ProviderKind] = PROVIDERS,
) -> Settings:
    """Settings from wherever they are, checked in full; every mistake is in the one error raised."""
    checks = {name: kind.check for name, kind in providers.items()}
    return load(source, env=os.environ if env is None else env, providers=checks, apps=APPS)


def build(
    settings: Settings,
    *,
    clock: Clock | None = None,
    chance: Chance | None = None,
    new_id: Callable[[], str] | None = None,
    providers: Mapping[str, ProviderKind] = PROVIDERS,
    store: Store | None = None,
    tasks: Iterable[Task[Any, Any]] = (),
    prices: Prices | None = None,
    tracing: "Tracing | None" = None,
) -> Gateway:
    """A gateway of these settings. Time, chance, ids and the store may be handed in; real ones are the default.

    Prices that nobody loads are unknown, and so are the costs.
    """
    builder = _Builder(
        settings,
        clock or SystemClock(),
        chance or random.random,
        EventFanout(),
        providers,
        new_id or random_id,
        Transports(None if tracing is None else tracing.traceparent),
        prices or Prices(),
        WaitingBytes(settings.limits.waiting_bytes),
        build_apps(settings.apps),
    )
    routes = builder.routes()
    requests = Requests(Dispatcher(routes, clock=builder.clock, chance=builder.chance, emit=builder.fanout))
    durable, webhooks = builder.durable(JobCalls(requests, routes), store, tasks)
    if tracing is not None:
        builder.fanout.listen(tracing)
    return Gateway(
        routes,
        requests,
        durable,
        webhooks,
        builder.files(durable),
        bodies=builder.bodies,
        clock=builder.clock,
        new_id=builder.new_id,
        fanout=builder.fanout,
        close_parts=builder.close_parts,
        reload=_Reloading(builder, routes),
    )


@asynccontextmanager
async def open(  # noqa: A001 - `headgate.open(…)` is how it reads
    settings: SettingsSource = None,
    *,
    env: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    chance: Chance | None = None,
    work: bool = False,
    tasks: Iterable[Task[Any, Any]] = (),
    prices: Prices | None = None,
) -> AsyncIterator[Gateway]:
    """A running gateway: `async with headgate.open() as gateway: await gateway.complete(…)`.

    With `work=True` it also runs jobs: those of `tasks`, of the modules under `jobs.tasks` in the settings,
    of installed packages, and the built-in ones. The database is opened at the first durable call, or at once.
    In virtual time hand in the world's clock and chance (see `headgate.planner.virtual`).
    """
    checked = read_settings(settings, env=env)
    logger.info("%s", summary(checked))
    async with opened(
        checked, clock=clock or SystemClock(), chance=chance, tasks=tasks, prices=prices
    ) as gateway:
        if work:
            await gateway.work()
        yield gateway


@asynccontextmanager
async def opened(
    settings: Settings,
    *,
    clock: Clock,
    chance: Chance | None = None,
    tasks: Iterable[Task[Any, Any]] = (),
    prices: Prices | None = None,
) -> AsyncIterator[Gateway]:
    """A running gateway of checked settings, with its event log and its traces."""
    tracing = build_tracing(clock) if settings.tracing else None
    gateway = build(settings, clock=clock, chance=chance, tasks=tasks, prices=prices, tracing=tracing)
    log = EventLog(settings.logs_path, utc=clock.utc)
    gateway.listen(log)
    try:
        yield gateway
    finally:
        await gateway.aclose()
        log.close()
        if tracing is not None:
            await tracing.aclose()


def open_blocking(
    settings: SettingsSource = None,
    *,
    env: Mapping[str, str] | None = None,
    work: bool = False,
    tasks: Iterable[Task[Any, Any]] = (),
) -> BlockingGateway:
    """The same for scripts: `with headgate.open_blocking() as gateway: gateway.complete(…)`."""
    return BlockingGateway(partial(open, settings, env=env, work=work, tasks=tuple(tasks)))


@dataclass(frozen=True, slots=True)
class _Builder:
    settings: Settings
    clock: Clock
    chance: Chance
    fanout: EventFanout
    providers: Mapping[str, ProviderKind]
    new_id: Callable[[], str]
    transports: Transports
    prices: Prices
    bodies: WaitingBytes
    """Those of all gates together, those of reloaded models too."""
    apps: Sequence[App] = ()

    async def close_parts(self) -> None:
        await self.transports.aclose()
        for app in self.apps:
            app.close()

    def durable(
        self, calls: JobCalls, store: Store | None, tasks: Iterable[Task[Any, Any]]
    ) -> tuple[Durable, Webhooks]:
        settings, table = self.settings, self._tasks(tasks)
        store = store or build_store(settings, clock=self.clock, new_id=self.new_id)
        webhooks = Webhooks(
            settings.webhooks,
            store,
            table,
            clock=self.clock,
            chance=self.chance,
            emit=self.fanout,
            # The other half is always there for everything else.
            most_at_once=max(1, settings.jobs.workers // 2),
            secret_key=SecretKey(settings.secret_key, settings.data_dir),
            alert_url=settings.alerts.webhook,
        )
        table.add(webhooks.task)
        durable = Durable(
            store,
            table,
            calls,
            rules=settings.jobs,
            idempotency=settings.idempotency,
            quota=self._quota(keeps_free=_on_our_disk(settings)),
            folder=settings.data_dir / "nodes",
            clock=self.clock,
            chance=self.chance,
            new_id=self.new_id,
            emit=self.fanout,
            follow_ups=webhooks.follow_ups,
            check_webhook=webhooks.check_url,
            check_key=webhooks.secrets.check,
        )
        return durable, webhooks

    def files(self, durable: Durable) -> Files:
        return Files(
            durable,
            self.settings.data_dir / "files",
            clock=self.clock,
            new_id=self.new_id,
            quota=durable.quota if _on_our_disk(self.settings) else self._quota(keeps_free=True),
            most_bytes=self.settings.limits.file_bytes,
        )

    def _quota(self, *, keeps_free: bool) -> Quota:
        """`keeps_free`: what it bounds is written to `data_dir`. A database elsewhere has a disk of its own."""
        limits = self.settings.limits
        floor = limits.min_free_bytes if keeps_free else 0
        return Quota(
            limits.tenant_bytes, Disk(self.settings.data_dir, min_free_bytes=floor, clock=self.clock)
        )

    def _tasks(self, handed_in: Iterable[Task[Any, Any]]) -> TaskTable:
        of_apps = [task for app in self.apps for task in app.tasks]
        table = TaskTable((*BUILT_IN, *of_apps, *handed_in))
        for path in self.settings.jobs.tasks:
            table.load(path)
        return table

    def routes(self) -> Routes:
        models = self.settings.models
        fixed = {name: model for name, model in models.items() if not name.endswith("/*")}
        # The built-in model waits in the wings while there are others: nobody counts its slots as theirs.
        asides = {SIMULATED: fixed.pop(SIMULATED)} if len(fixed) > 1 and _built_in(fixed) else {}
        families = {name: model for name, model in models.items() if name.endswith("/*")}
        return Routes(
            [self._route(name, model) for name, model in fixed.items()],
            {name: partial(self._member, name, model) for name, model in families.items()},
            {name: partial(self._route, name, model) for name, model in asides.items()},
            missing_families(),
        )

    def _member(self, family: str, settings: ModelSettings, name: str) -> Route:
        return self._route(name, settings, member=name.removeprefix(family.removesuffix("*")))

    def _route(self, name: str, settings: ModelSettings, member: str | None = None) -> Route:
        taken: dict[str, int] = {}
        upstreams = tuple(
            self._upstream(upstream, settings, member, taken) for upstream in settings.upstreams
        )
        return Route(
            name,
            upstreams,
            settings.timeouts,
            settings.balance,
            settings.gather,
            settings.stream_rescue,
            settings.patience_s,
            settings.wait,
            None if settings.hedge is None else Hedging(settings.hedge),
        )

    def _upstream(
        self, settings: UpstreamSettings, model: ModelSettings, member: str | None, taken: dict[str, int]
    ) -> Upstream:
        provider_model = settings.model or member
        name = _unique("/".join(filter(None, (settings.provider, provider_model))), taken)
        surroundings = Surroundings(
            clock=self.clock, chance=self.chance, timeouts=model.timeouts, transports=self.transports
        )
        gate = Gate(name, settings.gate, clock=self.clock, chance=self.chance, bodies=self.bodies)
        return Upstream(
            name,
            self.providers[settings.provider].build(provider_model, settings.options, surroundings),
            gate,
            policy=model.retry,
            timeouts=model.timeouts,
            budget=RetryBudget(settings.retry_budget),
            clock=self.clock,
            emit=self.fanout,
            spill=settings.spill,
            price=self.prices.of(settings.provider, provider_model, settings.options.get("base_url")),
        )


class _Reloading:
    """Takes new settings to the routes. What else they say needs a new start."""

    def __init__(self, builder: _Builder, routes: Routes) -> None:
        self._builder = builder
        self._routes = routes

    def __call__(self, settings: Settings) -> None:
        before = self._builder.settings.models
        unchanged = {name for name, model in settings.models.items() if before.get(name) == model}
        builder = replace(self._builder, settings=settings)
        routes = builder.routes()
        for name in settings.models.keys() & before.keys() - unchanged:
            self._inherit(routes, name, before[name].upstreams, settings.models[name].upstreams)
        self._routes.renew(routes, unchanged)
        self._builder = builder

    def _inherit(
        self, routes: Routes, name: str, old: Sequence[UpstreamSettings], new: Sequence[UpstreamSettings]
    ) -> None:
        """What was learned about an upstream outlives a change of its model, but none of its own settings."""
        if name.endswith("/*"):
            return
        known = list(zip(old, self._routes.find(name).upstreams, strict=True))
        for settings, upstream in zip(new, routes.find(name).upstreams, strict=True):
            # Two with the same settings keep their order.
            found = next((pair for pair in known if pair[0] == settings), None)
            if found is not None:
                known.remove(found)
                upstream.gate.admission.intake.inherit(found[1].gate.admission.intake)


def _on_our_disk(settings: Settings) -> bool:
    return database_file(settings) is not None


def _built_in(models: Mapping[str, ModelSettings]) -> bool:
    return models.get(SIMULATED) == ModelSettings(upstreams=(UpstreamSettings(provider=SIMULATED),))


def _unique(name: str, taken: dict[str, int]) -> str:
    """Two upstreams of one model may be the same provider model with different keys."""
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}#{taken[name]}"
