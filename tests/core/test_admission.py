"""The gate's door: who walks in, who waits, who is refused and why, and what the gate says of itself."""

import copy
import math
from collections.abc import Callable

import pytest
from core.gate_stage import (
    PAUSE_S,
    caller,
    enter,
    entered,
    failing,
    full,
    gate,
    held_back,
    job,
    measured,
    paused,
)
from core.intake_stage import started

from headgate.core.admission import Admission
from headgate.core.allowance import Quota, Quotas
from headgate.core.gate_rules import Door, GateStatus, Refusal
from headgate.core.start import Outcome
from headgate.core.ticket import Place, Ticket

# ---- Walking in ---------------------------------------------------------------------------------------------


def test_an_idle_gate_is_walked_through() -> None:
    admission = gate(slots=2)
    ticket = caller()

    assert admission.walks_in(ticket, 7.0)
    assert (ticket.place, ticket.granted_at) == (Place.HOLDING, 7.0)
    assert (admission.held, admission.in_transit, admission.free) == (1, 0, 1)
    assert admission.intake.in_flight == 1


def obstructed(obstacle: str) -> Admission:
    """An idle gate with one thing in the way at 10."""
    admission = gate(slots=2, interval_s=1.0 if obstacle == "paced" else 0.0)
    intake = admission.intake
    match obstacle:
        case "full":
            admission.held = 2
        case "waiting":
            admission.turns.batch.join(job())
        case "shut":
            admission.shut = Door.CLOSED
        case "paused":
            paused(admission, at=10.0)
        case "failing":
            failing(admission, at=10.0)
        case "probed":
            paused(admission, at=5.0)
            started(intake, 9.99)
        case "ramping":
            paused(admission)
            probe = started(intake, 9.9)
            others = [started(intake, 9.9) for _ in range(3)]
            intake.end(9.99, probe, Outcome.ANSWERED)
            assert len(others) == intake.in_flight
        case "held":
            held_back(admission, at=10.0)
        case "without allowance":
            intake.read(started(intake, 10.0), Quotas(requests=Quota(limit=60, remaining=0, reset_s=60)))
        case _:
            assert obstacle in {"none", "paced"}
    return admission


@pytest.mark.parametrize(
    "obstacle",
    [
        "full",
        "waiting",
        "shut",
        "paused",
        "failing",
        "probed",
        "ramping",
        "held",
        "paced",
        "without allowance",
    ],
)
def test_nobody_walks_in_past_an_obstacle(obstacle: str) -> None:
    """The fast path must refuse whatever the slow path would."""
    assert obstructed("none").walks_in(caller(), 10.0)
    admission, ticket = obstructed(obstacle), caller()
    in_flight = admission.intake.in_flight

    assert not admission.walks_in(ticket, 10.0)
    assert ticket.place is Place.OUTSIDE
    assert (ticket.start, admission.intake.in_flight) == (None, in_flight)


@pytest.mark.parametrize(
    ("slots", "reserved", "jobs"), [(4, 0, 4), (4, 1, 3), (4, 3, 1), (4, 4, 1), (1, 1, 1)]
)
def test_batch_walks_in_only_while_it_leaves_the_reserved_slots_alone(
    slots: int, reserved: int, jobs: int
) -> None:
    admission = gate(slots=slots, reserved=reserved)

    assert sum(admission.walks_in(job(), 0.0) for _ in range(slots + 1)) == jobs
    assert admission.walks_in(caller(), 0.0) == (jobs < slots)


# ---- Refused at the door ------------------------------------------------------------------------------------


def test_a_shut_gate_refuses() -> None:
    admission = gate()
    admission.shut = Door.CLOSED

    assert enter(admission, caller()) == Refusal(Door.CLOSED, None)


def test_a_held_upstream_refuses_until_its_next_probe() -> None:
    assert enter(held_back(gate()), caller(), 10.0) == Refusal(Door.MISCONFIGURED, 20.0)


