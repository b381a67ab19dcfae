"""Metrics for Prometheus: a listener that counts events, and the page that shows the counts.

Each instance has a registry of its own. Labels are bounded (see `labels`), and no label holds a tenant, an id, a key or
anything a provider wrote.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headgate.core import events
from headgate.core.ports.store import StoreHealth
from headgate.dispatch.status import QueueStatus
from headgate.observe.gauges import GateGauges, JobGauges, pause_gauge
from headgate.observe.job_counts import JobCounts
from headgate.observe.labels import MOST_MEMBERS, MOST_TASKS, ModelNames, TaskNames
from headgate.observe.request_counts import RequestCounts, UpstreamCounts
from headgate.observe.tallies import Tallies

COUNTED_TOGETHER: Final = 500
CountJobs = Callable[[], Awaitable[Mapping[str, int]]]


class Metrics:
    """`gateway.listen(metrics)`, then `metrics.exposition()` whenever Prometheus asks.

    `models` gives the configured names, `status` the gateway's status, `paused` the models that
    operators paused, `front_refusals` those whom the front door did not let in, `count_jobs` everybody's jobs by state.
    """

    def __init__(
        self,
        *,
        models: Callable[[], Iterable[str]],
        status: Callable[[], QueueStatus],
        paused: Callable[[], Iterable[str]] = tuple,
        front_refusals: Callable[[], Mapping[str, int]] = dict,
        count_jobs: CountJobs | None = None,
        now: Callable[[], float] = time.monotonic,
        most_members: int = MOST_MEMBERS,
        most_tasks: int = MOST_TASKS,
    ) -> None:
        names = ModelNames(models, most_members)
        self._tallies = Tallies()
        self._hearers: Mapping[type, Callable[[Any], None]] = {
            **RequestCounts(self._tallies, names).hearers(),
            **UpstreamCounts(self._tallies, names).hearers(),
            **JobCounts(self._tallies, TaskNames(most_tasks)).hearers(),
            events.StoreChanged: self._store_changed,
        }
        self._models = models
        self._paused = paused
        self._front_refusals = front_refusals
        self._store_up = 1.0
        self._heard: list[events.Event] = []
        self._gates = GateGauges(status, names)
        self._jobs = None if count_jobs is None else JobGauges(count_jobs, now)
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def __call__(self, event: events.Event) -> None:
        """Kept, and counted with others: one by one, counting costs several times as much."""
        self._heard.append(event)
        if len(self._heard) >= COUNTED_TOGETHER:
            self._count()

    def _count(self) -> None:
        heard, self._heard = self._heard, []
        for event in heard:
            hearer = self._hearers.get(type(event))
            if hearer is not None:
                hearer(event)

    def exposition(self) -> bytes:
        """The page in Prometheus' text format 0.0.4. To be called in the event loop; it waits for nothing."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """For the registry, which would otherwise collect once to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        self._count()
        yield from self._tallies.collect()
        yield self._refused_at_the_front()
        yield from self._gates.collect()
        yield pause_gauge(self._models(), self._paused())
        if self._jobs is not None:
            yield from self._jobs.collect()
        yield GaugeMetricFamily("headgate_store_up", "0 while the database does not work.", self._store_up)

    def _refused_at_the_front(self) -> Metric:
        family = CounterMetricFamily(
            "headgate_front_refusals", "Requests whose key did not let them in.", labels=("reason",)
        )
        for reason, count in self._front_refusals().items():
            family.add_metric((reason,), count)
        return family

    async def aclose(self) -> None:
        if self._jobs is not None:
            await self._jobs.aclose()

    def _store_changed(self, event: events.StoreChanged) -> None:
        self._store_up = 1.0 if event.health == StoreHealth.OK else 0.0
