"""The gate's decisions: who is refused at the door and why, who goes when, and that no slot is ever lost."""

import copy
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.core.admission import Admission
from headgate.core.failures import Failure, FailureKind
from headgate.core.gate_rules import Door, GateRules, GateStatus, Order, Refusal
from headgate.core.messages import Lane
from headgate.core.pacing import PacingRules
from headgate.core.ticket import Place, Ticket

TRANSIENT = Failure(kind=FailureKind.TRANSIENT)
MISCONFIGURED = Failure(kind=FailureKind.MISCONFIGURED)


def caller(
    *,
    since: float = 0.0,
    tenant: str = "local",
    deadline: float = math.inf,
    tokens: int = 0,
    patient: bool = True,
) -> Ticket:
    return Ticket(since=since, tenant=tenant, deadline=deadline, tokens=tokens, patient=patient)


def job(*, since: float = 0.0, deadline: float = math.inf, tokens: int = 0) -> Ticket:
    return Ticket(since=since, lane=Lane.BATCH, deadline=deadline, tokens=tokens)


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
    return Admission(
        GateRules(
            slots=slots,
            reserved_slots=reserved,
            depth=depth,
            promote_after_s=promote_after_s,
            preempt=preempt,
            pacing=PacingRules(interval_s=interval_s, tokens_per_minute=tokens_per_minute),
        )
    )


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
    return admission


def measured(admission: Admission, *, hold_s: float = 10.0, samples: int = 5) -> Admission:
    for _ in range(samples):
        admission.drain.held(hold_s)
    return admission


def opened(admission: Admission, *, at: float = 0.0) -> Admission:
    for _ in range(5):
        admission.health.record(TRANSIENT, probe=False, now=at)
    return admission


def held_back(admission: Admission, *, at: float = 0.0) -> Admission:
    for _ in range(3):
        admission.health.record(MISCONFIGURED, probe=False, now=at)
    return admission


# ---- Walking in ---------------------------------------------------------------------------------------------


def test_an_idle_gate_is_walked_through() -> None:
    admission = gate(slots=2)
    ticket = caller()

    assert admission.walks_in(ticket, 7.0)
    assert (ticket.place, ticket.granted_at) == (Place.HOLDING, 7.0)
    assert (admission.held, admission.in_transit, admission.free) == (1, 0, 1)


@pytest.mark.parametrize(
    "obstacle", ["full", "waiting", "closed", "paused", "ramping", "open", "held", "paced"]
)
def test_nobody_walks_in_past_an_obstacle(obstacle: str) -> None:
    """The fast path must refuse whatever the slow path would."""
    admission = gate(slots=2, interval_s=1.0 if obstacle == "paced" else 0.0)
    now = 0.0
    match obstacle:
        case "full":
            admission.held = 2
        case "waiting":
            admission.turns.batch.join(job())
        case "closed":
            admission.shut = Door.CLOSED
        case "paused":
            admission.pause_for(40.0, now)
        case "ramping":
            admission.pause_for(40.0, now)
            now = 41.0
        case "open":
            opened(admission)
        case "held":
            held_back(admission)
    ticket = caller()

    assert not admission.walks_in(ticket, now)
    assert ticket.place is Place.OUTSIDE


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


def test_a_closed_gate_refuses() -> None:
    admission = gate()
    admission.shut = Door.CLOSED

    assert enter(admission, caller()) == Refusal(Door.CLOSED, None)


def test_an_open_breaker_refuses_until_its_next_probe() -> None:
    assert enter(opened(gate()), caller(), 1.0) == Refusal(Door.UNHEALTHY, 4.0)


def test_a_held_upstream_refuses_until_its_next_probe() -> None:
    assert enter(held_back(gate()), caller(), 10.0) == Refusal(Door.MISCONFIGURED, 20.0)


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
        (caller(deadline=40.0), True),
        (caller(deadline=39.0), True),
        (caller(deadline=41.0), False),
        (caller(), False),
    ],
)
def test_a_pause_refuses_those_who_cannot_wait_it_out(ticket: Ticket, refused: bool) -> None:
    admission = gate()
    admission.pause_for(40.0, 0.0)

    assert enter(copy.deepcopy(admission), copy.copy(ticket), 10.0) == (
        Refusal(Door.PAUSED, 30.0) if refused else None
    )


def test_a_deadline_that_cannot_be_met_is_refused() -> None:
    admission = measured(full())
    entered(admission, caller(), caller())

    refusal = enter(admission, caller(deadline=25.0))

    assert refusal is not None
    assert refusal.door is Door.DEADLINE


