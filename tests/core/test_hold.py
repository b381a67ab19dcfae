"""The hold of a misconfigured upstream: what begins it, what ends it, whom it applies to, and that it ends."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.core.failures import Failure, FailureKind
from headgate.core.hold import HELD_S, MAX_TENANTS, Holds

CHAT, EMBEDDINGS = "chat/completions", "embeddings"

MISCONFIGURED = Failure(kind=FailureKind.MISCONFIGURED, status=401)
REJECTED = Failure(kind=FailureKind.REJECTED, status=400)
AMBIGUOUS = Failure(kind=FailureKind.REJECTED, status=400, code="ValidationException", ambiguous=True)
OTHER_KINDS = [kind for kind in FailureKind if kind is not FailureKind.MISCONFIGURED]
RESULTS: dict[str, Failure | None] = {
    "S": None,
    "M": MISCONFIGURED,
    "R": REJECTED,
    "F": Failure(kind=FailureKind.TRANSIENT),
    "T": Failure(kind=FailureKind.THROTTLED),
}


class Hold:
    """What one tenant's calls to one endpoint meet, while no other tenant calls."""

    def __init__(self, tenant: str = "a", endpoint: str = CHAT, holds: Holds | None = None) -> None:
        self.holds = Holds() if holds is None else holds
        self.whose = endpoint, tenant

    def beside(self, tenant: str, endpoint: str = CHAT) -> "Hold":
        """Another tenant, or another endpoint, of the same upstream."""
        return Hold(tenant, endpoint, self.holds)

    @property
    def until(self) -> float | None:
        hold = self.holds.held({self.whose[1]})
        return None if hold is None else hold.until

    def blocks(self, now: float) -> bool:
        return self.holds.blocks(*self.whose, now) is not None

    def come(self, now: float) -> bool:
        """A call of this tenant comes: whether it is kept out."""
        return self.holds.kept_out(*self.whose, now) is not None

    def enter(self) -> bool:
        return self.holds.enter(*self.whose)

    def put_probe_down(self) -> None:
        self.holds.put_probe_down(*self.whose)

    def read(self, failure: Failure) -> Failure:
        return self.holds.read(failure, *self.whose)

    def lift(self) -> bool:
        return self.holds.lift()

    def record(self, failure: Failure | None, *, probe: bool, now: float) -> bool:
        changed, _ = self.holds.record(failure, *self.whose, probe=probe, now=now)
        return bool(changed)


def record(hold: Hold, results: str, *, now: float = 0.0) -> list[bool]:
    """Ordinary calls that end one after the other, each letter one result: which of them changed the hold?"""
    return [hold.record(RESULTS[letter], probe=False, now=now) for letter in results]


def probe(hold: Hold, result: Failure | None, *, now: float) -> bool:
    assert not hold.blocks(now)
    assert hold.enter()
    return hold.record(result, probe=True, now=now)


def held(*, at: float = 0.0) -> Hold:
    hold = Hold()
    assert record(hold, "MMM", now=at)[-1]
    return hold


# ---- What begins it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "holds"),
    [
        ("", False),
        ("MM", False),
        ("MMM", True),
        ("MMSM", False),
        ("MMSMMM", True),
        ("MMRM", True),
        ("MFMTM", True),
        ("RRRRRRRR", False),
        ("FFFFFFFF", False),
        ("TTTTTTTT", False),
    ],
)
def test_an_upstream_is_held_after_three_misconfigured_answers_in_a_row(results: str, holds: bool) -> None:
    hold = Hold()

    assert any(record(hold, results)) == holds
    assert hold.blocks(0.0) == holds


def test_an_upstream_that_is_not_held_blocks_nobody_and_wants_no_probe() -> None:
    hold = Hold()

    assert not hold.blocks(0.0)
    assert not hold.enter()


def test_the_mistake_is_remembered_for_those_kept_out() -> None:
    assert held().holds.last_mistake is MISCONFIGURED


