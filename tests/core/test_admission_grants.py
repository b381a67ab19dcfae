"""The gate's grants: who goes when, what a grant costs if nothing comes of it, probes, calling again, preemption."""

import copy
from collections.abc import Callable

import pytest
from core.gate_stage import (
    PAUSE_HINT_S,
    PAUSE_S,
    caller,
    enter,
    entered,
    failing,
    full,
    gate,
    held_back,
    job,
    paused,
    until,
)
from core.intake_stage import RUN, TENANT

from headgate.core.admission import MAX_OVERTAKEN, Admission
from headgate.core.gate_rules import Door, Refusal
from headgate.core.hold import HELD_S
from headgate.core.intake import GRACE_S
from headgate.core.start import Outcome
from headgate.core.ticket import CHAT, Place, Ticket


def queue(*waiters: Ticket, slots: int = 1) -> tuple[Admission, Ticket]:
    """All slots are held, and these wait; the last holder is about to leave."""
    admission = gate(slots=slots)
    *_, holder = entered(admission, *(caller() for _ in range(slots)))
    entered(admission, *waiters)
    return admission, holder


# ---- Grants ---------------------------------------------------------------------------------------------------


def test_a_grant_is_in_transit_until_it_is_taken_over() -> None:
    waiter = caller()
    admission, holder = queue(waiter)
    admission.give_back(holder, 5.0)

    assert admission.next(5.0) is waiter
    assert (waiter.place, waiter.granted_at) == (Place.IN_TRANSIT, 5.0)
    assert (admission.held, admission.in_transit, admission.free) == (0, 1, 0)
    admission.take_over(waiter)
    assert (admission.held, admission.in_transit, admission.free) == (1, 0, 0)


def test_a_slot_in_transit_is_not_given_twice() -> None:
    admission, holder = queue(caller(), caller())
    admission.give_back(holder, 5.0)
    admission.next(5.0)

    assert admission.next(5.0) is None


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


def test_a_grant_that_was_never_taken_over_leaves_no_call_in_flight() -> None:
    waiter = caller()
    admission, holder = queue(waiter)
    admission.give_back(holder, 5.0)
    admission.next(5.0)

    admission.give_back(waiter, 5.0)

    assert (waiter.start, admission.intake.in_flight, admission.drain.samples) == (None, 0, 0)
    assert admission.free == 1


def test_an_answer_is_a_sample_and_a_slot_given_back_without_one_is_none() -> None:
    """A slot may be held for long with no call in flight, and a refusal or a 400 says nothing of how long answers take."""
    admission = gate(slots=3)
    answered, rejected, throttled = entered(admission, caller(), caller(), caller())

    admission.ended(answered, 7.0, Outcome.ANSWERED, served=True)
    admission.ended(throttled, 1.0, Outcome.THROTTLED)
    admission.ended(rejected, 0.1, Outcome.ANSWERED)
    for ticket in (answered, rejected, throttled):
        admission.give_back(ticket, 100.0)

    assert (admission.drain.samples, admission.drain.answer_s) == (1, 7.0)
    assert (admission.free, admission.intake.in_flight) == (3, 0)


def test_the_end_of_a_call_frees_no_slot() -> None:
    admission = gate()
    (holder,) = entered(admission, caller())

    admission.ended(holder, 1.0, Outcome.THROTTLED)

    assert (holder.place, admission.held, admission.intake.in_flight) == (Place.HOLDING, 1, 0)


def test_a_call_ends_once() -> None:
    admission = gate()
    (holder,) = entered(admission, caller())

    admission.ended(holder, 1.0, Outcome.ANSWERED, served=True)
    admission.ended(holder, 2.0, Outcome.ANSWERED, served=True)
    admission.give_back(holder, 3.0)

    assert (admission.intake.in_flight, admission.drain.samples) == (0, 1)


# ---- A closed upstream ------------------------------------------------------------------------------------------


def grants(admission: Admission, *, until_s: float, now: float = 0.0) -> list[float]:
    """When waiters are granted if the gate looks whenever it said it would and nobody returns."""
    granted: list[float] = []
    while admission.waiting and now <= until_s:
        while admission.next(now) is not None:
            granted.append(now)
        look_again_at = admission.look_again_at(now)
        if look_again_at is None:
            break
        assert look_again_at > now
        now = look_again_at
    return granted


def test_one_probe_goes_when_it_is_due_and_the_others_follow_once_it_has_passed() -> None:
    admission = paused(gate(slots=8))
    entered(admission, *(caller() for _ in range(5)))

    probe, *others = grants(admission, until_s=60.0)

    assert probe == PAUSE_S
    assert len(others) == 4
    assert min(others) >= PAUSE_S + GRACE_S[0]
    assert others == sorted(set(others)), "not all at once"


