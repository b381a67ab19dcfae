"""Whose turn it is: each rule by itself, then that batch neither starves nor takes over."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from headgate.core.call import Lane
from headgate.core.gate_rules import GateRules, Order
from headgate.core.ticket import Ticket
from headgate.core.turns import Turns

NEVER_S = 1e9
PLENTY = 1000


class Stage:
    """Two lines and a gate whose slots are always free: only turns decide."""

    def __init__(
        self,
        *,
        slots: int = PLENTY,
        reserved: int = 0,
        promote_after_s: float = NEVER_S,
        order: Order = Order.FIFO,
    ) -> None:
        self.slots = slots
        self.bound = max(1, slots - reserved)
        self.turns = Turns(
            GateRules(
                slots=slots,
                reserved_slots=reserved,
                depth=0,
                promote_after_s=promote_after_s,
                interactive_order=order,
            )
        )
        self.now = 0.0
        self.batch_in_use = 0

    def interactive(self, count: int = 1, *, since: float = 0.0) -> list[Ticket]:
        return self._join(Lane.INTERACTIVE, count, since)

    def batch(self, count: int = 1, *, since: float = 0.0) -> list[Ticket]:
        return self._join(Lane.BATCH, count, since)

    def _join(self, lane: Lane, count: int, since: float) -> list[Ticket]:
        tickets = [Ticket(since=since, lane=lane) for _ in range(count)]
        for ticket in tickets:
            self.turns.line(lane).join(ticket)
        return tickets

    def peek(self) -> Ticket | None:
        return self.turns.next(self.now, batch_may_go=self.batch_in_use < self.bound)

    def grant(self, *, keep: bool = False) -> Ticket | None:
        """Grant once; the slot comes back at once unless it is kept."""
        ticket = self.peek()
        if ticket is not None:
            self.turns.granted(ticket, self.now)
            self.batch_in_use += keep and ticket.lane is Lane.BATCH
        return ticket

    def grants(self, most: int = PLENTY) -> list[Ticket]:
        granted: list[Ticket] = []
        while len(granted) < most and (ticket := self.grant()) is not None:
            granted.append(ticket)
        return granted


def lanes(tickets: list[Ticket]) -> str:
    return "".join(ticket.lane[0] for ticket in tickets)


# ---- The rules, one by one ------------------------------------------------------------------------------


def test_nobody_waits_and_nobody_goes() -> None:
    assert Stage().peek() is None


def test_interactive_goes_first() -> None:
    stage = Stage()
    stage.batch()
    (caller,) = stage.interactive()

    assert stage.peek() is caller


@pytest.mark.parametrize(
    ("slots", "reserved", "batch_in_use", "goes"),
    [
        (4, 0, 0, True),
        (4, 0, 3, True),
        (4, 0, 4, False),
        (4, 1, 2, True),
        (4, 1, 3, False),
        (4, 3, 0, True),
        (4, 3, 1, False),
        (4, 4, 0, True),
        (4, 4, 1, False),
        (1, 0, 0, True),
        (1, 1, 0, True),
        (1, 1, 1, False),
    ],
)
def test_alone_batch_goes_while_it_leaves_the_reserved_slots_alone(
    slots: int, reserved: int, batch_in_use: int, goes: bool
) -> None:
    stage = Stage(slots=slots, reserved=reserved)
    stage.batch()
    stage.batch_in_use = batch_in_use

    assert (stage.peek() is not None) == goes


@pytest.mark.parametrize(
    ("slots", "reserved", "bound"), [(4, 0, 4), (4, 1, 3), (4, 3, 1), (4, 4, 1), (1, 0, 1), (1, 1, 1)]
)
def test_batch_never_holds_more_than_its_bound_whatever_is_due(slots: int, reserved: int, bound: int) -> None:
    """Neither its turn nor its age gets it past the bound."""
    stage = Stage(slots=slots, reserved=reserved, promote_after_s=0.0)
    stage.interactive(50, since=0.0)
    stage.batch(50, since=-100.0)
    held = [stage.grant(keep=True) for _ in range(60)]

    assert stage.batch_in_use == bound
    assert sum(ticket is not None and ticket.lane is Lane.BATCH for ticket in held) == bound


def test_at_its_bound_batch_lets_interactive_pass() -> None:
    stage = Stage(slots=2, reserved=1, promote_after_s=0.0)
    stage.batch(since=-100.0)
    stage.batch_in_use = 1
    assert stage.peek() is None

    (caller,) = stage.interactive()
    assert stage.peek() is caller


def test_a_gate_made_smaller_than_its_reserve_still_serves_batch_in_turn() -> None:
    """Adaptive limits may shrink a gate below what is reserved."""
    stage = Stage(slots=8, reserved=4)
    stage.slots = 1
    stage.interactive(20)
    stage.batch(20)

    assert lanes(stage.grants(10)) == "iiiibiiiib"


def test_while_batch_waits_it_gets_one_grant_in_five() -> None:
    stage = Stage()
    stage.interactive(20)
    stage.batch(20)

    assert lanes(stage.grants(15)) == "iiiibiiiibiiiib"


def test_grants_before_batch_waits_are_not_counted() -> None:
    stage = Stage()
    stage.interactive(20)
    stage.grants(10)
    stage.batch()

    assert lanes(stage.grants(5)) == "iiiib"


def test_batch_that_just_went_begins_a_new_count() -> None:
    stage = Stage()
    stage.batch(3)
    stage.grants(1)
    stage.interactive(20)

    assert lanes(stage.grants(5)) == "iiiib"


@pytest.mark.parametrize(("age_s", "goes"), [(119.0, False), (120.0, True), (500.0, True)])
def test_batch_older_than_its_promotion_goes_ahead_of_younger_interactive(age_s: float, goes: bool) -> None:
    stage = Stage(promote_after_s=120.0)
    stage.now = 1000.0
    (job,) = stage.batch(since=1000.0 - age_s)
    stage.interactive(3, since=999.0)

    assert (stage.peek() is job) == goes


def test_promotion_does_not_pass_interactive_that_is_older_still() -> None:
    stage = Stage(promote_after_s=120.0)
    stage.now = 1000.0
    stage.batch(since=800.0)
    (caller,) = stage.interactive(since=700.0)

    assert stage.peek() is caller


def test_at_most_every_second_grant_is_a_promotion() -> None:
    stage = Stage(promote_after_s=10.0)
    stage.now = 1000.0
    stage.batch(20, since=0.0)
    stage.interactive(20, since=999.0)

    assert lanes(stage.grants(10)) == "bibibibibi"


def test_with_nobody_interactive_promotions_follow_each_other() -> None:
    stage = Stage(promote_after_s=10.0)
    stage.now = 1000.0
    stage.batch(5, since=0.0)

    assert lanes(stage.grants()) == "bbbbb"


def test_the_oldest_batch_waiter_is_promoted_whoever_is_next_in_line() -> None:
    stage = Stage(promote_after_s=120.0)
    stage.now = 1000.0
    stage.batch(since=950.0)
    (old,) = stage.batch(since=100.0)
    stage.interactive(since=999.0)

    assert stage.peek() is old


@pytest.mark.parametrize("reserved", [2, 4])
def test_promotion_passes_over_the_reservation(reserved: int) -> None:
    stage = Stage(slots=4, reserved=reserved, promote_after_s=120.0)
    stage.now = 1000.0
    stage.batch_in_use = max(0, 4 - reserved - 1)
    (job,) = stage.batch(since=100.0)

    assert stage.peek() is job


@pytest.mark.parametrize("slots", [1, 4])
def test_with_every_slot_reserved_batch_still_gets_its_turns(slots: int) -> None:
    """A reserve of all slots means "interactive first", not "batch never"."""
    stage = Stage(slots=slots, reserved=slots)
    stage.interactive(50)
    stage.batch(50)

    assert lanes(stage.grants(15)) == "iiiibiiiibiiiib"


def test_without_batch_nothing_is_promoted() -> None:
    assert Stage().turns.promotes_at() is None


def test_asking_changes_nothing() -> None:
    """The gate asks whose turn it is without granting, as when pacing says not yet."""
    stage = Stage(promote_after_s=10.0)
    stage.interactive(20)
    stage.batch(20)
    granted = []
    for _ in range(10):
        for _ in range(7):
            stage.peek()
        granted += stage.grants(1)

    assert lanes(granted) == "iiiibiiiib"


# ---- The newest first -------------------------------------------------------------------------------------


def test_lifo_turns_interactive_around_and_leaves_batch_alone() -> None:
    stage = Stage(order=Order.LIFO)
    callers = stage.interactive(3)
    jobs = stage.batch(3)

    assert stage.grants() == [*callers[::-1], *jobs]


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("callers", [1, 2, 4, 10])
def test_promotion_improves_the_rank_of_the_promoted(order: Order, callers: int) -> None:
    """Promotion and "newest first" once met in a way that served the promoted request last."""

    def rank(promote_after_s: float) -> int:
        stage = Stage(promote_after_s=promote_after_s, order=order)
        stage.now = 1000.0
        (job,) = stage.batch(since=500.0)
        stage.interactive(callers, since=990.0)
        return stage.grants().index(job)

    assert rank(120.0) < rank(NEVER_S)
    assert rank(120.0) == 0


@pytest.mark.parametrize("order", Order)
def test_the_promoted_is_not_overtaken_by_a_stream_of_newcomers(order: Order) -> None:
    stage = Stage(promote_after_s=120.0, order=order)
    stage.now = 1000.0
    (job,) = stage.batch(since=500.0)
    granted = []
    for _ in range(3):
        stage.interactive(since=stage.now)
        granted += stage.grants(1)
        stage.now += 1

    assert job in granted


# ---- Fair turns are kept ------------------------------------------------------------------------------------


def test_a_batch_call_that_took_its_fair_turn_is_protected() -> None:
    """Preempting it at once would take back the turn it was owed."""
    stage = Stage()
    stage.interactive(6)
    stage.batch(2)
    protected = {ticket.protected for ticket in stage.grants(5) if ticket.lane is Lane.BATCH}

    assert protected == {True}


def test_a_batch_call_that_went_while_nobody_waited_is_not_protected() -> None:
    stage = Stage()
    (job,) = stage.batch()
    stage.grants()

    assert not job.protected


# ---- Estimates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", Order)
def test_a_newcomer_to_an_empty_gate_counts_its_own_grant(order: Order) -> None:
    """The estimate must not depend on an order that has nobody to order."""
    stage = Stage(order=order)
    (caller,) = stage.interactive()

    assert stage.turns.grants_until(caller) == 1


@pytest.mark.parametrize(
    ("callers", "jobs", "grants"), [(1, 0, 1), (4, 0, 4), (4, 3, 5), (8, 3, 10), (3, 9, 3)]
)
def test_interactive_counts_the_turns_that_batch_takes_before_it(
    callers: int, jobs: int, grants: int
) -> None:
    stage = Stage()
    stage.batch(jobs)
    last = stage.interactive(callers)[-1]

    assert stage.turns.grants_until(last) == grants


@pytest.mark.parametrize(
    ("waiting", "grants"), [("", 1), ("aa", 3), ("b", 2), ("bbbb", 2), ("bbbbcccc", 3), ("abbbb", 4)]
)
def test_a_newcomer_waits_a_turn_of_each_other_tenant_for_each_of_its_own(waiting: str, grants: int) -> None:
    """It stands in line already; counting it twice makes deadlines look out of reach that are not."""
    stage = Stage()
    for tenant in waiting:
        stage.turns.interactive.join(Ticket(since=0.0, tenant=tenant))
    newcomer = Ticket(since=0.0, tenant="a")
    stage.turns.interactive.join(newcomer)

    assert stage.turns.grants_until(newcomer) == grants
    assert stage.grants().index(newcomer) + 1 <= grants


def test_batch_counts_only_batch() -> None:
    stage = Stage()
    stage.interactive(10)
    last = stage.batch(3)[-1]

    assert stage.turns.grants_until(last) == 3


# ---- Any load ---------------------------------------------------------------------------------------------

loads = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), max_size=80
)
"""Steps of (interactive arrivals, batch arrivals, grants wanted, batch slots given back)."""


@given(
    slots=st.integers(1, 6),
    reserved=st.integers(0, 6),
    promote_after_s=st.sampled_from([0.0, 3.0, NEVER_S]),
    order=st.sampled_from(Order),
    load=loads,
)
@settings(deadline=None, max_examples=200)
def test_under_any_load_batch_gets_its_share_and_no_more(
    slots: int, reserved: int, promote_after_s: float, order: Order, load: list[tuple[int, int, int, int]]
) -> None:
    stage = Stage(slots=slots, reserved=min(reserved, slots), promote_after_s=promote_after_s, order=order)
    without_batch = 0
    promoted_last = False
    for callers, jobs, wanted, given_back in load:
        stage.now += 1.0
        stage.interactive(callers, since=stage.now)
        stage.batch(jobs, since=stage.now)
        stage.batch_in_use = max(0, stage.batch_in_use - given_back)
        for _ in range(wanted):
            may_have_batch = len(stage.turns.batch) > 0 and stage.batch_in_use < stage.bound
            callers_wait = len(stage.turns.interactive) > 0
            ticket = stage.grant(keep=True)
            if ticket is None:
                assert not callers_wait
                break
            to_batch = ticket.lane is Lane.BATCH
            without_batch = without_batch + 1 if may_have_batch and not to_batch else 0
            assert without_batch < 5
            assert not to_batch or may_have_batch
            promoted = to_batch and callers_wait and stage.now >= ticket.since + promote_after_s
            assert not (promoted and promoted_last)
            promoted_last = promoted
            assert stage.batch_in_use <= stage.bound
