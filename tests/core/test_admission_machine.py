"""Everything that can happen at a gate in any order: no slot is lost, no call uncounted, no waiter forgotten."""

import copy
import math

import hypothesis.strategies as st
from core.gate_stage import MISCONFIGURED, caller, enter, gate, used
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.core.admission import Admission
from headgate.core.call import Lane
from headgate.core.failures import Failure, FailureKind
from headgate.core.gate_rules import GateRules, Order
from headgate.core.intake import GRACE_S, Closed
from headgate.core.pacing import PacingRules
from headgate.core.start import Outcome
from headgate.core.ticket import Place, Ticket

TRANSIENT = Failure(kind=FailureKind.TRANSIENT)
FAILURES = {
    Outcome.ANSWERED: None,
    Outcome.THROTTLED: Failure(kind=FailureKind.THROTTLED),
    Outcome.FAILED: TRANSIENT,
    Outcome.BROKE: TRANSIENT,
    Outcome.UNKNOWN: Failure(kind=FailureKind.CANCELLED),
}
moments = st.sampled_from([0.25, 1.0, 4.0, 10.0, 50.0])
hints = st.sampled_from([0.0, 0.0, 4.0, 1000.0])


def would_admit(admission: Admission, now: float) -> bool:
    """Whether an interactive call would be admitted now, by trying it on a copy."""
    return enter(copy.deepcopy(admission), caller(since=now, tenant="somebody new"), now) is None


