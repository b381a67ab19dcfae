"""Metrics for Prometheus: a listener that counts events, and the page that shows the counts.

Each instance has a registry of its own. Labels are bounded (see `labels`), and no label holds a tenant, an id, a key or
anything a provider wrote.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from headgate.calls.status import QueueStatus
from headgate.core import events
from headgate.core.alerts import Alert
from headgate.core.ports.jobs import Backlog
from headgate.core.ports.store import StoreHealth
from headgate.observe.exposition import Family, Tell, gauge, page
from headgate.observe.gauges import GateGauges, alert_gauge, pause_gauge
from headgate.observe.job_counts import JobCounts
from headgate.observe.job_gauges import JobGauges
from headgate.observe.labels import MOST_MEMBERS, MOST_TASKS, BoundedNames, ModelNames
from headgate.observe.request_counts import RequestCounts, UpstreamCounts
from headgate.observe.tallies import Counter, Tallies

logger = logging.getLogger("headgate")
T = TypeVar("T")
COUNTED_TOGETHER: Final = 500
CountJobs = Callable[[], Awaitable[Mapping[str, int]]]
LookAtJobs = Callable[[], Awaitable[Backlog]]


async def _nothing() -> Mapping[str, int]:
    return {}


class Metrics:
    """`gateway.listen(metrics)`, then `metrics.exposition()` whenever Prometheus asks.

    `models` gives the configured names, `status` the gateway's status, `paused` the models that
    operators paused, `front_refusals` those whom the front door did not let in, `alerts` the active ones,
    `loop_lag_s` how late the event loop's timers are, `backlog` and `count_jobs` the jobs of all tenants,
    `stored_bytes` what each tenant stores.
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
        stored_bytes: CountJobs = _nothing,
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
        self._left_out: set[str] = set()
        self._gates = GateGauges(status, names)
        self._jobs = (
            None
            if backlog is None or count_jobs is None
            else JobGauges(backlog, count_jobs, stored_bytes, now=now, epoch=epoch)
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
                try:
                    hearer(event)
                except Exception as error:  # noqa: BLE001 - one event is lost, not the page and those after it
                    self._leave_out(type(event).__name__, error)

    def exposition(self) -> bytes:
        """The page in Prometheus' text format 0.0.4. To be called in the event loop; it waits for nothing."""
        told = page(self.collect()).encode(errors="backslashreplace")
        return told + b"".join(self._safely([partial(generate_latest, self._process)]))

    def collect(self) -> Iterator[Family]:
        """Every metric but those of the process. One that cannot be made is left out."""
        self._count()
        sources = [self._tallies.collect, self._own, self._gates.collect]
        if self._jobs is not None:
            sources.append(self._jobs.collect)
        for tells in self._safely([partial(_listed, source) for source in sources]):
            yield from self._safely(tells)

    def _own(self) -> Iterator[Tell]:
        yield self._refused_at_the_front
        yield self._pauses
        yield self._active_alerts
        yield self._lag
        yield self._up

    def _pauses(self) -> Family:
        return pause_gauge(self._models(), self._paused())

    def _active_alerts(self) -> Family:
        return alert_gauge(self._alerts())

    def _lag(self) -> Family:
        lag = {(): self._loop_lag_s()}
        return gauge("headgate_loop_lag_seconds", "How late a timer was at worst within a minute.", (), lag)

    def _up(self) -> Family:
        return gauge("headgate_store_up", "0 while the database does not work.", (), {(): self._store_up})

    def _safely(self, makers: Iterable[Callable[[], T]]) -> Iterator[T]:
        for make in makers:
            try:
                made = make()
            except Exception as error:  # noqa: BLE001 - who looks at metrics needs the others most of all
                self._leave_out(str(make.args[0] if isinstance(make, partial) else make), error)
            else:
                yield made

    def _leave_out(self, what: str, error: Exception) -> None:
        """Said once: the page is asked for every few seconds."""
        if what not in self._left_out:
            self._left_out.add(what)
            logger.error("the metrics leave out %s", what, exc_info=error)

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


def _listed(source: Callable[[], Iterator[Tell]]) -> list[Tell]:
    return list(source())