@pytest.mark.parametrize(
    ("case", "door"),
    [
        ("closed open held paused", Door.CLOSED),
        ("open held paused", Door.MISCONFIGURED),
        ("open paused", Door.UNHEALTHY),
        ("paused full", Door.PAUSED),
        ("full late", Door.FULL),
    ],
)
def test_the_most_lasting_reason_is_told(case: str, door: Door) -> None:
    admission = measured(full(depth=1))
    entered(admission, caller())
    if "held" in case:
        held_back(admission)
    if "open" in case:
        # Results are ignored while on probation, so the second condition is set by hand.
        admission.health.breaker.probation.start(0.0)
        admission.health.clear = False
    if "paused" in case:
        admission.pause_for(40.0, 0.0)
    admission.shut = Door.CLOSED if "closed" in case else None
    ticket = caller(patient="paused" not in case, deadline=1.0 if "late" in case else math.inf)

    refusal = enter(admission, ticket)

    assert refusal is not None
    assert refusal.door is door


@pytest.mark.parametrize("case", ["closed", "open", "held", "paused", "full", "late"])
def test_a_refusal_leaves_nothing_behind(case: str) -> None:
    """A refused caller that still counted as waiting would fill the queue for good."""
    admission = measured(full(depth=1 if case == "full" else 20))
    entered(admission, caller())
    admission.shut = Door.CLOSED if case == "closed" else None
    match case:
        case "open":
            opened(admission)
        case "held":
            held_back(admission)
        case "paused":
            admission.pause_for(40.0, 0.0)
    ticket = caller(patient=False, deadline=1.0 if case == "late" else math.inf)
    before = admission.status(0.0)

    assert enter(admission, ticket) is not None

    assert ticket.place is Place.OUTSIDE
    assert admission.status(0.0) == before


# ---- Depth ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 5, 20])
def test_depth_bounds_the_waiters_of_both_lanes_together(depth: int) -> None:
    admission = full(depth=depth)
    tickets = [job() if number % 2 else caller() for number in range(3 * depth)]
    refusals = [enter(admission, ticket) for ticket in tickets]

    assert admission.waiting <= depth
    callers_refused = enter(admission, caller())
    while callers_refused is None:
        callers_refused = enter(admission, caller())
    assert callers_refused.door is Door.FULL
    assert admission.waiting == depth
    assert {refusal.door for refusal in refusals if refusal is not None} == {Door.FULL}


@pytest.mark.parametrize(("depth", "jobs"), [(1, 1), (2, 1), (3, 2), (4, 3), (20, 15), (100, 75)])
def test_batch_may_fill_three_quarters_of_the_depth(depth: int, jobs: int) -> None:
    """A flood of batch work must leave room for people."""
    admission = full(depth=depth)
    admitted = sum(enter(admission, job()) is None for _ in range(2 * depth))

    assert admitted == jobs
    assert sum(enter(admission, caller()) is None for _ in range(2 * depth)) == depth - jobs


def test_interactive_may_fill_the_whole_depth() -> None:
    admission = full(depth=20)

    assert sum(enter(admission, caller()) is None for _ in range(40)) == 20
    assert enter(admission, job()) is not None


def test_a_depth_of_zero_is_no_bound() -> None:
    admission = full(depth=0)

    entered(admission, *(caller() for _ in range(500)), *(job() for _ in range(500)))
    assert admission.waiting == 1000


def test_a_waiter_that_gave_up_makes_room_at_once() -> None:
    """Cancelled waiters that counted as depth once kept a queue full of nobody."""
    admission = full(depth=1)
    (waiter,) = entered(admission, caller())
    assert enter(admission, caller()) is not None

    admission.withdraw(waiter)

    assert enter(admission, caller()) is None


def test_a_free_slot_needs_no_room_in_the_queue() -> None:
    admission = gate(slots=3, depth=1, interval_s=1.0)

    assert [enter(admission, caller(), float(now)) for now in range(3)] == [None, None, None]


def test_one_who_returns_is_never_refused_for_want_of_room() -> None:
    admission = measured(full(depth=1))
    entered(admission, caller())

    assert enter(admission, caller(deadline=1.0), returning=True) is None
    assert admission.waiting == 2


def test_those_who_return_take_no_newcomer_s_room() -> None:
    """They were admitted once: re-entries do not count as depth."""
    admission = full(depth=2)
    for _ in range(2):
        assert enter(admission, caller(), returning=True) is None

    assert enter(admission, caller()) is None


def test_one_who_returns_goes_first_of_its_tenant() -> None:
    admission = full()
    entered(admission, caller(), caller())
    returning = caller()
    enter(admission, returning, returning=True)

    assert admission.turns.interactive.head() is returning


@pytest.mark.parametrize("obstacle", ["closed", "open", "paused"])
def test_one_who_returns_is_still_kept_out_by_the_upstream_s_state(obstacle: str) -> None:
    admission = gate()
    admission.shut = Door.CLOSED if obstacle == "closed" else None
    if obstacle == "open":
        opened(admission)
    if obstacle == "paused":
        admission.pause_for(40.0, 0.0)

    assert enter(admission, caller(patient=False), returning=True) is not None