# ---- Held -----------------------------------------------------------------------------------------------


def test_a_held_upstream_is_probed_every_thirty_to_three_hundred_seconds() -> None:
    hold = held()
    now = 0.0
    lengths = []
    for _ in range(7):
        assert hold.until is not None
        assert hold.blocks(hold.until - 0.01)
        lengths.append(hold.until - now)
        now = hold.until
        probe(hold, MISCONFIGURED, now=now)

    assert lengths == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 300.0]


def test_exactly_one_probe_goes() -> None:
    hold = held()

    assert hold.enter()

    assert hold.blocks(30.0)
    assert hold.blocks(1e9)


def test_a_probe_that_succeeds_releases_the_upstream() -> None:
    hold = held()

    assert probe(hold, None, now=30.0)
    assert not hold.blocks(30.0)
    assert record(hold, "MM", now=31.0) == [False, False]


def test_a_hold_that_begins_anew_begins_with_thirty_seconds_again() -> None:
    hold = held()
    probe(hold, MISCONFIGURED, now=30.0)
    probe(hold, None, now=90.0)

    assert record(hold, "MMM", now=100.0)[-1]
    assert hold.until == 130.0


def test_an_abandoned_probe_does_not_lock_everybody_out() -> None:
    hold = held()
    hold.enter()

    hold.put_probe_down()

    assert not hold.blocks(30.0)
    assert hold.enter()


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_an_answer_of_another_kind_does_not_end_a_hold_nor_lengthen_it(kind: FailureKind) -> None:
    """Whether the set-up is right, nobody has seen: the next caller probes, at once."""
    hold = held()

    assert not probe(hold, Failure(kind=kind), now=30.0)
    assert hold.until == 30.0
    assert not hold.blocks(30.0)
    assert hold.enter()


@pytest.mark.parametrize("letters", ["S", "M", "F", "SSSSSSSSSS", "MMMMMMMMMM"])
def test_results_of_calls_older_than_the_hold_are_ignored(letters: str) -> None:
    hold = held()

    assert not any(record(hold, letters, now=1.0))
    assert hold.until == 30.0


def test_late_results_do_not_answer_for_the_probe() -> None:
    hold = held()
    hold.enter()

    record(hold, "SMF", now=31.0)

    assert hold.blocks(31.0)


def test_a_hold_that_an_operator_lifts_lets_calls_through_at_once() -> None:
    hold = held()
    assert hold.lift()
    assert not hold.blocks(1.0)
    assert not hold.enter(), "an ordinary call, not a probe"
    assert not any(record(hold, "SMM", now=1.0))
    assert not hold.lift(), "there is none"


def test_the_first_misconfigured_answer_after_a_lift_holds_again() -> None:
    hold = held()
    hold.lift()

    assert record(hold, "M", now=1.0) == [True]
    assert hold.until == 31.0


def test_a_lift_while_the_probe_is_out_blocks_nobody() -> None:
    hold = held()
    hold.enter()

    assert hold.lift()

    assert not hold.blocks(30.0)


# ---- Ambiguous codes --------------------------------------------------------------------------------------


def read_and_record(hold: Hold, failure: Failure, *, now: float = 0.0) -> tuple[Failure, bool]:
    taken = hold.read(failure)
    return taken, hold.record(taken, probe=False, now=now)


def test_the_third_ambiguous_answer_in_a_row_is_misconfigured() -> None:
    """With a wrong model name nothing ever succeeds; a bad request is one caller's alone."""
    hold = Hold()

    taken = [read_and_record(hold, AMBIGUOUS) for _ in range(3)]

    assert [failure.kind for failure, _ in taken] == [
        FailureKind.REJECTED,
        FailureKind.REJECTED,
        FailureKind.MISCONFIGURED,
    ]
    assert [changed for _, changed in taken] == [False, False, True]


