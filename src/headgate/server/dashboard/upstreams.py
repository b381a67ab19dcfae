"""Upstreams as pages see them: the gate's numbers, and what was learned of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from headgate.calls.routes import Route
from headgate.calls.status import State, UpstreamStatus, gate_statuses
from headgate.calls.upstream import Upstream
from headgate.core.failures import Failure


@dataclass(frozen=True, slots=True)
class UpstreamView:
    """One upstream of one model, now."""

    status: UpstreamStatus
    budget_left: float
    """The share of its retry budget."""
    budget_strict: bool
    """Without budget failed calls are not retried; else throttled calls only wait longer."""
    mistake: Failure | None
    """How it was last found misconfigured."""

    @property
    def waiting(self) -> int:
        return self.status.rt_queue + self.status.be_queue

    @property
    def in_use(self) -> int:
        return self.status.total_slots - self.status.available_slots

    @property
    def takes_calls(self) -> bool:
        return self.status.state is State.OPEN and self.status.accepting

    @property
    def at_its_limit(self) -> bool:
        """As many calls wait because of the learned limit as are in flight."""
        return bool(self.status.limit) and self.waiting >= max(1, self.in_use)

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
    return UpstreamView(status, upstream.budget.share_left, upstream.budget.strict, upstream.last_mistake)
