"""What `/queue/status` shows: the gates one by one, and their sum."""

import math
from collections.abc import Iterable, Iterator

import msgspec

from headgate.core.gate_rules import GateStatus
from headgate.core.health import Condition
from headgate.dispatch.routes import Route


class UpstreamStatus(GateStatus, frozen=True, kw_only=True):
    """One gate of one model."""

    model: str
    upstream: str
    condition: Condition
    pause_s: float
    """What is left of a pause that the provider asked for."""
    stopped: bool
    """An operator paused its model."""
    budget_left: float | None = None
    """What is left of its retry budget; None: it has no bound."""


class QueueStatus(GateStatus, frozen=True, kw_only=True):
    """All gates together; `accepting` when any of them would take an interactive call now."""

    upstreams: tuple[UpstreamStatus, ...]


def gate_statuses(routes: Iterable[Route]) -> Iterator[UpstreamStatus]:
    for route in routes:
        for upstream in route.upstreams:
            yield UpstreamStatus(
                model=route.model,
                upstream=upstream.name,
                condition=upstream.condition,
                pause_s=upstream.pause_s(),
                stopped=upstream.gate.stopped is not None,
                budget_left=upstream.budget.tokens if math.isfinite(upstream.budget.tokens) else None,
                **msgspec.structs.asdict(upstream.gate.status()),
            )


def queue_status(routes: Iterable[Route]) -> QueueStatus:
    gates = tuple(gate_statuses(routes))
    unlimited = any(gate.max_queue_depth == 0 for gate in gates)
    return QueueStatus(
        rt_queue=sum(gate.rt_queue for gate in gates),
        be_queue=sum(gate.be_queue for gate in gates),
        total_slots=sum(gate.total_slots for gate in gates),
        available_slots=sum(gate.available_slots for gate in gates),
        accepting=any(gate.accepting for gate in gates),
        max_queue_depth=0 if unlimited else sum(gate.max_queue_depth for gate in gates),
        upstreams=gates,
    )