def test_what_the_provider_said_survives_the_reading() -> None:
    hold = Hold()
    for _ in range(2):
        hold.read(AMBIGUOUS)

    taken = hold.read(AMBIGUOUS)

    assert (taken.status, taken.code, taken.message) == (400, "ValidationException", AMBIGUOUS.message)
    assert not taken.retryable


def test_after_any_success_ambiguous_codes_stay_rejected() -> None:
    hold = Hold()
    record(hold, "S")

    assert [read_and_record(hold, AMBIGUOUS) for _ in range(10)] == [(AMBIGUOUS, False)] * 10


def test_a_success_between_them_starts_no_new_count() -> None:
    hold = Hold()
    for _ in range(2):
        read_and_record(hold, AMBIGUOUS)
    record(hold, "S")

    assert [read_and_record(hold, AMBIGUOUS) for _ in range(10)] == [(AMBIGUOUS, False)] * 10


def test_a_plain_rejection_between_them_starts_a_new_count() -> None:
    hold = Hold()
    for failure in (AMBIGUOUS, AMBIGUOUS, REJECTED, AMBIGUOUS, AMBIGUOUS):
        assert read_and_record(hold, failure) == (failure, False)


def test_a_plain_rejection_is_never_read_as_a_wrong_set_up() -> None:
    hold = Hold()

    assert [read_and_record(hold, REJECTED) for _ in range(10)] == [(REJECTED, False)] * 10


def test_an_ambiguous_answer_to_the_probe_holds_for_longer() -> None:
    hold = Hold()
    for _ in range(3):
        read_and_record(hold, AMBIGUOUS)
    assert hold.until == 30.0

    probe(hold, hold.read(AMBIGUOUS), now=30.0)

    assert hold.until == 90.0


# ---- Tenants and endpoints --------------------------------------------------------------------------------


def test_one_tenants_mistakes_hold_its_own_calls_and_no_others() -> None:
    hold = held()

    assert hold.blocks(1.0)
    assert not hold.beside("b").blocks(1.0)
    assert not hold.beside("b").enter(), "an ordinary call, not a probe"


def test_a_hold_of_one_endpoint_is_none_of_another() -> None:
    assert not held().beside("a", EMBEDDINGS).blocks(1.0)


@pytest.mark.parametrize(
    ("answers", "holds"),
    [
        ([("a", "MMMMMMMM")], False),
        ([("a", "MM"), ("b", "MM")], True),
        ([("a", "MMMMMMMM"), ("b", "M")], False),
        ([("a", "MMMMMMMM"), ("b", "MM")], True),
        ([("a", "MM"), ("b", "S"), ("b", "MM")], False),
        ([("a", "MM"), ("b", "FT"), ("b", "MM")], True),
        ([("a", "MM"), ("b", "M"), ("c", "M")], True),
        ([("a", "M"), ("b", "M"), ("c", "M")], False),
    ],
)
def test_it_takes_two_tenants_to_hold_an_endpoint_for_all(
    answers: list[tuple[str, str]], holds: bool
) -> None:
    hold = Hold()
    for tenant, letters in answers:
        record(hold.beside(tenant), letters)

    assert hold.beside("nobody yet").blocks(1.0) == holds


def held_for_all() -> Hold:
    hold = Hold()
    record(hold, "MM")
    record(hold.beside("b"), "MM")
    return hold


def test_our_own_check_that_fails_holds_for_all() -> None:
    holds = held().holds

    assert holds.checked(MISCONFIGURED, CHAT, "a", 1.0)
    assert not holds.checked(MISCONFIGURED, CHAT, "a", 1.0), "it is held already"
    assert holds.blocks(CHAT, "b", 1.0) is not None
    assert holds.blocks(EMBEDDINGS, "b", 1.0) is None


def test_our_own_check_proves_nothing_where_another_tenant_was_answered_meanwhile() -> None:
    """A key may call a model that it may not list, and an alias stands in no list."""
    hold = Hold()
    record(hold, "M")
    record(hold.beside("b"), "S", now=1.0)
    record(hold, "MM", now=2.0)

    assert not hold.holds.checked(MISCONFIGURED, CHAT, "a", 3.0)
    assert not hold.beside("b").blocks(3.0)


