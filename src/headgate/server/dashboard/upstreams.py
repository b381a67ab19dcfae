"""Upstreams as pages see them: the gate's numbers, and what its health and its budget say."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headgate.core.failures import Failure
from headgate.core.health import Condition
from headgate.dispatch.routes import Route
from headgate.dispatch.status import UpstreamStatus, gate_statuses
from headgate.dispatch.upstream import Upstream


@dataclass(frozen=True, slots=True)
class UpstreamView:
    """One upstream of one model, now."""

    status: UpstreamStatus
    budget_left: float
    """The share of its retry budget."""
    probed_in_s: float | None
    """When it is tried again, if it is left alone."""
    mistake: Failure | None
    """What it said when it was last found misconfigured."""

    @property
    def waiting(self) -> int:
        return self.status.rt_queue + self.status.be_queue

    @property
    def in_use(self) -> int:
        return self.status.total_slots - self.status.available_slots

    @property
    def takes_calls(self) -> bool:
        status = self.status
        return (
            status.condition is Condition.OK
            and not status.stopped
            and not status.pause_s
            and status.accepting
        )

    @property
    def name(self) -> str:
        """`summary → openai/gpt-5-mini`; one that is called as its model needs no arrow."""
        status = self.status
        return status.model if status.model == status.upstream else f"{status.model} → {status.upstream}"


def look(routes: Iterable[Route]) -> list[UpstreamView]:
    routes = list(routes)
    upstreams = [upstream for route in routes for upstream in route.upstreams]
    return [_view(*pair) for pair in zip(upstreams, gate_statuses(routes), strict=True)]


def _view(upstream: Upstream, status: UpstreamStatus) -> UpstreamView:
    budget = upstream.budget
    left = 1.0 if math.isinf(budget.capacity) else budget.tokens / budget.capacity
    return UpstreamView(status, left, upstream.probed_in_s(), upstream.last_mistake)