# ---- Deadlines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "refused"), [(0, False), (1, False), (4, False), (5, True), (50, True)])
def test_an_estimate_needs_five_samples(samples: int, refused: bool) -> None:
    admission = measured(full(), samples=samples)

    assert (enter(admission, caller(deadline=5.0)) is not None) == refused


@pytest.mark.parametrize(
    ("slots", "ahead", "deadline", "refused"),
    [
        # One slot of 10 s: granted after 10 s, answered after 20 s.
        (1, 0, 19.0, True),
        (1, 0, 21.0, False),
        (1, 3, 49.0, True),
        (1, 3, 51.0, False),
        # Two slots drain twice as fast, but an answer takes as long.
        (2, 3, 29.0, True),
        (2, 3, 31.0, False),
    ],
)
def test_a_deadline_counts_the_queue_and_the_call_itself(
    slots: int, ahead: int, deadline: float, refused: bool
) -> None:
    admission = measured(full(slots))
    entered(admission, *(caller() for _ in range(ahead)))

    assert (enter(admission, caller(deadline=deadline)) is not None) == refused


def test_a_deadline_counts_the_rest_of_a_pause() -> None:
    admission = measured(full())
    admission.pause_for(40.0, 0.0)

    refused, admitted = enter(admission, caller(deadline=59.0)), enter(admission, caller(deadline=61.0))

    assert refused is not None
    assert (refused.door, admitted) == (Door.DEADLINE, None)


def test_a_deadline_behind_another_tenant_s_long_queue_can_be_met() -> None:
    """Tenants take turns: one of theirs, then ours, so 20 s of waiting and 10 s of work fit into 35 s."""
    admission = measured(full())
    entered(admission, *(caller(tenant="a") for _ in range(10)))

    assert enter(admission, caller(tenant="b", deadline=35.0)) is None


def test_an_idle_gate_takes_any_deadline() -> None:
    """What can start at once is never refused on an estimate."""
    admission = measured(gate(interval_s=1.0), hold_s=1000.0)

    assert enter(admission, caller(deadline=1.0)) is None


def test_no_deadline_is_never_out_of_reach() -> None:
    admission = measured(full(depth=0), hold_s=1e6)
    entered(admission, *(caller() for _ in range(100)))


# ---- When to come back ----------------------------------------------------------------------------------------


def test_before_any_sample_nobody_knows_when_to_come_back() -> None:
    admission = full(depth=1)
    entered(admission, caller())

    assert enter(admission, caller()) == Refusal(Door.FULL, None)


@pytest.mark.parametrize(
    ("slots", "depth", "retry_in_s"), [(1, 1, 10.0), (2, 4, 20.0), (2, 8, 40.0), (4, 4, 10.0)]
)
def test_a_refusal_says_when_those_who_wait_have_been_served(
    slots: int, depth: int, retry_in_s: float
) -> None:
    """Waiting ÷ drain rate: the refused caller itself is not waiting."""
    admission = measured(full(slots, depth=depth))
    entered(admission, *(caller() for _ in range(depth)))

    refusal = enter(admission, caller())

    assert refusal is not None
    assert refusal.door is Door.FULL
    assert refusal.retry_in_s == pytest.approx(retry_in_s)


def test_a_refusal_during_a_pause_counts_its_rest() -> None:
    admission = measured(full(depth=1))
    entered(admission, caller())
    admission.pause_for(40.0, 0.0)

    assert admission.drained_in_s(Lane.INTERACTIVE, 10.0) == pytest.approx(40.0)


def test_batch_is_told_to_come_back_later_than_interactive() -> None:
    admission = measured(full(depth=0))
    entered(admission, *(caller() for _ in range(2)), *(job() for _ in range(8)))
    for _ in range(100):
        admission.drain.granted_while_batch_waits(to_batch=False)

    assert admission.drained_in_s(Lane.INTERACTIVE, 0.0) == pytest.approx(100.0)
    assert admission.drained_in_s(Lane.BATCH, 0.0) == pytest.approx(400.0, rel=0.01)


# ---- Grants ---------------------------------------------------------------------------------------------------


def test_a_grant_is_in_transit_until_it_is_taken_over() -> None:
    admission = full()
    (waiter,) = entered(admission, caller())
    admission.held = 0

    assert admission.next(5.0) is waiter
    assert (waiter.place, waiter.granted_at) == (Place.IN_TRANSIT, 5.0)
    assert (admission.held, admission.in_transit, admission.free) == (0, 1, 0)
    admission.take_over(waiter)
    assert (admission.held, admission.in_transit, admission.free) == (1, 0, 0)


def test_a_slot_in_transit_is_not_given_twice() -> None:
    admission = full()
    entered(admission, caller(), caller())
    admission.held = 0
    admission.next(0.0)

    assert admission.next(0.0) is None