class AdmissionMachine(RuleBasedStateMachine):
    """One thing at a time, with every count checked against the tickets."""

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
        breaker=st.booleans(),
        was_used=st.booleans(),
    )
    def set_up(
        self,
        *,
        slots: int,
        reserved: int,
        depth: int,
        order: Order,
        interval_s: float,
        promote_after_s: float,
        preempt: bool,
        breaker: bool,
        was_used: bool,
    ) -> None:
        rules = GateRules(
            slots=slots,
            reserved_slots=min(reserved, slots),
            depth=depth,
            interactive_order=order,
            promote_after_s=promote_after_s,
            preempt=preempt,
            breaker=breaker,
            pacing=PacingRules(interval_s=interval_s),
        )
        self.admission = used(Admission(rules)) if was_used else Admission(rules)

    # ---- Who comes and goes -----------------------------------------------------------------------

    @rule(
        lane=st.sampled_from(Lane),
        tenant=st.sampled_from("abc"),
        patient=st.booleans(),
        movable=st.booleans(),
        patience_s=st.sampled_from([3.0, 30.0, math.inf]),
        age_s=st.sampled_from([0.0, 20.0]),
    )
    def somebody_comes(
        self, lane: Lane, tenant: str, patient: bool, movable: bool, patience_s: float, age_s: float
    ) -> None:
        ticket = Ticket(
            since=self.now - age_s,
            lane=lane,
            tenant=tenant,
            deadline=self.now + patience_s,
            patient=patient,
            movable=movable,
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
        self.admission.look_again_at(self.now)
        late, self.admission.late = self.admission.late, []
        assert all(ticket.place is Place.OUTSIDE for ticket in late)
        assert all(ticket.deadline < math.inf for ticket in late)

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

    # ---- What becomes of calls ---------------------------------------------------------------------

    @precondition(lambda self: self.calling())
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), hint_s=hints, again=st.booleans())
    def a_call_ends(self, data: st.DataObject, outcome: Outcome, hint_s: float, again: bool) -> None:
        ticket = data.draw(st.sampled_from(self.calling()))
        self.ends(ticket, outcome, hint_s, FAILURES[outcome])
        if again:
            self.admission.renew(ticket, self.now)
        self.grant()

    @precondition(lambda self: self.calling())
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.THROTTLED, Outcome.FAILED]), hint_s=hints)
    def one_caller_is_refused_until_it_closes(
        self, data: st.DataObject, outcome: Outcome, hint_s: float
    ) -> None:
        ticket = data.draw(st.sampled_from(self.calling()))
        for _ in range(12):
            self.ends(ticket, outcome, hint_s, FAILURES[outcome])
            if not self.admission.renew(ticket, self.now):
                break
        self.grant()

    @precondition(lambda self: self.calling())
    @rule(data=st.data())
    def the_key_is_wrong(self, data: st.DataObject) -> None:
        for ticket in self.calling():
            self.ends(ticket, Outcome.ANSWERED, 0.0, MISCONFIGURED)
        self.grant()

    def ends(self, ticket: Ticket, outcome: Outcome, hint_s: float, failure: Failure | None) -> None:
        """As `calls.upstream` and `calls.gate` do it."""
        admission = self.admission
        probe, ticket.probe = ticket.probe, False
        admission.holds.record(failure, ticket.endpoint, ticket.tenant, probe=probe, now=self.now)
        assert all(one.place is Place.OUTSIDE for one, _ in admission.held_back(self.now))
        admission.ended(ticket, self.now, outcome, hint_s)
        news = admission.intake.news.copy()
        admission.intake.news.clear()
        if any(isinstance(item, Closed) for item in news):
            for leaving in admission.leave_closed():
                assert all(one.place is Place.OUTSIDE for one in leaving)

    @precondition(lambda self: self.at(Place.HOLDING))
    @rule(data=st.data())
    def a_holder_idles(self, data: st.DataObject) -> None:
        self.admission.put_down(data.draw(st.sampled_from(self.at(Place.HOLDING))), self.now)
        self.grant()

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def a_holder_calls_after_all(self, data: st.DataObject) -> None:
        self.admission.take_up(data.draw(st.sampled_from(self.idle())), self.now)

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
    def every_call_in_flight_has_its_ticket(self) -> None:
        started = [ticket for ticket in self.tickets if ticket.start is not None]
        assert self.admission.intake.in_flight == len(started)
        assert all(ticket.place in {Place.IN_TRANSIT, Place.HOLDING} for ticket in started)
        assert all(ticket.start is not None for ticket in self.at(Place.IN_TRANSIT))

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
        # Those who wait for nothing but their turn to start take no place in it: at most one for each slot.
        depth, slots = self.admission.rules.depth, self.admission.slots
        assert depth == 0 or len(newcomers) <= depth + slots

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
            # While calls come back one by one, a step is announced up to a grace time after it is possible.
            if again_at is None or self.now + later_s < again_at - GRACE_S[0]:
                assert copy.deepcopy(self.admission).next(self.now + later_s) is None

    @invariant()
    def a_free_slot_and_a_waiter_find_each_other(self) -> None:
        """Looking whenever the gate said it would, a waiter goes or leaves, unless a call has to return first."""
        admission, now = copy.deepcopy(self.admission), self.now
        for _ in range(100):
            if admission.next(now) is not None or not admission.waiting or not admission.free:
                return
            again_at = admission.look_again_at(now)
            if again_at is None:
                assert not admission.waiting or admission.intake.in_flight or admission.in_use
                return
            assert again_at > now
            now = again_at
        raise AssertionError(f"looked again 100 times, until {now - self.now} s later")

    @invariant()
    def accepting_is_kept(self) -> None:
        if self.admission.status(self.now).accepting:
            assert would_admit(self.admission, self.now)

    def at(self, *places: Place) -> list[Ticket]:
        return [ticket for ticket in self.tickets if ticket.place in places]

    def calling(self) -> list[Ticket]:
        return [ticket for ticket in self.at(Place.HOLDING) if ticket.start is not None]

    def idle(self) -> list[Ticket]:
        """Holders whose call was put down, or is over."""
        return [ticket for ticket in self.at(Place.HOLDING) if ticket.start is None]

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
    tickets = [
        *(caller() for _ in range(callers)),
        *(Ticket(since=0.0, lane=Lane.BATCH) for _ in range(jobs)),
    ]
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
