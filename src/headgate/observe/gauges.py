"""What is read when somebody asks, not counted as it happens: queues, slots, the health of upstreams, jobs by state."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from prometheus_client.core import GaugeMetricFamily

from headgate.core.errors import HeadgateError
from headgate.core.health import Condition
from headgate.core.job import JobState
from headgate.core.messages import Lane
from headgate.dispatch.status import QueueStatus, UpstreamStatus
from headgate.observe.labels import ModelNames

LOOK_EVERY_S: Final = 5.0
LONGEST_LOOK_S: Final = 30.0
DEPTH: Final = "headgate_queue_depth"
_GATE_GAUGES: Final[Mapping[str, str]] = {
    DEPTH: "Requests that wait.",
    "headgate_queue_limit": "Requests that may wait; 0: no bound.",
    "headgate_slots": "Calls that may be in flight at one time.",
    "headgate_slots_available": "Free slots.",
    "headgate_accepting": "1 while an interactive call would be let in.",
    "headgate_pause_seconds": "What is left of a pause that the provider asked for.",
    "headgate_breaker_open": "1 while the upstream is left alone because it keeps failing.",
    "headgate_upstream_held": "1 while the upstream is held back as misconfigured: somebody must look.",
}
_OF_ANY: Final = frozenset(
    {"headgate_accepting", "headgate_pause_seconds", "headgate_breaker_open", "headgate_upstream_held"}
)
"""Flags and waits: over several gates the greatest tells, a sum would not."""
K = TypeVar("K", bound=tuple[str, ...])


class GateGauges:
    """Queues and slots by model and upstream. Members of a family that never answered stand together under it."""

    def __init__(self, status: Callable[[], QueueStatus], names: ModelNames) -> None:
        self._status = status
        self._names = names

    def collect(self) -> Iterator[GaugeMetricFamily]:
        numbers: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _GATE_GAUGES}
        for gate in self._status().upstreams:
            pair = self._names.pair(gate.model, gate.upstream)
            for name, lane, number in _read(gate):
                key = pair if lane is None else (*pair, lane.value)
                before = numbers[name].get(key, 0.0)
                numbers[name][key] = max(before, number) if name in _OF_ANY else before + number
        for name, words in _GATE_GAUGES.items():
            labels = ("model", "upstream", "lane") if name == DEPTH else ("model", "upstream")
            yield _gauge(name, words, labels, numbers[name])


def _read(gate: UpstreamStatus) -> Iterator[tuple[str, Lane | None, float]]:
    yield DEPTH, Lane.INTERACTIVE, gate.rt_queue
    yield DEPTH, Lane.BATCH, gate.be_queue
    yield "headgate_queue_limit", None, gate.max_queue_depth
    yield "headgate_slots", None, gate.total_slots
    yield "headgate_slots_available", None, gate.available_slots
    yield "headgate_accepting", None, gate.accepting
    yield "headgate_pause_seconds", None, gate.pause_s
    yield "headgate_breaker_open", None, gate.condition is Condition.OPEN
    yield "headgate_upstream_held", None, gate.condition is Condition.HELD


def pause_gauge(configured: Iterable[str], paused: Iterable[str]) -> GaugeMetricFamily:
    """Models under the names that operators pause them by: a family's pause stands under the family."""
    numbers = {(name,): 0.0 for name in configured} | {(name,): 1.0 for name in paused}
    return _gauge("headgate_model_paused", "1 while an operator has the model paused.", ("model",), numbers)


class JobGauges:
    """Jobs by state. A scrape shows the last look at the store and begins another: it never waits for one."""

    def __init__(self, count: Callable[[], Awaitable[Mapping[str, int]]], now: Callable[[], float]) -> None:
        self._count = count
        self._now = now
        self._counted: Mapping[str, int] = {}
        self._counted_at = -math.inf
        self._look: asyncio.Task[None] | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if self._look is None and self._now() - self._counted_at >= LOOK_EVERY_S:
            self._look = asyncio.get_running_loop().create_task(self._look_up(), name="headgate job count")
        if self._counted_at > -math.inf:
            states = {(state.value,): float(self._counted.get(state, 0)) for state in JobState}
            yield _gauge("headgate_jobs", "Jobs in the store.", ("state",), states)
            age = {(): self._now() - self._counted_at}
            yield _gauge(
                "headgate_jobs_look_age_seconds", "How old the numbers of headgate_jobs are.", (), age
            )

    async def aclose(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait({self._look})

    async def _look_up(self) -> None:
        try:
            async with asyncio.timeout(LONGEST_LOOK_S):
                self._counted = await self._count()
            self._counted_at = self._now()
        except (HeadgateError, TimeoutError):
            # The age of what we have says it, and headgate_store_up why.
            return
        finally:
            self._look = None


def _gauge(name: str, words: str, labels: tuple[str, ...], numbers: Mapping[K, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=labels)
    for key, number in numbers.items():
        family.add_metric(key, number)
    return family