def test_nobody_takes_a_slot_while_waiting_for_pacing() -> None:
    """Sleeping inside the slot made bursts: everybody woke up at once."""
    admission = gate(slots=4, interval_s=10.0)
    entered(admission, caller(), caller(), caller())

    assert (admission.held, admission.free, admission.waiting) == (1, 3, 2)
    assert admission.look_again_at(1.0) == 10.0
    assert admission.next(9.9) is None
    assert admission.next(10.0) is not None
    assert admission.next(10.0) is None


def test_a_start_handed_to_a_cancelled_waiter_costs_no_pacing() -> None:
    admission = gate(slots=4, interval_s=10.0)
    entered(admission, caller(), caller(), caller())
    cancelled = admission.next(10.0)
    assert cancelled is not None

    admission.give_back(cancelled, 10.0)

    assert cancelled.reservation is None
    assert admission.next(10.0) is not None


def test_a_slot_that_was_never_taken_over_is_no_sample() -> None:
    admission = full()
    (waiter,) = entered(admission, caller())
    admission.held = 0
    admission.next(0.0)

    admission.give_back(waiter, 0.0)

    assert admission.drain.samples == 0
    assert admission.free == 1


def test_a_slot_given_back_is_a_sample() -> None:
    admission = gate()
    (ticket,) = entered(admission, caller(), now=3.0)

    admission.give_back(ticket, 10.0)

    assert (admission.drain.samples, admission.drain.hold_s) == (1, 7.0)
    assert (ticket.place, admission.free) == (Place.OUTSIDE, 1)


def test_nobody_is_granted_during_a_pause_and_one_by_one_after_it() -> None:
    admission = gate(slots=5)
    admission.pause_for(40.0, 0.0)
    entered(admission, *(caller() for _ in range(5)))

    granted: list[float] = []
    now = 0.0
    while admission.waiting:
        look_again_at = admission.look_again_at(now)
        assert look_again_at is not None
        now = look_again_at
        while admission.next(now) is not None:
            granted.append(now)
    assert granted == pytest.approx([40.0, 42.5, 45.0, 47.5, 50.0], abs=1e-3)


def test_slots_in_use_count_against_the_ramp() -> None:
    """A call that outlasted the pause is one of those the upstream bears."""
    admission = gate(slots=5)
    entered(admission, caller())
    admission.pause_for(40.0, 0.0)
    entered(admission, caller())

    assert admission.next(40.0) is None
    assert admission.next(42.6) is not None


# ---- When to look again -----------------------------------------------------------------------------------------


def test_with_nobody_waiting_there_is_nothing_to_look_for() -> None:
    admission = gate()
    admission.pause_for(40.0, 0.0)

    assert admission.look_again_at(0.0) is None


def test_with_every_slot_in_use_only_a_return_helps() -> None:
    admission = full()
    entered(admission, caller())

    assert admission.look_again_at(0.0) is None


def test_a_paused_gate_looks_again_at_the_end_of_the_pause() -> None:
    admission = gate()
    admission.pause_for(40.0, 0.0)
    entered(admission, caller())

    assert admission.look_again_at(3.0) == 40.0


def test_a_promotion_that_comes_before_the_pacing_is_not_slept_through() -> None:
    """A large interactive call waits for tokens; a small batch call, once promoted, needs not wait for them."""
    admission = gate(slots=4, promote_after_s=20.0, tokens_per_minute=100)
    entered(admission, caller(tokens=90))
    entered(admission, caller(since=2.0, tokens=50), job(since=1.0, tokens=5), now=2.0)
    assert admission.next(2.0) is None
    assert copy.deepcopy(admission).next(21.0) is not None

    look_again_at = admission.look_again_at(2.0)

    assert look_again_at is not None
    assert look_again_at <= 21.0


# ---- Calling again with the slot in hand --------------------------------------------------------------------------


def test_a_holder_may_call_again_when_nothing_stands_in_the_way() -> None:
    admission = gate()
    (holder,) = entered(admission, caller())

    assert admission.renew(holder, 1.0)
    assert admission.held == 1


def test_only_a_holder_may_call_again() -> None:
    admission = full()
    (waiter,) = entered(admission, caller())

    assert not admission.renew(waiter, 0.0)
    assert not admission.renew(caller(), 0.0)


def test_calling_again_needs_a_pacing_token_like_anybody() -> None:
    admission = gate(slots=2, interval_s=10.0)
    (holder,) = entered(admission, caller())

    assert not admission.renew(holder, 5.0)
    assert admission.renew(holder, 10.0)
    assert not admission.renew(holder, 10.0)


def test_a_regeneration_counts_its_tokens_beside_the_first_call_s() -> None:
    admission = gate(slots=2, tokens_per_minute=100)
    (holder,) = entered(admission, caller(tokens=40))

    assert admission.renew(holder, 1.0)
    assert not admission.renew(holder, 2.0)
    assert admission.renew(holder, 60.0)