def test_a_probe_that_is_refused_keeps_the_others_waiting_for_the_next_one() -> None:
    admission = paused(gate(slots=8))
    probe, other = entered(admission, caller(since=1.0), caller(since=2.0))
    assert admission.next(PAUSE_S) is probe

    admission.take_over(probe)
    admission.ended(probe, PAUSE_S, Outcome.THROTTLED, PAUSE_HINT_S)
    admission.give_back(probe, PAUSE_S)

    assert admission.look_again_at(PAUSE_S) == 2 * PAUSE_S
    assert admission.next(2 * PAUSE_S) is other


def test_a_probe_that_was_cancelled_on_its_way_in_lets_the_next_one_go_before_long() -> None:
    admission = paused(gate(slots=8))
    probe, other = entered(admission, caller(since=1.0), caller(since=2.0))
    assert admission.next(PAUSE_S) is probe

    admission.give_back(probe, PAUSE_S)

    look_again_at = admission.look_again_at(PAUSE_S)
    assert look_again_at is None or look_again_at <= 2 * PAUSE_S
    assert admission.next(2 * PAUSE_S) is other


# ---- When to look again -----------------------------------------------------------------------------------------


def test_with_nobody_waiting_there_is_nothing_to_look_for() -> None:
    assert paused(gate()).look_again_at(0.0) is None


def test_with_every_slot_in_use_only_a_return_helps() -> None:
    admission = full()
    entered(admission, caller())

    assert admission.look_again_at(0.0) is None


@pytest.mark.parametrize("closed", [paused, failing])
def test_a_closed_gate_looks_again_when_the_probe_is_due(closed: Callable[[Admission], Admission]) -> None:
    admission = closed(gate())
    entered(admission, caller())

    assert admission.look_again_at(1.0) == PAUSE_S


def test_a_promotion_that_comes_before_the_pacing_is_not_slept_through() -> None:
    """An interactive call waits for tokens; a batch call, once promoted, needs not wait for them."""
    admission = gate(slots=4, promote_after_s=20.0, tokens_per_minute=100)
    entered(admission, caller(tokens=50), caller(tokens=45))
    (large,) = entered(admission, caller(since=2.0, tokens=50), now=2.0)
    large.overtaken = MAX_OVERTAKEN
    entered(admission, job(since=1.0, tokens=5), now=2.0)
    assert admission.next(2.0) is None
    assert copy.deepcopy(admission).next(21.0) is not None

    look_again_at = admission.look_again_at(2.0)

    assert look_again_at is not None
    assert look_again_at <= 21.0


# ---- Calling again with the slot in hand --------------------------------------------------------------------------


def test_a_holder_may_call_again_when_nothing_stands_in_the_way() -> None:
    admission = gate()
    (holder,) = entered(admission, caller())
    admission.ended(holder, 1.0, Outcome.THROTTLED)

    assert admission.renew(holder, 1.0)
    assert (admission.held, admission.intake.in_flight) == (1, 1)


def test_only_a_holder_may_call_again() -> None:
    admission = full()
    (waiter,) = entered(admission, caller())

    assert not admission.renew(waiter, 0.0)
    assert not admission.renew(caller(), 0.0)


def test_calling_again_needs_a_pacing_token_like_anybody() -> None:
    admission = gate(slots=2, interval_s=10.0)
    (holder,) = entered(admission, caller())
    admission.ended(holder, 1.0, Outcome.FAILED)

    assert not admission.renew(holder, 5.0)
    assert admission.renew(holder, 10.0)
    admission.ended(holder, 10.0, Outcome.FAILED)
    assert not admission.renew(holder, 10.0)


def test_a_regeneration_counts_its_tokens_beside_the_first_call_s() -> None:
    admission = gate(slots=2, tokens_per_minute=100)
    (holder,) = entered(admission, caller(tokens=40))

    for now, may in ((1.0, True), (2.0, False), (60.0, True)):
        admission.ended(holder, now, Outcome.ANSWERED)
        assert admission.renew(holder, now) == may


@pytest.mark.parametrize(("now", "may"), [(PAUSE_S - 0.1, False), (PAUSE_S, True)])
def test_holders_wait_for_the_probe_of_a_closed_upstream_and_one_of_them_may_be_it(
    now: float, may: bool
) -> None:
    """Calls throttled together sleep with their slots in hand; waking together they would be the next burst."""
    admission = gate(slots=RUN)
    holders = entered(admission, *(caller() for _ in range(RUN)))
    for holder in holders:
        admission.ended(holder, 0.0, Outcome.THROTTLED, PAUSE_HINT_S)
    assert until(admission) == PAUSE_S

    assert sum(admission.renew(holder, now) for holder in holders) == may


