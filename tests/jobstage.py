"""Gateways with workers on one real database, in virtual time or on real loops: jobs go through every part there is.

`@on_job_stages` turns `async def test_…(stages, …)` into a test that opens as many of them as it likes; all are
closed at its end. What they share is the database, the clock and chance. `@on_each_loop` does the same on every loop.
"""

import asyncio
import functools
import importlib
import inspect
import itertools
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from loops import Run, World

from headgate import wiring
from headgate.core.events import Event
from headgate.core.job import Job, JobState
from headgate.core.ports.store import Store
from headgate.gateway import Gateway
from headgate.mounting import App
from headgate.planner import virtual
from headgate.providers.simulated import SimulatedProvider
from headgate.runner.jobs import JobHandle
from headgate.runner.tasks import Task

E = TypeVar("E", bound=Event)
MakeStore = Callable[[World, Callable[[], str]], Store]
STEADY = {"jitter": "none", "first_wait_s": 5.0}
"""A retry policy whose waits are known beforehand: 5, 10, 20, … s."""
PATIENCE_S = 100 * 3600.0
"""A job that never ends is a failure with a name: virtual time would run on for ever."""


@dataclass
class JobStage:
    """One gateway, its worker (if it was asked for) and all its events."""

    world: World
    gateway: Gateway
    events: list[Event] = field(default_factory=list)

    @property
    def now(self) -> float:
        return self.world.clock.now()

    @property
    def epoch(self) -> float:
        """The same in epoch seconds."""
        return self.world.clock.utc().timestamp()

    @property
    def provider(self) -> SimulatedProvider:
        return self.provider_of("m")

    def provider_of(self, model: str) -> SimulatedProvider:
        found = self.gateway.routes.find(model).upstreams[0].provider
        assert isinstance(found, SimulatedProvider)
        return found

    def told(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def submit(self, task: str | Task[Any, Any], given: Any = None, **options: Any) -> JobHandle:
        return await self.gateway.jobs.submit(task, given, **options)

    async def ended(self, task: str | Task[Any, Any], given: Any = None, **options: Any) -> Job:
        """Submit a job and see how it ends."""
        return await (await self.submit(task, given, **options)).wait()

    async def job(self, handle: JobHandle) -> Job:
        return await self.gateway.jobs.get(handle.id)

    async def until(self, handle: JobHandle, state: JobState) -> Job:
        """Wait until the job is there; in virtual time looking costs nothing."""
        while (job := await handle.job()).state is not state:
            await self.world.clock.sleep(0.5)
        return job


class JobStages:
    """All gateways of one test, on one database."""

    def __init__(self, world: World, folder: Path, make_store: MakeStore | None = None) -> None:
        self.world = world
        self.folder = folder
        self._make_store = make_store
        self._ids = map("{:020}".format, itertools.count())
        self._open: list[JobStage] = []
        self._apps: list[App] = []

    @property
    def now(self) -> float:
        return self.world.clock.now()

    async def open(
        self,
        *upstreams: Mapping[str, Any],
        tasks: Iterable[Task[Any, Any]] = (),
        app: App | None = None,
        work: bool = True,
        jobs: Mapping[str, Any] | None = None,
        models: Mapping[str, Any] | None = None,
        providers: Mapping[str, wiring.ProviderKind] = wiring.PROVIDERS,
        **settings: Any,
    ) -> JobStage:
        """A gateway whose model `m` has these upstreams: one that answers after a second, unless said otherwise.

        Of an `app` that is built by hand it runs the tasks; the app is closed in the end.
        """
        if app is not None:
            self._apps.append(app)
            tasks = [*tasks, *app.tasks]
        listed = [{"provider": "simulated", **one} for one in upstreams or ({"latency_s": 1.0},)]
        rules = {"retry": STEADY, **(jobs or {})}
        file = {"data_dir": str(self.folder), "models": {"m": {"upstreams": listed}, **(models or {})}}
        gateway = wiring.build(
            wiring.read_settings({**file, "jobs": rules, **settings}, env={}, providers=providers),
            clock=self.world.clock,
            chance=self.world.chance,
            new_id=self._ids.__next__,
            providers=providers,
            store=None if self._make_store is None else self._make_store(self.world, self._ids.__next__),
            tasks=tasks,
        )
        stage = JobStage(self.world, gateway)
        gateway.listen(stage.events.append)
        self._open.append(stage)
        if work:
            await gateway.work()
        return stage

    async def aclose(self) -> None:
        """Whatever still runs is given back; a test that wants to see how closes its gateways itself."""
        try:
            for stage in self._open:
                await stage.gateway.aclose(drain_s=0.0)
        finally:
            for app in self._apps:
                app.close()


def on_job_stages(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test gets `stages`, and everything else it asks pytest for."""
    return _staged(test)


def on_each_database(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The same on SQLite and on PostgreSQL; needs the fixture `database` below."""
    return _staged(test, "database")


def on_each_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The same in virtual time, on asyncio's loop and on uvloop; times are short there, and are not asserted."""
    return _staged(test, "run")


def _staged(test: Callable[..., Awaitable[None]], *more: str) -> Callable[..., None]:
    wanted = inspect.signature(test).parameters

    @functools.wraps(test)
    def staged(
        tmp_path: Path, database: MakeStore | None = None, run: Run = virtual.run, **others: Any
    ) -> None:
        given = {**others, **({"tmp_path": tmp_path} if "tmp_path" in wanted else {})}

        async def main(world: World) -> None:
            stages = JobStages(world, tmp_path / "data", database)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await test(stages=stages, **given)
            finally:
                await stages.aclose()

        run(main)

    ours = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("tmp_path", *more)]
    rest = [wanted[name] for name in wanted if name not in {"stages", "tmp_path"}]
    staged.__signature__ = inspect.Signature([*ours, *rest])  # type: ignore[attr-defined]  # pytest reads it
    return staged


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> MakeStore | None:
    """How a gateway gets its store; None: as it does by itself, from its settings."""
    if request.param == "sqlite":
        return None
    try:
        adapter: Any = importlib.import_module("headgate.stores.postgres").PostgresStore
    except (ImportError, AttributeError) as error:
        missing = f"headgate.stores.postgres.PostgresStore cannot be imported: {error}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    url = request.getfixturevalue("postgres_url")
    # In virtual time the database's own clock means nothing.
    return lambda world, new_id: adapter(url, clock=world.clock, new_id=new_id)
