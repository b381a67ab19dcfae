"""The gate's queue: how many wait, whose deadline can be met, who is dismissed, and when the rejected come back."""

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
    job,
    measured,
    paused,
)
from core.intake_stage import TENANT

from headgate.core.admission import Admission
from headgate.core.call import Lane
from headgate.core.gate_rules import Door, Refusal
from headgate.core.intake import GRACE_S
from headgate.core.ticket import Place, Ticket

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


def test_a_closed_upstream_fills_the_queue_and_no_more() -> None:
    """Those who wait for it are bounded like all others."""
    admission = paused(gate(slots=8, depth=3))

    entered(admission, *(caller() for _ in range(3)))
    refusal = enter(admission, caller())

    assert refusal is not None
    assert refusal.door is Door.FULL


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


def test_one_who_returns_keeps_its_place() -> None:
    """Between those who came before it and those who came after."""
    admission = full()
    before, after = caller(since=1.0), caller(since=3.0)
    entered(admission, before, after)
    returning = caller(since=2.0)
    enter(admission, returning, returning=True)

    assert admission.turns.everyone() == [before, returning, after]


@pytest.mark.parametrize("obstacle", ["shut", "failing", "paused"])
def test_one_who_returns_is_still_kept_out_by_the_upstream_s_state(obstacle: str) -> None:
    admission = gate()
    admission.shut = Door.CLOSED if obstacle == "shut" else None
    if obstacle == "failing":
        failing(admission)
    if obstacle == "paused":
        paused(admission)

    assert enter(admission, caller(patient=False), returning=True) is not None


@pytest.mark.parametrize(
    ("waiting", "lane", "full_"),
    [(0, Lane.INTERACTIVE, False), (3, Lane.INTERACTIVE, False), (4, Lane.INTERACTIVE, True)],
)
def test_a_queue_is_full_for_those_who_would_be_refused(waiting: int, lane: Lane, full_: bool) -> None:
    admission = full(depth=4)
    entered(admission, *(caller() for _ in range(waiting)))

    assert admission.full(Ticket(since=0.0, lane=lane)) == full_
    assert (enter(admission, caller()) is not None) == full_


def test_a_queue_is_full_for_batch_before_it_is_for_people() -> None:
    admission = full(depth=4)
    entered(admission, *(job() for _ in range(3)))

    assert admission.full(job())
    assert not admission.full(caller())


def test_with_a_free_slot_or_without_a_bound_no_queue_is_full() -> None:
    unbounded = full(depth=0)
    entered(unbounded, *(caller() for _ in range(50)))

    assert not unbounded.full(caller())
    assert not gate(depth=1).full(job())


# ---- Deadlines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "refused"), [(0, False), (1, False), (4, False), (5, True), (50, True)])
def test_an_estimate_needs_five_samples(samples: int, refused: bool) -> None:
    """The first call of a model that is loaded on demand takes long, and says nothing of the others."""
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


@pytest.mark.parametrize("closed", [paused, failing])
def test_a_deadline_counts_the_time_until_the_next_probe(closed: Callable[[Admission], Admission]) -> None:
    admission = closed(measured(full()))

    refused = enter(admission, caller(deadline=PAUSE_S + 19.0))
    admitted = enter(admission, caller(deadline=PAUSE_S + 21.0))

    assert refused is not None
    assert (refused.door, admitted) == (Door.DEADLINE, None)


def test_a_deadline_behind_another_tenant_s_long_queue_can_be_met() -> None:
    """Tenants take turns: one of theirs, then ours, so 20 s of waiting and 10 s of work fit into 35 s."""
    admission = measured(full())
    entered(admission, *(caller(tenant="a") for _ in range(10)))

    assert enter(admission, caller(tenant="b", deadline=35.0)) is None


def test_an_idle_gate_takes_any_deadline() -> None:
    """What can start at once is never refused on an estimate."""
    admission = measured(gate(), answer_s=1000.0)

    assert enter(admission, caller(deadline=1.0)) is None


def test_no_deadline_is_never_out_of_reach() -> None:
    admission = measured(full(depth=0), answer_s=1e6)
    entered(admission, *(caller() for _ in range(100)))


# ---- Too little time left -------------------------------------------------------------------------------------