def test_a_holder_that_was_put_down_holds_nobody_up_until_it_is_taken_up() -> None:
    """A slot that was handed out idles; it must be no call in flight, and no probe."""
    admission = paused(gate(slots=4))
    (holder,) = entered(admission, caller(), now=PAUSE_S)
    admission.put_down(holder, PAUSE_S)
    assert (holder.start, admission.intake.in_flight, admission.held) == (None, 0, 1)
    probe = caller()
    assert enter(admission, probe, 2 * PAUSE_S) is None

    assert not admission.take_up(holder, 2 * PAUSE_S), "one probe at a time"
    admission.ended(probe, 2 * PAUSE_S, Outcome.ANSWERED)
    assert admission.take_up(holder, 3 * PAUSE_S)

    assert holder.start is not None
    assert admission.intake.in_flight == 1


# ---- Probes of a held upstream ------------------------------------------------------------------------------------


def test_one_probe_of_a_held_upstream_enters_and_the_others_are_refused() -> None:
    admission = held_back(gate(slots=4))
    probe, other = caller(), caller()

    assert enter(admission, probe, HELD_S[0]) is None
    assert (probe.probe, probe.place) == (True, Place.HOLDING)
    assert enter(admission, other, HELD_S[0] + 1) == Refusal(Door.MISCONFIGURED, 0.0)


@pytest.mark.parametrize(
    "how", ["gives the slot back", "is put down", "withdraws", "is evicted", "is turned away", "in transit"]
)
def test_a_probe_that_leaves_without_a_result_lets_the_next_one_try(how: str) -> None:
    now = HELD_S[0]
    free = how in {"gives the slot back", "is put down"}
    admission = held_back(gate() if free else full(depth=1))
    probe = caller()
    match how:
        case "gives the slot back":
            enter(admission, probe, now)
            admission.give_back(probe, now)
        case "is put down":
            enter(admission, probe, now)
            admission.put_down(probe, now)
        case "withdraws":
            enter(admission, probe, now)
            admission.withdraw(probe)
        case "is evicted":
            enter(admission, probe, now)
            assert admission.evict() == [probe]
        case "is turned away":
            admission.turns.interactive.join(caller())
            assert enter(admission, probe, now) is not None
        case _:
            assert how == "in transit"
            admission = gate(slots=2, interval_s=now)
            entered(admission, caller())
            held_back(admission)
            admission.arrive(probe, now)
            assert admission.next(now) is probe
            admission.give_back(probe, now)

    assert not probe.probe
    assert admission.holds.blocks(CHAT, TENANT, now) is None


def test_a_holder_taken_up_while_the_upstream_is_held_is_its_probe() -> None:
    admission = gate(slots=2)
    first, second = entered(admission, caller(), caller())
    held_back(admission)
    for holder in (first, second):
        admission.ended(holder, 1.0, Outcome.UNKNOWN)

    assert not admission.renew(first, HELD_S[0] - 0.1)
    assert admission.renew(first, HELD_S[0])
    assert first.probe
    assert not admission.renew(second, HELD_S[0])


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

    assert admission.victim(5.0) is jobs[2]


def test_one_asleep_between_attempts_goes_before_one_that_works() -> None:
    admission, jobs = preemptible(3)
    jobs[0].asleep = True
    entered(admission, caller(), now=5.0)

    assert admission.victim(5.0) is jobs[0]


def test_nobody_gives_way_while_the_upstream_is_closed() -> None:
    """The slot would not help the one who waits."""
    admission, jobs = preemptible(1)
    entered(admission, caller(), now=5.0)
    paused(admission, at=5.0)

    assert admission.victim(5.1) is None
    assert admission.look_again_at(5.1) == 5.0 + PAUSE_S
    assert admission.victim(5.0 + PAUSE_S) is jobs[0]


@pytest.mark.parametrize("shield", ["streaming", "protected", "preempted"])
def test_a_shielded_call_does_not_give_way(shield: str) -> None:
    admission, (only,) = preemptible(1)
    setattr(only, shield, True)
    entered(admission, caller(), now=5.0)

    assert admission.victim(5.0) is None


def test_no_more_give_way_than_wait() -> None:
    admission, _ = preemptible(3)
    entered(admission, caller(), caller(), now=5.0)
    victims = []
    while (victim := admission.victim(5.0)) is not None:
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

    assert admission.victim(5.0) is first


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
