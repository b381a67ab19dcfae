"""What is read when somebody asks, not counted as it happens: queues, slots, the health of upstreams, alerts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from headgate.calls.status import QueueStatus, UpstreamStatus
from headgate.core.alert_rules import Rule
from headgate.core.alerts import Alert
from headgate.core.call import Lane
from headgate.core.hold import Condition
from headgate.observe.exposition import Family, Tell, gauge
from headgate.observe.labels import ModelNames

DEPTH: Final = "headgate_queue_depth"
LIMIT: Final = "headgate_limit"
_THIRD_LABEL: Final = {DEPTH: "lane", LIMIT: "measure"}
_GATE_GAUGES: Final[Mapping[str, str]] = {
    DEPTH: "Requests that wait.",
    "headgate_queue_limit": "Requests that may wait; 0: no bound.",
    "headgate_slots": "Calls that may be in flight at one time.",
    "headgate_slots_available": "Free slots.",
    "headgate_accepting": "1 while an interactive call would be let in.",
    "headgate_pause_seconds": "The time to the next probe of an upstream that is closed because it throttles.",
    "headgate_retry_budget_left": "The retries that the upstream's budget still allows.",
    LIMIT: "What the learned limit allows: calls in flight, or starts or tokens a second.",
    "headgate_refused_share": "The share of the upstream's last calls, about 100, that it refused or that failed.",
    "headgate_breaker_open": "1 while the upstream is closed because it fails.",
    "headgate_upstream_held": "1 while the upstream is held back as misconfigured: somebody must look.",
}
_OF_ANY: Final = frozenset(
    {
        LIMIT,
        "headgate_refused_share",
        "headgate_accepting",
        "headgate_pause_seconds",
        "headgate_breaker_open",
        "headgate_upstream_held",
    }
)
"""Flags and waits: over several gates the greatest tells, a sum would not."""


class GateGauges:
    """Queues and slots by model and upstream. Members of a family that never answered stand together under it."""

    def __init__(self, status: Callable[[], QueueStatus], names: ModelNames) -> None:
        self._status = status
        self._names = names

    def collect(self) -> Iterator[Tell]:
        numbers: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _GATE_GAUGES}
        for gate in self._status().upstreams:
            pair = self._names.pair(gate.model, gate.upstream)
            for name, third, number in _read(gate):
                key = pair if third is None else (*pair, third)
                before = numbers[name].get(key, 0.0)
                numbers[name][key] = max(before, number) if name in _OF_ANY else before + number
        for name, words in _GATE_GAUGES.items():
            more = (_THIRD_LABEL[name],) if name in _THIRD_LABEL else ()
            yield partial(gauge, name, words, ("model", "upstream", *more), numbers[name])


def _read(gate: UpstreamStatus) -> Iterator[tuple[str, str | None, float]]:
    yield DEPTH, Lane.INTERACTIVE.value, gate.rt_queue
    yield DEPTH, Lane.BATCH.value, gate.be_queue
    yield "headgate_queue_limit", None, gate.max_queue_depth
    yield "headgate_slots", None, gate.total_slots
    yield "headgate_slots_available", None, gate.available_slots
    yield "headgate_accepting", None, gate.accepting
    yield "headgate_pause_seconds", None, gate.pause_s
    yield "headgate_retry_budget_left", None, gate.budget_left
    yield "headgate_refused_share", None, gate.refused_share
    if gate.limit_most is not None:
        yield LIMIT, gate.limit_measure, gate.limit_most
    yield "headgate_breaker_open", None, gate.condition is Condition.OPEN
    yield "headgate_upstream_held", None, gate.condition is Condition.HELD


def pause_gauge(configured: Iterable[str], paused: Iterable[str]) -> Family:
    """Models under the names that operators pause them by: a family's pause stands under the family."""
    numbers = {(name,): 0.0 for name in configured} | {(name,): 1.0 for name in paused}
    return gauge("headgate_model_paused", "1 while an operator has the model paused.", ("model",), numbers)


def alert_gauge(active: Iterable[Alert]) -> Family:
    numbers = {(rule.value,): 0.0 for rule in Rule}
    for alert in active:
        numbers[alert.rule,] += 1
    return gauge("headgate_alerts", "Alerts that are active.", ("rule",), numbers)