def test_a_waiter_that_cannot_be_answered_in_time_is_passed_over_and_put_aside() -> None:
    """A call that nobody can use any more would cost a slot and the provider's quota."""
    admission = measured(gate())
    (holder,) = entered(admission, caller())
    late, in_time = caller(deadline=35.0), caller(deadline=500.0)
    entered(admission, late, in_time)
    admission.give_back(holder, 30.0)

    assert admission.next(30.0) is in_time

    assert (late.place, admission.late) == (Place.OUTSIDE, [late])
    assert admission.waiting == 0


def test_where_answers_stray_a_waiter_needs_time_for_nearly_all_of_them() -> None:
    admission = measured(gate(), samples=0)
    for answer_s in (1.0, 19.0) * 10:
        admission.drain.answered(answer_s, 0.0)
    (holder,) = entered(admission, caller())
    waiter, patient = entered(admission, caller(deadline=45.0), caller())
    admission.give_back(holder, 30.0)

    assert admission.next(30.0) is patient
    assert admission.late == [waiter]


def test_the_last_waiter_goes_however_little_time_it_has() -> None:
    """If answers have become fast again, only a call can show it."""
    admission = measured(gate(interval_s=0.1))
    (holder, waiter) = entered(admission, caller(), caller(deadline=30.0))
    admission.give_back(holder, 28.0)

    assert admission.next(28.0) is waiter


def test_before_enough_answers_nobody_is_dismissed() -> None:
    admission = measured(gate(), samples=4)
    (holder,) = entered(admission, caller())
    (waiter,) = entered(admission, caller(deadline=31.0))
    admission.give_back(holder, 30.0)

    assert admission.next(30.0) is waiter


def test_a_probe_needs_the_time_in_which_it_could_be_refused() -> None:
    """One that is gone before would tell nothing, and the next would have to wait again."""
    admission = paused(gate())
    short, long = caller(deadline=PAUSE_S + GRACE_S[0] / 2), caller(deadline=PAUSE_S + 10.0)
    entered(admission, short, long)

    assert admission.next(PAUSE_S) is long
    assert admission.late == [short]


def test_looking_for_the_next_grant_finds_the_late_as_well() -> None:
    """Nobody else may come; without this the late one would wait until its deadline."""
    admission = measured(gate(slots=2, interval_s=100.0))
    entered(admission, caller())
    waiter, _ = entered(admission, caller(deadline=300.0), caller())

    admission.look_again_at(295.0)

    assert admission.late == [waiter]


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


def test_the_rejected_are_asked_to_come_back_one_after_the_other() -> None:
    """All at the same time, all but one would be rejected again."""
    admission = measured(full(depth=1))
    entered(admission, caller())

    assert [admission.forecast.rejected(Lane.INTERACTIVE, 0.0, TENANT) for _ in range(4)] == [
        10.0,
        20.0,
        30.0,
        40.0,
    ]


def test_those_who_should_have_come_back_are_not_waited_for() -> None:
    admission = measured(full(depth=1))
    entered(admission, caller())
    for _ in range(4):
        admission.forecast.rejected(Lane.INTERACTIVE, 0.0, TENANT)

    assert admission.forecast.rejected(Lane.INTERACTIVE, 25.0, TENANT) == pytest.approx(30.0), (
        "two are still to come"
    )
    assert admission.forecast.rejected(Lane.INTERACTIVE, 1000.0, TENANT) == pytest.approx(10.0)


def test_a_refusal_while_it_is_closed_counts_the_time_until_the_next_probe() -> None:
    admission = measured(full(depth=1))
    entered(admission, caller())
    paused(admission)

    assert admission.forecast.rejected(Lane.INTERACTIVE, 0.5, TENANT) == pytest.approx(10.0 + PAUSE_S - 0.5)


def test_batch_is_told_to_come_back_later_than_interactive() -> None:
    admission = measured(full(depth=0), answer_s=1.0)
    entered(admission, *(caller() for _ in range(2)), *(job() for _ in range(8)))
    for _ in range(100):
        admission.drain.granted_while_batch_waits(to_batch=False)

    assert admission.forecast.rejected(Lane.INTERACTIVE, 0.0, TENANT) == pytest.approx(10.0)
    assert admission.forecast.rejected(Lane.BATCH, 20.0, TENANT) == pytest.approx(40.0, rel=0.01)
