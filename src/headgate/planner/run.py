"""One run of a scenario: the real gateway and worker on virtual time, from the first arrival to the last end."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headgate.gateway import Gateway
from headgate.planner import virtual
from headgate.planner.arrivals import Arrivals
from headgate.planner.books import Books
from headgate.planner.scenario import Scenario
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
            return Run(books, world.clock.now(), max(item.arrived_at for item in books.items))

    return virtual.run(main, seed=seed)


async def _play(gateway: Gateway, arrivals: Arrivals, books: Books, scenario: Scenario) -> None:
    if scenario.has_jobs:
        await gateway.work()
    async with asyncio.TaskGroup() as group:
        for load in scenario.loads:
            group.create_task(arrivals.come(gateway, load))
    await books.finished.wait()
