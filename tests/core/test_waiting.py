"""One lane's line against a model made of plain lists, under any order of joining, leaving and being served."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.core.ticket import Place, Ticket
from headgate.core.waiting import Line


def ticket(tenant: str = "a", *, since: float = 0.0) -> Ticket:
    return Ticket(since=since, tenant=tenant)


def joined(line: Line, *tenants: str) -> list[Ticket]:
    tickets = [ticket(tenant) for tenant in tenants]
    for one in tickets:
        line.join(one)
    return tickets


def serve_all(line: Line) -> list[Ticket]:
    served = []
    while (head := line.head()) is not None:
        line.take(head)
        served.append(head)
    return served


def tenants_served(line: Line) -> str:
    return "".join(one.tenant for one in serve_all(line))


# ---- Whose turn -----------------------------------------------------------------------------------------


def test_an_empty_line_has_nobody() -> None:
    line = Line()

    assert (len(line), line.head(), line.oldest(), line.everyone()) == (0, None, None, [])


def test_the_first_to_come_is_the_first_to_go() -> None:
    line = Line()
    tickets = joined(line, "a", "a", "a")

    assert serve_all(line) == tickets


def test_newest_first_turns_the_queue_around() -> None:
    line = Line(newest_first=True)
    tickets = joined(line, "a", "a", "a")

    assert serve_all(line) == tickets[::-1]


@pytest.mark.parametrize(
    ("arrivals", "served"),
    [
        ("aaab", "abaa"),
        ("aaabbb", "ababab"),
        ("aaabc", "abcaa"),
        ("abcabc", "abcabc"),
        ("aabbcc", "abcabc"),
        ("aaaaaaaaab", "abaaaaaaaa"),
    ],
)
@pytest.mark.parametrize("newest_first", [False, True])
def test_tenants_take_turns(arrivals: str, served: str, newest_first: bool) -> None:
    """A tenant with a thousand calls costs the others one turn each round, no more."""
    line = Line(newest_first=newest_first)
    joined(line, *arrivals)

    assert tenants_served(line) == served


def test_a_tenant_that_comes_after_its_turn_waits_for_the_next_round() -> None:
    line = Line()
    joined(line, "a", "b")
    first = line.head()
    assert first is not None
    line.take(first)
    joined(line, "a")

    assert tenants_served(line) == "ba"


def test_a_waiter_that_leaves_does_not_cost_its_tenant_the_turn() -> None:
    """Only being served ends a turn; giving up does not."""
    line = Line()
    first, *_ = joined(line, "a", "a", "b")

    line.leave(first)

    assert tenants_served(line) == "ab"


def test_one_who_comes_back_keeps_its_place_among_its_own_tenant_s() -> None:
    """Its age counts from its beginning: behind those who came before, ahead of those who came after."""
    line = Line()
    other, first, second, third = (
        ticket("b", since=0.0),
        *(ticket("a", since=float(since)) for since in (1, 2, 3)),
    )
    for one in (other, first, second, third):
        line.join(one)
    line.leave(second)

    line.join(second, returning=True)

    assert serve_all(line) == [other, first, second, third]


def test_one_who_comes_back_to_a_newest_first_line_is_behind_those_who_came_after_it() -> None:
    line = Line(newest_first=True)
    first, second, third = (ticket(since=float(since)) for since in (1, 2, 3))
    for one in (first, third):
        line.join(one)

    line.join(second, returning=True)

    assert serve_all(line) == [third, second, first]


# ---- The oldest -------------------------------------------------------------------------------------------


def test_the_oldest_goes_first_whenever_it_came() -> None:
    """A job's age counts from when it was due, which may be long before it came to the gate."""
    line = Line()
    young, old = ticket(since=50.0), ticket(since=10.0)
    line.join(young)
    line.join(old)

    assert line.head() is old
    assert line.oldest() is old


def test_the_oldest_of_all_need_not_be_the_next() -> None:
    """Tenants take turns."""
    line = Line()
    young, old = ticket("a", since=50.0), ticket("b", since=10.0)
    line.join(young)
    line.join(old)

    assert line.head() is young
    assert line.oldest() is old


def test_of_two_equally_old_the_first_in_line_is_the_oldest() -> None:
    line = Line()
    first, _ = joined(line, "a", "b")

    assert line.oldest() is first


def test_a_waiter_that_left_and_came_back_counts_once() -> None:
    line = Line()
    one, other = ticket(since=1.0), ticket(since=2.0)
    line.join(one)
    line.join(other)
    line.leave(one)
    line.join(one)
    line.take(one)

    assert line.oldest() is other
    assert len(line) == 1


def test_a_waiter_knows_where_it_is() -> None:
    line = Line()
    staying, leaving = joined(line, "a", "a")

    line.leave(leaving)

    assert (staying.place, leaving.place) == (Place.WAITING, Place.OUTSIDE)


def test_leaving_twice_is_a_mistake_that_shows() -> None:
    """Counting a waiter out twice would hide a full queue."""
    line = Line()
    (one, _) = joined(line, "a", "a")
    line.leave(one)

    with pytest.raises(KeyError):
        line.leave(one)
    assert len(line) == 1


# ---- Estimates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "turns"), [("a", 1), ("aaaa", 4), ("bbbba", 2), ("bbbbcccca", 3), ("abbbba", 4), ("bca", 3)]
)
def test_the_last_of_a_tenant_waits_for_its_own_and_a_turn_of_each_other(waiting: str, turns: int) -> None:
    line = Line()
    for tenant in waiting:
        line.join(Ticket(since=0.0, tenant=tenant))
    assert line.turns_until_last_of("a") == turns


