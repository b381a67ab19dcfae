"""One run of a scenario: the real gateway and worker on virtual time, from the first arrival to the last end."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headgate.calls.status import UpstreamStatus
from headgate.core.ports.provider import Provider
from headgate.gateway import Gateway
from headgate.planner import virtual
from headgate.planner.arrivals import Arrivals
from headgate.planner.books import Books
from headgate.planner.scenario import Scenario
from headgate.planner.sdk import SdkAlone
from headgate.planner.virtual import World
from headgate.runner.tasks import Task

HORIZON_S: Final = 7 * 86_400.0
"""What has not ended by then counts as unfinished."""

Changes = Mapping[str, float]
"""Settings to be changed, by their names: {"slots": 4}."""


class Bench(Protocol):
    """Where gateways are put together: with the user's settings, some of them changed, and the described upstreams."""

    @property
    def model(self) -> str:
        """Whom all calls go to."""
        ...

    def open(
        self, world: World, scenario: Scenario, changes: Changes, task: Task[Any, Any]
    ) -> AbstractAsyncContextManager[Gateway]:
        """A gateway of its own, with an empty database, in this world."""
        ...

    def provider(self, world: World, scenario: Scenario) -> Provider:
        """The model's first upstream in this world, as it is described."""
        ...

    def values(self, changes: Changes) -> Mapping[str, float | None]:
        """The settings that can be changed, as they are in force then; None: not set."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it. Times are seconds from the first possible arrival."""

    books: Books
    span_s: float
    """Until the last item ended, or until nobody waited any longer."""
    last_arrival_s: float
    learned: Sequence[UpstreamStatus] = ()
    """The model's upstreams at the end, with what the gate knows of each."""


def run_once(bench: Bench, scenario: Scenario, *, changes: Changes, seed: int) -> Run:
    """Play the scenario once. The same seed gives the same arrivals, latencies and failures."""

    async def main(world: World) -> Run:
        books = Books(world.clock.now, scenario.count)
        arrivals = Arrivals(world, books, scenario, bench.model, seed)
        async with bench.open(world, scenario, changes, arrivals.task) as gateway:
            gateway.listen(books.hear)
            with suppress(TimeoutError):
                async with asyncio.timeout(HORIZON_S):
                    await _play(gateway, arrivals, books, scenario)
            known = [model for model in gateway.models.known() if model.model == bench.model]
            return _ended(books, world, [upstream for model in known for upstream in model.upstreams])

    return virtual.run(main, seed=seed)


def run_alone(bench: Bench, scenario: Scenario, *, changes: Changes, seed: int) -> Run:
    """Play the scenario's calls without a gateway: the same arrivals, each with the SDK before the first upstream."""

    async def main(world: World) -> Run:
        books = Books(world.clock.now, scenario.count)
        arrivals = Arrivals(world, books, scenario, bench.model, seed)
        timeout_s = bench.values(changes)["total_s"] or HORIZON_S
        sdk = SdkAlone(bench.provider(world, scenario), world, books.hear, timeout_s=timeout_s)
        async with asyncio.TaskGroup() as group:
            for load in scenario.loads:
                group.create_task(arrivals.call(sdk.complete, load))
        return _ended(books, world)

    return virtual.run(main, seed=seed)


def _ended(books: Books, world: World, learned: Sequence[UpstreamStatus] = ()) -> Run:
    return Run(books, world.clock.now(), max(item.arrived_at for item in books.items), learned)


async def _play(gateway: Gateway, arrivals: Arrivals, books: Books, scenario: Scenario) -> None:
    if scenario.has_jobs:
        await gateway.work()
    async with asyncio.TaskGroup() as group:
        for load in scenario.loads:
            group.create_task(arrivals.come(gateway, load))
    await books.finished.wait()