@pytest.mark.parametrize(("now", "may"), [(39.9, False), (40.0, True)])
def test_a_holder_waits_for_the_end_of_a_pause(now: float, may: bool) -> None:
    admission = gate()
    (holder,) = entered(admission, caller())
    admission.pause_for(40.0, 0.0)

    assert admission.renew(holder, now) == may


@pytest.mark.parametrize("asked_s", [1.0, 1000.0], ids=["ramp", "one probe"])
def test_holders_do_not_all_call_again_at_the_instant_a_pause_ends(asked_s: float) -> None:
    """Four calls throttled together sleep with their slots in hand; waking together they would be the next burst."""
    admission = gate(slots=4)
    holders = entered(admission, *(caller() for _ in range(4)))
    admission.pause_for(asked_s, 0.0)
    end = admission.pause.until
    assert admission.pause.slots(end, 4) == 1

    assert sum(admission.renew(holder, end) for holder in holders) <= 1


def test_a_holder_that_calls_again_past_an_open_breaker_is_its_probe() -> None:
    admission = gate(slots=2)
    first, second = entered(admission, caller(), caller())
    opened(admission)

    assert not admission.renew(first, 4.9)
    assert admission.renew(first, 5.0)
    assert first.probe
    assert not admission.renew(second, 5.0)


# ---- Probes -----------------------------------------------------------------------------------------------------


def test_one_probe_enters_and_the_others_are_refused() -> None:
    admission = opened(gate(slots=4))
    probe, other = caller(), caller()

    assert enter(admission, probe, 5.0) is None
    assert probe.probe
    assert probe.place is Place.HOLDING
    assert enter(admission, other, 6.0) == Refusal(Door.UNHEALTHY, 0.0)


@pytest.mark.parametrize(
    "how", ["gives the slot back", "withdraws", "is evicted", "is turned away", "in transit"]
)
def test_a_probe_that_leaves_without_a_result_lets_the_next_one_try(how: str) -> None:
    admission = opened(full(depth=1)) if how != "gives the slot back" else opened(gate())
    probe = caller(deadline=math.inf)
    match how:
        case "gives the slot back":
            enter(admission, probe, 5.0)
            admission.give_back(probe, 6.0)
        case "withdraws":
            enter(admission, probe, 5.0)
            admission.withdraw(probe)
        case "is evicted":
            enter(admission, probe, 5.0)
            assert admission.evict() == [probe]
        case "is turned away":
            admission.turns.interactive.join(caller())
            assert enter(admission, probe, 5.0) is not None
        case "in transit":
            admission.arrive(probe, 5.0)
            admission.held = 0
            assert admission.next(5.0) is probe
            admission.give_back(probe, 5.0)

    assert not probe.probe
    assert admission.health.block(6.0) is None


# ---- Pause ------------------------------------------------------------------------------------------------------


def test_a_pause_sends_away_the_impatient_and_those_it_would_outlast() -> None:
    admission = full(depth=0)
    stay = [caller(), caller(deadline=41.0), job()]
    go = [caller(patient=False), caller(deadline=40.0), job(deadline=5.0)]
    entered(admission, *stay, *go)

    leaving = admission.pause_for(40.0, 0.0)

    assert leaving is not None
    assert set(leaving) == set(go)
    assert {ticket.place for ticket in go} == {Place.OUTSIDE}
    assert {ticket.place for ticket in stay} == {Place.WAITING}
    assert admission.waiting == 3


def test_a_shorter_pause_changes_nothing() -> None:
    admission = full()
    admission.pause_for(40.0, 0.0)
    entered(admission, caller(deadline=41.0))

    assert admission.pause_for(30.0, 1.0) is None
    assert admission.waiting == 1


def test_a_pause_is_cut_to_the_longest_allowed() -> None:
    admission = full()
    waiter = caller(deadline=301.0)
    entered(admission, waiter)

    assert admission.pause_for(1e6, 0.0) == []
    assert admission.pause.until == 300.0


def test_a_pause_of_no_length_sends_nobody_away() -> None:
    """`Retry-After: 0` means "at once": there is nothing to wait out."""
    admission = full()
    entered(admission, caller(patient=False))

    assert not admission.pause_for(0.0, 10.0)
    assert admission.waiting == 1


def test_a_pause_takes_no_slot_from_those_who_hold_one() -> None:
    admission = gate(slots=2)
    (holder,) = entered(admission, caller(patient=False))

    assert admission.pause_for(40.0, 0.0) == []
    assert (holder.place, admission.held) == (Place.HOLDING, 1)


# ---- Resize -------------------------------------------------------------------------------------------------------


def test_a_larger_gate_grants_at_once() -> None:
    admission = full(2)
    entered(admission, caller(), caller())
    admission.resize(3)

    assert admission.next(0.0) is not None
    assert admission.next(0.0) is None