def test_a_probe_of_the_tenant_that_caused_it_does_not_make_a_hold_longer_for_others() -> None:
    hold = held()
    hold.holds.checked(MISCONFIGURED, CHAT, "a", 0.0)
    other = hold.beside("b")
    assert hold.enter(), "it was on its way when the other one came"
    other.come(1.0)
    hold.record(MISCONFIGURED, probe=True, now=31.0)

    assert not other.blocks(31.0)
    assert hold.blocks(31.0)


def test_an_answer_to_a_call_that_is_no_probe_ends_the_hold_for_all() -> None:
    hold = held_for_all()
    other = hold.beside("c")
    assert other.blocks(1.0)

    assert record(other, "S", now=2.0) == [True]
    assert not other.blocks(2.0)


def test_the_probe_is_none_of_a_tenant_that_caused_the_hold_while_another_calls() -> None:
    hold = held_for_all()
    other = hold.beside("c")
    assert other.come(1.0)

    assert hold.blocks(31.0), "its calls may be what is wrong"
    assert not other.blocks(31.0)
    assert other.enter()


def test_a_tenant_that_caused_a_hold_probes_if_no_other_calls() -> None:
    hold = held_for_all()

    assert not hold.blocks(31.0)
    hold.beside("c").blocks(29.0)
    assert not hold.blocks(31.0), "a question is no call"
    hold.beside("c").come(29.0)
    assert hold.blocks(31.0)
    assert not hold.blocks(61.0), "the other one did not come back"


def test_an_answer_to_another_tenant_ends_the_hold_for_all_but_not_the_own_hold() -> None:
    hold = Hold()
    record(hold, "MMM")
    record(hold.beside("b"), "MM")
    other = hold.beside("c")
    assert other.blocks(1.0)
    assert other.enter()

    assert other.record(None, probe=True, now=31.0)
    assert not other.blocks(31.0)
    assert hold.blocks(29.0)


def test_the_state_of_tenants_is_bounded() -> None:
    holds = Holds()
    for number in range(3 * MAX_TENANTS):
        record(Hold(f"tenant {number}", holds=holds), "M")

    assert len(holds._holds) <= MAX_TENANTS


# ---- Any order of events --------------------------------------------------------------------------------------


class HoldMachine(RuleBasedStateMachine):
    """Calls come, end well or badly, or never come back; time passes; the upstream is never lost."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = Hold()
        self.now = 1000.0
        self.calls: list[bool] = []
        """For each call in flight, whether it went as the probe."""

    @rule()
    def a_call_goes_in(self) -> None:
        if not self.hold.blocks(self.now):
            self.calls.append(self.hold.enter())

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), result=st.sampled_from([*RESULTS.values(), AMBIGUOUS, MISCONFIGURED]))
    def a_call_ends(self, data: st.DataObject, result: Failure | None) -> None:
        was_probe = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        before = self.hold.until
        taken = result if result is None else self.hold.read(result)
        changed = self.hold.record(taken, probe=was_probe, now=self.now)
        assert changed == ((before is None) != (self.hold.until is None))
        if before is not None and not was_probe:
            assert self.hold.until == before

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_never_comes_back(self, data: st.DataObject) -> None:
        if self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1))):
            self.hold.put_probe_down()

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0, 31.0, 300.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def one_probe_at_most(self) -> None:
        assert sum(self.calls) <= 1

    @invariant()
    def only_a_probe_or_the_clock_keeps_callers_out(self) -> None:
        until = self.hold.until
        if until is None:
            assert not self.hold.blocks(self.now)
            return
        assert until <= self.now + HELD_S[1]
        assert self.hold.blocks(max(self.now, until)) == any(self.calls)


HoldMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrderOfEvents = HoldMachine.TestCase