def test_while_the_probe_of_a_held_upstream_is_out_no_time_is_told_that_is_over() -> None:
    admission = held_back(gate(slots=2))
    entered(admission, caller(), now=40.0)

    assert enter(admission, caller(), 50.0) == Refusal(Door.MISCONFIGURED, 0.0)


def test_a_full_queue_refuses() -> None:
    admission = full(depth=2)
    entered(admission, caller(), caller())

    refusal = enter(admission, caller())

    assert refusal is not None
    assert refusal.door is Door.FULL


@pytest.mark.parametrize(
    ("ticket", "refused"),
    [
        (caller(patient=False), True),
        (job(patient=False), True),
        (caller(deadline=PAUSE_S), True),
        (caller(deadline=PAUSE_S - 0.1), True),
        (caller(deadline=PAUSE_S + 0.1), False),
        (caller(), False),
        (job(), False),
    ],
)
@pytest.mark.parametrize(("closed", "door"), [(paused, Door.PAUSED), (failing, Door.UNHEALTHY)])
def test_a_closed_upstream_refuses_only_those_who_cannot_or_will_not_wait(
    closed: Callable[[Admission], Admission], door: Door, ticket: Ticket, refused: bool
) -> None:
    admission = closed(gate())

    refusal = enter(admission, copy.copy(ticket), 0.5)

    assert refusal == (Refusal(door, PAUSE_S - 0.5) if refused else None)
    assert admission.waiting == (not refused)


def test_who_does_not_wait_is_refused_while_the_probe_is_out() -> None:
    admission = paused(gate(slots=4))
    entered(admission, caller(), now=2.0)

    refusal = enter(admission, caller(patient=False), 2.1)

    assert refusal is not None
    assert refusal.door is Door.PAUSED
    assert refusal.retry_in_s is not None
    assert 0 <= refusal.retry_in_s <= 1


def test_who_does_not_wait_goes_in_as_the_probe_when_one_is_due() -> None:
    admission = paused(gate())
    ticket = caller(patient=False)

    assert enter(admission, ticket, PAUSE_S) is None
    assert ticket.start is not None
    assert ticket.start.own is not None
    assert ticket.start.own[1].probe


def test_who_does_not_wait_for_the_upstream_waits_for_a_slot() -> None:
    admission = full()

    assert enter(admission, caller(patient=False)) is None
    assert admission.waiting == 1


def test_who_does_not_wait_is_refused_where_the_quota_is_exhausted() -> None:
    admission = gate(slots=4)
    intake = admission.intake
    intake.read(started(intake, 0.0), Quotas(requests=Quota(limit=60, remaining=0, reset_s=600)))
    intake._allowance._test_at = 60.0  # It has proved right before.

    refusal = enter(admission, caller(patient=False), 0.0)

    assert refusal is not None
    assert refusal.door is Door.PAUSED
    assert refusal.retry_in_s == pytest.approx(10.0, abs=1e-3)
    assert enter(admission, caller(), 0.0) is None


def test_a_deadline_that_cannot_be_met_is_refused() -> None:
    admission = measured(full())
    entered(admission, caller(), caller())

    refusal = enter(admission, caller(deadline=25.0))

    assert refusal is not None
    assert refusal.door is Door.DEADLINE


@pytest.mark.parametrize(
    ("case", "door"),
    [
        ("shut held failing", Door.CLOSED),
        ("held failing", Door.MISCONFIGURED),
        ("held paused", Door.MISCONFIGURED),
        ("failing full", Door.UNHEALTHY),
        ("paused full", Door.PAUSED),
        ("full late", Door.DEADLINE),
    ],
)
def test_the_most_lasting_reason_is_told(case: str, door: Door) -> None:
    admission = measured(full(depth=1))
    entered(admission, caller())
    if "held" in case:
        held_back(admission)
    if "failing" in case:
        failing(admission)
    if "paused" in case:
        paused(admission)
    admission.shut = Door.CLOSED if "shut" in case else None
    ticket = caller(
        patient="paused" not in case and "failing" not in case, deadline=1.0 if "late" in case else math.inf
    )

    refusal = enter(admission, ticket)

    assert refusal is not None
    assert refusal.door is door