def test_a_smaller_gate_takes_its_slots_in_as_they_come_back() -> None:
    admission = gate(slots=4)
    holders = entered(admission, *(caller() for _ in range(4)))
    (waiter,) = entered(admission, caller())

    admission.resize(2)

    assert (admission.free, admission.status(0.0).available_slots) == (-2, 0)
    for holder in holders[:2]:
        admission.give_back(holder, 1.0)
        assert admission.next(1.0) is None
    admission.give_back(holders[2], 1.0)
    assert admission.next(1.0) is waiter


@pytest.mark.parametrize("slots", [0, -5])
def test_a_gate_keeps_one_slot_at_least(slots: int) -> None:
    admission = gate(slots=4)
    admission.resize(slots)

    assert admission.slots == 1


# ---- Preemption -----------------------------------------------------------------------------------------------------


def preemptible(jobs: int, *, slots: int | None = None) -> tuple[Admission, list[Ticket]]:
    admission = gate(slots=slots or jobs, preempt=True)
    tickets = [job() for _ in range(jobs)]
    for granted_at, ticket in enumerate(tickets):
        entered(admission, ticket, now=float(granted_at))
        ticket.calling = True
    return admission, tickets


def test_a_holder_that_neither_calls_nor_sleeps_shields_nobody_and_is_left_alone() -> None:
    """Nothing of it could be cancelled; counting it as leaving would keep the real candidate."""
    admission, (idle, busy) = preemptible(2)
    idle.calling = False
    entered(admission, caller(), now=5.0)

    assert admission.victim(5.0) is busy


def test_without_preemption_there_is_no_victim() -> None:
    admission = gate()
    entered(admission, job(), caller())

    assert admission.victim(0.0) is None


def test_the_call_that_began_last_gives_way() -> None:
    admission, jobs = preemptible(3)
    entered(admission, caller(), now=5.0)

    assert admission.victim(0.0) is jobs[2]


def test_one_asleep_between_attempts_goes_before_one_that_works() -> None:
    admission, jobs = preemptible(3)
    jobs[0].asleep = True
    entered(admission, caller(), now=5.0)

    assert admission.victim(0.0) is jobs[0]


@pytest.mark.parametrize("shield", ["streaming", "protected", "preempted"])
def test_a_shielded_call_does_not_give_way(shield: str) -> None:
    admission, (only,) = preemptible(1)
    setattr(only, shield, True)
    entered(admission, caller(), now=5.0)

    assert admission.victim(0.0) is None


def test_no_more_give_way_than_wait() -> None:
    admission, _ = preemptible(3)
    entered(admission, caller(), caller(), now=5.0)
    victims = []
    while (victim := admission.victim(0.0)) is not None:
        victim.preempted = True
        victims.append(victim)

    assert len(victims) == 2


def test_interactive_calls_never_give_way() -> None:
    admission = gate(preempt=True)
    entered(admission, caller(), caller())

    assert admission.victim(0.0) is None


def test_a_job_that_gave_its_slot_back_cannot_be_preempted() -> None:
    admission, (first, second) = preemptible(2)
    admission.give_back(second, 5.0)
    entered(admission, caller(), caller(), now=5.0)

    assert admission.victim(0.0) is first


def test_a_preempted_job_that_got_a_new_slot_is_not_preempted_any_more() -> None:
    admission, (only,) = preemptible(1)
    only.preempted = True
    admission.give_back(only, 5.0)
    enter(admission, only, 6.0, returning=True)

    assert not only.preempted


def test_the_protection_of_a_fair_turn_ends_with_the_slot() -> None:
    """Its second slot came while nobody waited, so it is as preemptible as any other."""
    admission, (only,) = preemptible(1)
    only.protected = True
    admission.give_back(only, 5.0)

    enter(admission, only, 6.0, returning=True)

    assert not only.protected


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
    admission = full(2)
    entered(admission, caller())
    admission.held = 0
    admission.next(0.0)

    assert admission.status(0.0).available_slots == 1


@pytest.mark.parametrize("now", [0.0, 39.0, 45.0, 60.0])
def test_a_paused_gate_still_lets_patient_callers_wait(now: float) -> None:
    admission = gate(slots=5)
    admission.pause_for(40.0, 0.0)

    assert admission.status(now).available_slots == 5
    assert admission.status(now).accepting


@pytest.mark.parametrize("obstacle", ["closed", "open", "held", "full"])
def test_a_gate_that_would_refuse_does_not_accept(obstacle: str) -> None:
    admission = full(depth=1)
    admission.shut = Door.CLOSED if obstacle == "closed" else None
    match obstacle:
        case "open":
            opened(admission)
        case "held":
            held_back(admission)
        case "full":
            entered(admission, caller())

    assert not admission.status(0.0).accepting


def test_a_gate_whose_breaker_awaits_a_probe_accepts_it() -> None:
    assert opened(gate()).status(5.0).accepting


