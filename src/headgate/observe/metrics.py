"""Metrics for Prometheus: a listener that counts events, and the page that shows the counts.

Each instance has a registry of its own. Labels are bounded (see `labels`), and no label holds a tenant, an id, a key or
anything a provider wrote.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from headgate.core import events
from headgate.core.alerts import Alert
from headgate.core.ports.jobs import Backlog
from headgate.core.ports.store import StoreHealth
from headgate.dispatch.status import QueueStatus
from headgate.observe.exposition import Family, gauge, page
from headgate.observe.gauges import GateGauges, alert_gauge, pause_gauge
from headgate.observe.job_counts import JobCounts
from headgate.observe.job_gauges import JobGauges
from headgate.observe.labels import MOST_MEMBERS, MOST_TASKS, BoundedNames, ModelNames
from headgate.observe.request_counts import RequestCounts, UpstreamCounts
from headgate.observe.tallies import Counter, Tallies

COUNTED_TOGETHER: Final = 500
CountJobs = Callable[[], Awaitable[Mapping[str, int]]]
LookAtJobs = Callable[[], Awaitable[Backlog]]


class Metrics:
    """`gateway.listen(metrics)`, then `metrics.exposition()` whenever Prometheus asks.

    `models` gives the configured names, `status` the gateway's status, `paused` the models that
    operators paused, `front_refusals` those whom the front door did not let in, `alerts` the active ones,
    `loop_lag_s` how late the event loop's timers are, `backlog` and `count_jobs` the jobs of all tenants.
    """

    def __init__(
        self,
        *,
        models: Callable[[], Iterable[str]],
        status: Callable[[], QueueStatus],
        paused: Callable[[], Iterable[str]] = tuple,
        front_refusals: Callable[[], Mapping[str, int]] = dict,
        alerts: Callable[[], Iterable[Alert]] = tuple,
        loop_lag_s: Callable[[], float] = float,
        backlog: LookAtJobs | None = None,
        count_jobs: CountJobs | None = None,
        now: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
        most_members: int = MOST_MEMBERS,
        most_tasks: int = MOST_TASKS,
    ) -> None:
        names = ModelNames(models, most_members)
        self._tallies = Tallies()
        self._hearers: Mapping[type, Callable[[Any], None]] = {
            **RequestCounts(self._tallies, names).hearers(),
            **UpstreamCounts(self._tallies, names).hearers(),
            **JobCounts(self._tallies, BoundedNames(most_tasks)).hearers(),
            events.StoreChanged: self._store_changed,
        }
        self._models = models
        self._paused = paused
        self._front_refusals = front_refusals
        self._alerts = alerts
        self._loop_lag_s = loop_lag_s
        self._store_up = 1.0
        self._store_s = self._tallies.histogram(
            "headgate_store_seconds", "How long the database took, waiting for its turn included."
        ).row(())
        self._heard: list[events.Event] = []
        self._gates = GateGauges(status, names)
        self._jobs = (
            None
            if backlog is None or count_jobs is None
            else JobGauges(backlog, count_jobs, now=now, epoch=epoch)
        )
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def __call__(self, event: events.Event) -> None:
        """Kept, and counted with others: one by one, counting costs several times as much."""
        self._heard.append(event)
        if len(self._heard) >= COUNTED_TOGETHER:
            self._count()

    def store_took(self, seconds: float) -> None:
        """One trip to the database: `store.on_trip(metrics.store_took)`."""
        self._store_s.put(seconds)

    def _count(self) -> None:
        heard, self._heard = self._heard, []
        for event in heard:
            hearer = self._hearers.get(type(event))
            if hearer is not None:
                hearer(event)

    def exposition(self) -> bytes:
        """The page in Prometheus' text format 0.0.4. To be called in the event loop; it waits for nothing."""
        return page(self.collect()).encode() + generate_latest(self._process)

    def collect(self) -> Iterator[Family]:
        """Every metric but those of the process."""
        self._count()
        yield from self._tallies.collect()
        yield self._refused_at_the_front()
        yield from self._gates.collect()
        yield pause_gauge(self._models(), self._paused())
        yield alert_gauge(self._alerts())
        lag = {(): self._loop_lag_s()}
        yield gauge("headgate_loop_lag_seconds", "How late a timer was at worst within a minute.", (), lag)
        if self._jobs is not None:
            yield from self._jobs.collect()
        yield gauge("headgate_store_up", "0 while the database does not work.", (), {(): self._store_up})

    def _refused_at_the_front(self) -> Family:
        counted = Counter("headgate_front_refusals", "Requests whose key did not let them in.", "reason")
        for reason, count in self._front_refusals().items():
            counted.add((reason,), count)
        return counted.family()

    async def aclose(self) -> None:
        if self._jobs is not None:
            await self._jobs.aclose()

    def _store_changed(self, event: events.StoreChanged) -> None:
        self._store_up = 1.0 if event.health == StoreHealth.OK else 0.0