@pytest.mark.parametrize("case", ["shut", "failing", "held", "paused", "full", "late"])
def test_a_refusal_leaves_nothing_behind(case: str) -> None:
    """A refused caller that still counted as waiting would fill the queue for good."""
    admission = measured(full(depth=1 if case == "full" else 20))
    entered(admission, caller())
    admission.shut = Door.CLOSED if case == "shut" else None
    match case:
        case "failing":
            failing(admission)
        case "held":
            held_back(admission)
        case "paused":
            paused(admission)
    ticket = caller(patient=case in {"full", "late"}, deadline=1.0 if case == "late" else math.inf)
    before, in_flight = admission.status(0.0), admission.intake.in_flight

    assert enter(admission, ticket) is not None

    assert ticket.place is Place.OUTSIDE
    assert (ticket.start, ticket.probe) == (None, False)
    assert (admission.status(0.0), admission.intake.in_flight) == (before, in_flight)


# ---- The upstream closes while callers wait -----------------------------------------------------------------


def test_those_who_do_not_wait_leave_when_it_closes_and_those_it_outlasts() -> None:
    admission = full(depth=0)
    stay = [caller(), caller(deadline=PAUSE_S + 0.1), job()]
    go = [caller(patient=False), caller(deadline=PAUSE_S), job(deadline=1.0), job(patient=False)]
    entered(admission, *stay, *go)
    paused(admission)

    refused, moving = admission.leave_closed()

    assert (set(refused), moving) == (set(go), [])
    assert {ticket.place for ticket in go} == {Place.OUTSIDE}
    assert {ticket.place for ticket in stay} == {Place.WAITING}
    assert admission.waiting == 3


def test_those_who_can_go_elsewhere_leave_to_choose_again() -> None:
    """Not refused: another upstream may answer them, so they are told apart."""
    admission = full(depth=0)
    stays, goes, impatient = caller(), caller(movable=True), caller(movable=True, patient=False)
    entered(admission, stays, goes, impatient)
    failing(admission)

    refused, moving = admission.leave_closed()

    assert (refused, set(moving)) == ([], {goes, impatient})
    assert admission.turns.everyone() == [stays]


def test_closing_takes_no_slot_from_those_who_hold_one() -> None:
    admission = gate(slots=2)
    (holder,) = entered(admission, caller(patient=False, movable=True))
    paused(admission)

    assert admission.leave_closed() == ([], [])
    assert (holder.place, admission.held) == (Place.HOLDING, 1)


# ---- Where the answer is expected first ---------------------------------------------------------------------


def test_an_idle_gate_answers_as_soon_as_answers_take() -> None:
    assert gate().answers_in_s(caller(), 0.0, usual_s=3.0, later_s=0.0) == 3.0
    assert measured(gate()).answers_in_s(caller(), 0.0, usual_s=3.0, later_s=0.0) == 10.0


def test_a_call_that_comes_later_is_answered_later_but_waits_only_once() -> None:
    admission = paused(measured(gate()))

    assert admission.answers_in_s(caller(), 0.0, usual_s=3.0, later_s=1.0) == 11.5
    assert admission.answers_in_s(caller(), 0.0, usual_s=3.0, later_s=2.0) == 12.0


@pytest.mark.parametrize(
    ("slots", "ahead", "answers_in_s"), [(1, 0, 20.0), (1, 1, 30.0), (2, 3, 30.0), (4, 0, 12.5)]
)
def test_the_queue_delays_an_answer(slots: int, ahead: int, answers_in_s: float) -> None:
    admission = measured(full(slots))
    entered(admission, *(caller() for _ in range(ahead)))

    assert admission.answers_in_s(caller(), 0.0, usual_s=3.0, later_s=0.0) == answers_in_s