def would_admit(admission: Admission, now: float) -> bool:
    """Whether an interactive call would be admitted now, by trying it on a copy."""
    return enter(copy.deepcopy(admission), caller(since=now, tenant="somebody new"), now) is None


def test_a_reserved_slot_is_accepting_although_batch_fills_the_queue() -> None:
    admission = gate(slots=1, reserved=1, depth=1)
    entered(admission, job())
    assert would_admit(admission, 0.0)

    assert admission.status(0.0).accepting


def test_a_reserved_slot_is_accepting_although_returning_batch_fills_the_queue() -> None:
    admission = gate(slots=2, reserved=1, depth=2)
    entered(admission, job())
    for _ in range(2):
        enter(admission, job(), returning=True)
    assert would_admit(admission, 0.0)

    assert admission.status(0.0).accepting


# ---- Any order of events ----------------------------------------------------------------------------------------------

moments = st.sampled_from([0.25, 1.0, 4.0, 10.0, 50.0])


class AdmissionMachine(RuleBasedStateMachine):
    """Everything that can happen at a gate, one thing at a time, with every count checked against the tickets."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = gate()
        self.now = 1024.0
        self.tickets: list[Ticket] = []
        self.returned: set[Ticket] = set()

    @initialize(
        slots=st.integers(1, 4),
        reserved=st.integers(0, 4),
        depth=st.sampled_from([0, 2, 3, 8]),
        order=st.sampled_from(Order),
        interval_s=st.sampled_from([0.0, 0.0, 2.0]),
        promote_after_s=st.sampled_from([0.0, 4.0, 100.0]),
        preempt=st.booleans(),
    )
    def set_up(
        self,
        slots: int,
        reserved: int,
        depth: int,
        order: Order,
        interval_s: float,
        promote_after_s: float,
        preempt: bool,
    ) -> None:
        self.admission = Admission(
            GateRules(
                slots=slots,
                reserved_slots=min(reserved, slots),
                depth=depth,
                interactive_order=order,
                promote_after_s=promote_after_s,
                preempt=preempt,
                pacing=PacingRules(interval_s=interval_s),
            )
        )

    # ---- What happens -----------------------------------------------------------------------------

    @rule(
        lane=st.sampled_from(Lane),
        tenant=st.sampled_from("abc"),
        patient=st.booleans(),
        patience_s=st.sampled_from([3.0, 30.0, math.inf]),
        age_s=st.sampled_from([0.0, 20.0]),
    )
    def somebody_comes(self, lane: Lane, tenant: str, patient: bool, patience_s: float, age_s: float) -> None:
        ticket = Ticket(
            since=self.now - age_s,
            lane=lane,
            tenant=tenant,
            deadline=self.now + patience_s,
            patient=patient,
        )
        self.tickets.append(ticket)
        self.come(ticket, returning=False)

    @precondition(lambda self: self.at(Place.OUTSIDE))
    @rule(data=st.data())
    def somebody_returns(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.at(Place.OUTSIDE)))
        self.returned.add(ticket)
        self.come(ticket, returning=True)

    def come(self, ticket: Ticket, *, returning: bool) -> None:
        accepting = self.admission.status(self.now).accepting
        if self.admission.walks_in(ticket, self.now):
            assert accepting
            return
        if self.admission.arrive(ticket, self.now, returning=returning) is not None:
            assert ticket.place is Place.OUTSIDE
            return
        self.grant()
        if ticket in self.at(Place.WAITING) and not returning:
            refusal = self.admission.turn_away(ticket, self.now)
            assert (ticket in self.at(Place.OUTSIDE)) == (refusal is not None)

    def grant(self) -> None:
        most = max(1, self.admission.slots - self.admission.rules.reserved_slots)
        while (ticket := self.admission.next(self.now)) is not None:
            assert ticket.place is Place.IN_TRANSIT
            assert self.admission.free >= 0
            assert ticket.lane is not Lane.BATCH or self.in_use(Lane.BATCH) <= most

    @precondition(lambda self: self.at(Place.IN_TRANSIT))
    @rule(data=st.data())
    def somebody_wakes_up(self, data: st.DataObject) -> None:
        self.admission.take_over(data.draw(st.sampled_from(self.at(Place.IN_TRANSIT))))

    @precondition(lambda self: self.at(Place.IN_TRANSIT, Place.HOLDING))
    @rule(data=st.data())
    def a_slot_comes_back(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.at(Place.IN_TRANSIT, Place.HOLDING)))
        self.admission.give_back(ticket, self.now)
        self.grant()

    @precondition(lambda self: self.at(Place.WAITING))
    @rule(data=st.data())
    def somebody_gives_up(self, data: st.DataObject) -> None:
        self.admission.withdraw(data.draw(st.sampled_from(self.at(Place.WAITING))))
        self.grant()

    @precondition(lambda self: self.at(Place.HOLDING))
    @rule(data=st.data(), result=st.sampled_from([None, TRANSIENT, TRANSIENT, MISCONFIGURED]))
    def a_call_ends(self, data: st.DataObject, result: Failure | None) -> None:
        ticket = data.draw(st.sampled_from(self.at(Place.HOLDING)))
        probe, ticket.probe = ticket.probe, False
        changes = self.admission.health.record(result, probe=probe, now=self.now)
        if changes and self.admission.health.block(self.now) is not None:
            self.admission.evict()
        if result is None:
            self.admission.pause.call_succeeded(float("inf"))
        if data.draw(st.booleans()):
            self.admission.renew(ticket, self.now)
        self.grant()

    @rule(seconds=st.sampled_from([1.0, 4.0, 64.0, 1000.0]))
    def the_provider_asks_to_wait(self, seconds: float) -> None:
        leaving = self.admission.pause_for(seconds, self.now)
        assert all(ticket.place is Place.OUTSIDE for ticket in leaving or ())
        self.grant()

    @rule(slots=st.integers(1, 5))
    def the_gate_changes_its_size(self, slots: int) -> None:
        self.admission.resize(slots)
        self.grant()

    @rule(seconds=moments)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.grant()

    # ---- What must always be true -------------------------------------------------------------------

    @invariant()
    def every_slot_is_somewhere(self) -> None:
        admission = self.admission
        assert admission.held == len(self.at(Place.HOLDING))
        assert admission.in_transit == len(self.at(Place.IN_TRANSIT))
        assert admission.free + admission.held + admission.in_transit == admission.slots
        assert admission.in_use == admission.held + admission.in_transit
        assert admission._batch_in_use == self.in_use(Lane.BATCH)

    @invariant()
    def only_the_living_wait(self) -> None:
        waiting = self.at(Place.WAITING)
        assert set(self.admission.turns.everyone()) == set(waiting)
        assert self.admission.waiting == len(waiting)
        status = self.admission.status(self.now)
        assert status.rt_queue == sum(ticket.lane is Lane.INTERACTIVE for ticket in waiting)
        assert status.be_queue == sum(ticket.lane is Lane.BATCH for ticket in waiting)
        assert 0 <= status.available_slots <= status.total_slots == self.admission.slots

    @invariant()
    def the_queue_is_bounded(self) -> None:
        newcomers = [ticket for ticket in self.at(Place.WAITING) if ticket not in self.returned]
        assert self.admission.rules.depth == 0 or len(newcomers) <= self.admission.rules.depth

    @invariant()
    def one_probe_at_most(self) -> None:
        probes = [ticket for ticket in self.tickets if ticket.probe]
        assert len(probes) <= 1
        assert all(ticket.place is not Place.OUTSIDE for ticket in probes)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """Between now and when the gate looks again nobody could have gone, and then it does look."""
        again_at = self.admission.look_again_at(self.now)
        assert again_at is None or again_at > self.now
        for later_s in (0.25, 1.0, 16.0, 250.0, 5000.0):
            # A ramp's step is announced up to 1e-6 s late, so that rounding cannot miss it.
            if again_at is None or self.now + later_s < again_at - 2e-6:
                assert copy.deepcopy(self.admission).next(self.now + later_s) is None

    @invariant()
    def accepting_is_kept(self) -> None:
        if self.admission.status(self.now).accepting:
            assert would_admit(self.admission, self.now)

    def at(self, *places: Place) -> list[Ticket]:
        return [ticket for ticket in self.tickets if ticket.place in places]

    def in_use(self, lane: Lane) -> int:
        return sum(ticket.lane is lane for ticket in self.at(Place.HOLDING, Place.IN_TRANSIT))


AdmissionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrderOfEvents = AdmissionMachine.TestCase


@given(
    slots=st.integers(1, 4),
    reserved=st.integers(0, 4),
    callers=st.integers(0, 30),
    jobs=st.integers(0, 30),
)
@settings(deadline=None, max_examples=100)
def test_everybody_who_waits_is_served_in_the_end(slots: int, reserved: int, callers: int, jobs: int) -> None:
    """With slots coming back and time passing, neither lane is left behind, whatever is reserved."""
    admission = gate(slots=slots, reserved=min(reserved, slots), depth=0)
    tickets = [*(caller() for _ in range(callers)), *(job() for _ in range(jobs))]
    for ticket in tickets:
        assert enter(admission, ticket) is None
    now = 0.0
    served = 0
    while admission.waiting or admission.held:
        holding = [ticket for ticket in tickets if ticket.place is Place.HOLDING]
        now += 1.0
        if not holding:
            look_again_at = admission.look_again_at(now)
            assert look_again_at is not None
            now = look_again_at
        for ticket in holding:
            admission.give_back(ticket, now)
            served += 1
        while (granted := admission.next(now)) is not None:
            admission.take_over(granted)

    assert served == callers + jobs