def test_no_more_turns_are_needed_than_there_are_waiters() -> None:
    line = Line()
    for tenant in "aaaaaaaab":
        line.join(Ticket(since=0.0, tenant=tenant))
    assert line.turns_until_last_of("a") == 9


def test_only_those_who_wait_for_the_first_time_are_newcomers() -> None:
    line = Line()
    tickets = [Ticket(since=0.0) for _ in range(3)]
    for index, ticket in enumerate(tickets):
        line.join(ticket, returning=index == 1)
    assert line.newcomers == 2
    for ticket in tickets:
        line.leave(ticket)
    assert line.newcomers == 0


# ---- Any order of events ----------------------------------------------------------------------------------


class LineMachine(RuleBasedStateMachine):
    """The line beside a model that does everything the slow way."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line()
        self.newest_first = False
        self.rotation: list[str] = []
        self.queues: dict[str, list[Ticket]] = {}
        """Each tenant's waiters, the next to go first."""
        self.joined: list[Ticket] = []
        """All who wait, in the order they joined."""
        self.gone: list[Ticket] = []

    @initialize(newest_first=st.booleans())
    def set_up(self, newest_first: bool) -> None:
        self.newest_first = newest_first
        self.line = Line(newest_first=newest_first)

    @rule(tenant=st.sampled_from("abcd"), since=st.integers(0, 5))
    def a_newcomer_joins(self, tenant: str, since: int) -> None:
        self.join(ticket(tenant, since=float(since)), returning=False)

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), returning=st.booleans())
    def one_comes_back(self, data: st.DataObject, returning: bool) -> None:
        one = data.draw(st.sampled_from(self.gone))
        self.gone.remove(one)
        self.join(one, returning=returning)

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.joined))
        self.line.leave(one)
        self.remove(one)

    @precondition(lambda self: self.joined)
    @rule()
    def the_head_is_served(self) -> None:
        head = self.line.head()
        assert head is not None
        self.serve(head)

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def somebody_else_is_served(self, data: st.DataObject) -> None:
        """A promoted waiter need not be its tenant's next."""
        self.serve(data.draw(st.sampled_from(self.joined)))

    def join(self, one: Ticket, *, returning: bool) -> None:
        self.line.join(one, returning=returning)
        queue = self.queues.setdefault(one.tenant, [])
        if one.tenant not in self.rotation:
            self.rotation.append(one.tenant)
        # Stable: of two equally old the one that joined first goes first, or last.
        if self.newest_first:
            queue.insert(0, one)
            queue.sort(key=lambda one: -one.since)
        else:
            queue.append(one)
            queue.sort(key=lambda one: one.since)
        self.joined.append(one)

    def remove(self, one: Ticket) -> None:
        self.queues[one.tenant].remove(one)
        if not self.queues[one.tenant]:
            del self.queues[one.tenant]
            self.rotation.remove(one.tenant)
        self.joined.remove(one)
        self.gone.append(one)

    def serve(self, one: Ticket) -> None:
        self.line.take(one)
        self.remove(one)
        if one.tenant in self.rotation:
            self.rotation.remove(one.tenant)
            self.rotation.append(one.tenant)

    @invariant()
    def the_same_wait(self) -> None:
        assert len(self.line) == len(self.joined)
        assert set(self.line.everyone()) == set(self.joined)
        assert self.line.everyone() == [one for tenant in self.rotation for one in self.queues[tenant]]
        assert self.line.newcomers == sum(not one.returning for one in self.joined)
        assert all(one.place is Place.WAITING for one in self.joined)
        assert all(one.place is Place.OUTSIDE for one in self.gone)

    @invariant()
    def the_same_goes_next(self) -> None:
        assert self.line.head() is (self.queues[self.rotation[0]][0] if self.rotation else None)

    @invariant()
    def the_same_is_the_oldest(self) -> None:
        assert self.line.oldest() is min(self.joined, key=lambda one: one.since, default=None)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.line._ages) <= 2 * len(self.line) + 65
        for tenant, entries in self.line._tenants.items():
            assert len(entries) <= 2 * len(self.queues[tenant]) + 65


LineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestAnyOrderOfEvents = LineMachine.TestCase


def test_waiters_that_come_and_go_leave_nothing_behind() -> None:
    """An old waiter stays while a million callers give up: the line must not remember them."""
    line = Line()
    line.join(ticket(since=-1.0))
    for instant in range(5000):
        (one,) = joined(line, f"tenant {instant}")
        line.leave(one)
        assert len(line._ages) <= 2 * len(line) + 65

    assert len(line) == len(line._tenants) == 1


def test_waiters_of_one_tenant_that_come_and_go_leave_nothing_behind() -> None:
    line = Line()
    line.join(ticket(since=-1.0))
    for _ in range(5000):
        (one,) = joined(line, "a")
        line.leave(one)
        assert len(line._tenants["a"]) <= 2 * len(line) + 65

    assert len(serve_all(line)) == 1


def test_a_line_that_drains_after_a_rush_shrinks_with_it() -> None:
    line = Line()
    joined(line, *"abcde" * 1000)
    while (head := line.head()) is not None:
        line.take(head)
        assert len(line._ages) <= 2 * len(line) + 65

    assert not line._tenants