def test_batch_in_the_queue_delays_batch_only() -> None:
    admission = measured(full())
    entered(admission, *(job() for _ in range(4)))

    assert admission.answers_in_s(caller(), 0.0, usual_s=3.0, later_s=0.0) == 20.0
    assert admission.answers_in_s(job(), 0.0, usual_s=3.0, later_s=0.0) == 60.0


@pytest.mark.parametrize("obstacle", ["shut", "held"])
def test_a_gate_that_lets_nobody_in_answers_never(obstacle: str) -> None:
    assert math.isinf(obstructed(obstacle).answers_in_s(caller(), 10.0, usual_s=3.0, later_s=0.0))


# ---- Status -----------------------------------------------------------------------------------------------------------


def test_the_status_of_an_idle_gate() -> None:
    assert gate(slots=4, depth=20).status(0.0) == GateStatus(
        rt_queue=0, be_queue=0, total_slots=4, available_slots=4, accepting=True, max_queue_depth=20
    )


def test_the_status_of_a_busy_gate() -> None:
    admission = full(2, depth=20)
    entered(admission, caller(), job(), job())

    assert admission.status(0.0) == GateStatus(
        rt_queue=1, be_queue=2, total_slots=2, available_slots=0, accepting=True, max_queue_depth=20
    )


def test_a_slot_in_transit_is_not_available() -> None:
    admission = gate(slots=3)
    holder, *_ = entered(admission, *(caller() for _ in range(4)))
    admission.give_back(holder, 1.0)
    assert admission.status(1.0).available_slots == 1

    assert admission.next(1.0) is not None

    assert admission.status(1.0).available_slots == 0


@pytest.mark.parametrize("now", [0.0, PAUSE_S - 0.1, PAUSE_S, 60.0])
@pytest.mark.parametrize("closed", [paused, failing])
def test_a_closed_upstream_still_accepts_those_who_wait(
    closed: Callable[[Admission], Admission], now: float
) -> None:
    admission = closed(gate(slots=5))

    assert admission.status(now).available_slots == 5
    assert admission.status(now).accepting


@pytest.mark.parametrize("obstacle", ["shut", "held", "full"])
def test_a_gate_that_would_refuse_does_not_accept(obstacle: str) -> None:
    admission = full(depth=1)
    admission.shut = Door.CLOSED if obstacle == "shut" else None
    match obstacle:
        case "held":
            held_back(admission)
        case "full":
            entered(admission, caller())

    assert not admission.status(0.0).accepting


def test_a_held_upstream_that_awaits_its_probe_accepts_it() -> None:
    assert held_back(gate()).status(30.0).accepting


def test_a_reserved_slot_is_accepting_although_batch_fills_the_queue() -> None:
    admission = gate(slots=1, reserved=1, depth=1)
    entered(admission, job())

    assert admission.status(0.0).accepting
    assert enter(admission, caller()) is None


def test_a_reserved_slot_is_accepting_although_returning_batch_fills_the_queue() -> None:
    admission = gate(slots=2, reserved=1, depth=2)
    entered(admission, job())
    for _ in range(2):
        enter(admission, job(), returning=True)

    assert admission.status(0.0).accepting
    assert enter(admission, caller()) is None


def test_a_gate_does_not_accept_where_the_probe_must_pass_first_and_the_queue_is_full() -> None:
    """Slots are free, but nobody may take one, so a caller would have to wait, and there is no room for that."""
    admission = paused(gate(slots=4, depth=1))
    entered(admission, caller(), job(), now=PAUSE_S)
    assert enter(copy.deepcopy(admission), caller(), PAUSE_S) is not None

    assert not admission.status(PAUSE_S).accepting
