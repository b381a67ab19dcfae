"""When a call at a gate has its turn and its answer, as far as is measured: for refusals, choices and `Retry-After`."""

from headgate.core.call import Lane
from headgate.core.drain import LONGEST_RETRY_S, Drain
from headgate.core.intake import Intake
from headgate.core.limit import Measure
from headgate.core.pacing import Pacing
from headgate.core.ticket import Ticket
from headgate.core.turns import Turns


class Forecast:
    """Reads the parts of a gate, and remembers when rejected callers are expected back."""

    __slots__ = ("_drain", "_intake", "_pacing", "_slots", "_turns")

    def __init__(self, slots: int, intake: Intake, pacing: Pacing, drain: Drain, turns: Turns) -> None:
        self._slots = slots
        self._intake = intake
        self._pacing = pacing
        self._drain = drain
        self._turns = turns

    def shut_s(self, now: float, tenant: str) -> float:
        """How long no call of this tenant can go: until the next probe, or the rest of an exhausted window."""
        paced_at = self._pacing.next_at(now, 0) if self._pacing.active else now
        closed = self._intake.closed_to(tenant)
        return max(0.0, 0.0 if closed is None else (closed.until or now) - now, paced_at - now)

    def answered_at(self, newcomer: Ticket, now: float) -> float:
        """When a newcomer has its answer. Before enough was measured only what is closed is sure."""
        opens_at = now + self.shut_s(now, newcomer.tenant)
        if not self._drain.sure:
            return opens_at
        grants = self._turns.grants_until(newcomer)
        wait_s = self._wait_s(grants, newcomer.tenant, batch=newcomer.lane is Lane.BATCH)
        return opens_at + (wait_s or 0.0) + self._drain.answer_s

    def answers_in_s(
        self, ticket: Ticket, now: float, usual_s: float, later_s: float, *, queues: bool
    ) -> float:
        """When a call that comes in `later_s` has its answer. `usual_s`: how long that takes where none was measured."""
        tenant, interactive = ticket.tenant, self._turns.interactive.count
        answer_s = self._drain.answer_s if self._drain.samples else usual_s
        # A probe in flight may have to be answered first.
        closed = self._intake.closed_to(tenant) is not None
        opens_at = self._intake.next_at(now, 0, tenant) if closed else now
        wait_s = max(self.shut_s(now, tenant), opens_at - now)
        if queues:
            batch = self._turns.batch.count if ticket.lane is Lane.BATCH else 0
            places, starts_per_s = self._bounds(tenant)
            wait_s += (interactive + batch + 1) * max(answer_s / max(1.0, places), 1 / starts_per_s)
        return max(later_s, wait_s) + answer_s

    def rejected(self, lane: Lane, now: float, tenant: str) -> float | None:
        """When a rejected caller should retry: after all who wait now, and all who were asked to retry before it.

        It is remembered as one of those.
        """
        batch = self._turns.batch.count
        waiting = self._turns.interactive.count + batch
        wait_s = self._wait_s(waiting + self._drain.expected_back(now), tenant)
        if wait_s is None:
            return None
        if lane is Lane.BATCH:
            wait_s = max(wait_s, self._wait_s(batch, tenant, batch=True) or 0.0)
        wait_s += self.shut_s(now, tenant)
        self._drain.rejected(now + min(wait_s, LONGEST_RETRY_S))
        return wait_s

    def _wait_s(self, count: int, tenant: str, *, batch: bool = False) -> float | None:
        places, starts_per_s = self._bounds(tenant)
        return self._drain.wait_s(count, slots=places, starts_per_s=starts_per_s, batch=batch)

    def _bounds(self, tenant: str) -> tuple[float, float]:
        """(calls in flight, starts a second) at most."""
        return (
            min(self._slots, self._intake.bound(Measure.IN_FLIGHT, tenant)),
            min(self._pacing.starts_per_s, self._intake.bound(Measure.STARTS, tenant)),
        )
