"""What `/queue/status` shows: the gates one by one, and their sum."""

import enum
from collections.abc import Iterable, Iterator

import msgspec

from headgate.calls.routes import Route
from headgate.core.gate_rules import GateStatus
from headgate.core.hold import Condition


class State(enum.StrEnum):
    """Whether calls go to an upstream, and why not."""

    OPEN = "open"
    THROTTLING = "closed: throttling"
    FAILING = "closed: failing"
    HELD = "held: misconfigured"
    PAUSED = "paused by an operator"


class UpstreamStatus(GateStatus, frozen=True, kw_only=True):
    """One gate of one model."""

    model: str
    upstream: str
    condition: Condition
    pause_s: float
    """What is left until the next probe, where it is closed because it throttles."""
    stopped: bool
    """An operator paused its model."""
    closed: bool = False
    """No call starts before a probe has passed."""
    probe_in_s: float | None = None
    """When the next probe may go, where it is closed or held; 0: now."""
    refused_share: float = 0.0
    """The share of its last calls, about 100, that it refused or that failed."""
    limit: str = ""
    """The learned limit in words; empty: none was learned."""
    limit_measure: str | None = None
    """`in_flight`, `starts` or `tokens` (a second)."""
    limit_most: float | None = None
    """What the limit allows."""
    limit_proven: bool | None = None
    """False while it is on trial."""
    budget_left: float = 0.0
    """The retries that its budget still allows."""

    @property
    def state(self) -> State:
        """The first of these that holds: an operator's pause, a wrong set-up, failures, throttles."""
        if self.stopped:
            return State.PAUSED
        if self.condition is Condition.HELD:
            return State.HELD
        if self.condition is Condition.OPEN:
            return State.FAILING
        return State.THROTTLING if self.closed else State.OPEN


class QueueStatus(GateStatus, frozen=True, kw_only=True):
    """All gates together; `accepting` when any of them would take an interactive call now."""

    upstreams: tuple[UpstreamStatus, ...]


def gate_statuses(routes: Iterable[Route], tenant: str = "local") -> Iterator[UpstreamStatus]:
    for route in routes:
        for upstream in route.upstreams:
            yield UpstreamStatus(
                model=route.model,
                upstream=upstream.name,
                condition=upstream.condition,
                pause_s=upstream.pause_s(),
                stopped=upstream.gate.stopped is not None,
                closed=upstream.closed,
                probe_in_s=upstream.probed_in_s(),
                refused_share=round(upstream.refused_lately, 3),
                limit="" if (limit := upstream.limit) is None else limit.words,
                limit_measure=None if limit is None else limit.measure.name.lower(),
                limit_most=None if limit is None else round(limit.allows, 1),
                limit_proven=None if limit is None else limit.proven,
                budget_left=upstream.budget.left,
                **msgspec.structs.asdict(upstream.gate.status(tenant)),
            )


def queue_status(routes: Iterable[Route], tenant: str = "local") -> QueueStatus:
    gates = tuple(gate_statuses(routes, tenant))
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
