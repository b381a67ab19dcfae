"""An `Admission` and who comes to it: what a gate does with it, without futures. Time is an argument."""

import math

from core.intake_stage import TENANT, calls, close

from headgate.core.admission import Admission
from headgate.core.call import Lane
from headgate.core.failures import Failure, FailureKind
from headgate.core.gate_rules import GateRules, Refusal
from headgate.core.pacing import PacingRules
from headgate.core.start import Outcome
from headgate.core.ticket import CHAT, Place, Ticket

MISCONFIGURED = Failure(kind=FailureKind.MISCONFIGURED)
PAUSE_S = 1.5
"""What `paused` waits before its first probe."""
PAUSE_HINT_S = 60.0


def caller(
    *,
    since: float = 0.0,
    tenant: str = "local",
    deadline: float = math.inf,
    tokens: int = 0,
    patient: bool = True,
    movable: bool = False,
) -> Ticket:
    return Ticket(
        since=since, tenant=tenant, deadline=deadline, tokens=tokens, patient=patient, movable=movable
    )


def job(*, since: float = 0.0, deadline: float = math.inf, tokens: int = 0, patient: bool = True) -> Ticket:
    return Ticket(since=since, lane=Lane.BATCH, deadline=deadline, tokens=tokens, patient=patient)


def gate(
    *,
    slots: int = 1,
    reserved: int = 0,
    depth: int = 20,
    promote_after_s: float = 120.0,
    preempt: bool = False,
    interval_s: float = 0.0,
    tokens_per_minute: int | None = None,
) -> Admission:
    return used(
        Admission(
            GateRules(
                slots=slots,
                reserved_slots=reserved,
                depth=depth,
                promote_after_s=promote_after_s,
                preempt=preempt,
                pacing=PacingRules(interval_s=interval_s, tokens_per_minute=tokens_per_minute),
            )
        )
    )


def used(admission: Admission) -> Admission:
    """All its slots were in use before, and all calls answered: nothing speaks against a burst that fills them."""
    calls(admission.intake, Outcome.ANSWERED, admission.slots, at=-1e6)
    return admission


def enter(
    admission: Admission, ticket: Ticket, now: float = 0.0, *, returning: bool = False
) -> Refusal | None:
    """What a gate does when somebody comes: walk in, or arrive, or be turned away, or wait."""
    if admission.walks_in(ticket, now):
        return None
    if (refusal := admission.arrive(ticket, now, returning=returning)) is not None:
        return refusal
    while (granted := admission.next(now)) is not None:
        admission.take_over(granted)
    if ticket.place is Place.HOLDING or returning:
        return None
    return admission.turn_away(ticket, now)


def entered(admission: Admission, *tickets: Ticket, now: float = 0.0) -> list[Ticket]:
    for ticket in tickets:
        assert enter(admission, ticket, now) is None
    return list(tickets)


def full(slots: int = 1, *, depth: int = 20, reserved: int = 0) -> Admission:
    """Every slot held by an interactive call; nobody waits."""
    admission = gate(slots=slots, depth=depth, reserved=reserved)
    entered(admission, *(caller() for _ in range(slots)))
    assert not admission.waiting
    return admission


def measured(admission: Admission, *, answer_s: float = 10.0, samples: int = 5) -> Admission:
    """So many answers to calls that began when others had been answered before."""
    admission.drain.answered(answer_s, -math.inf)
    for _ in range(samples):
        admission.drain.answered(answer_s, 0.0)
    return admission


def until(admission: Admission, tenant: str = TENANT) -> float | None:
    """When the next probe of this tenant's calls may go, where the upstream is closed to them."""
    closed = admission.intake.closed_to(tenant)
    return None if closed is None else closed.until


def paused(admission: Admission, *, at: float = 0.0) -> Admission:
    """Closed because it throttles; the first probe may go after `PAUSE_S`."""
    close(admission.intake, Outcome.THROTTLED, at=at, hint_s=PAUSE_HINT_S)
    assert until(admission) == at + PAUSE_S
    return admission


def failing(admission: Admission, *, at: float = 0.0) -> Admission:
    """Closed because it fails: an open breaker. A hint makes it as long as a pause."""
    close(admission.intake, Outcome.FAILED, at=at, hint_s=PAUSE_HINT_S)
    assert until(admission) == at + PAUSE_S
    return admission


def held_back(admission: Admission, *, at: float = 0.0) -> Admission:
    for _ in range(3):
        admission.holds.record(MISCONFIGURED, CHAT, TENANT, probe=False, now=at)
    return admission
