"""The breaker and the hold: what opens them, what does not, and that nobody is locked out for ever."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.core.failures import Failure, FailureKind
from headgate.core.health import Block, Breaker, Change, Health
from headgate.core.probation import Probation

TRANSIENT = Failure(kind=FailureKind.TRANSIENT)
MISCONFIGURED = Failure(kind=FailureKind.MISCONFIGURED, status=401)
REJECTED = Failure(kind=FailureKind.REJECTED, status=400)
AMBIGUOUS = Failure(kind=FailureKind.REJECTED, status=400, code="ValidationException", ambiguous=True)
# What neither of the two counts.
NEUTRAL_KINDS = [
    kind for kind in FailureKind if kind not in {FailureKind.TRANSIENT, FailureKind.MISCONFIGURED}
]
RESULTS: dict[str, Failure | None] = {
    "S": None,
    "F": TRANSIENT,
    "M": MISCONFIGURED,
    "R": REJECTED,
    "T": Failure(kind=FailureKind.THROTTLED),
    "I": Failure(kind=FailureKind.INVALID_OUTPUT),
    "B": Failure(kind=FailureKind.BROKEN),
}


def record(health: Health, result: Failure | None, *, probe: bool, now: float) -> Change | None:
    """What one result changed; only one thing can change at a time, but for a probe that ends both troubles."""
    changes = health.record(result, probe=probe, now=now)
    assert len(changes) <= 1
    return changes[0] if changes else None


def tell(health: Health, results: str, *, now: float = 0.0) -> list[Change | None]:
    """Ordinary calls that end one after the other, each letter one result."""
    return [record(health, RESULTS[letter], probe=False, now=now) for letter in results]


def probe(health: Health, result: Failure | None, *, now: float) -> Change | None:
    assert health.block(now) is None
    assert health.enter()
    return record(health, result, probe=True, now=now)


def opened(*, at: float = 0.0) -> Health:
    health = Health()
    assert tell(health, "FFFFF", now=at)[-1] is Change.OPENED
    return health


def held(*, at: float = 0.0) -> Health:
    health = Health()
    assert tell(health, "MMM", now=at)[-1] is Change.HELD
    return health


# ---- What opens the breaker ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "opens"),
    [
        ("", False),
        ("F", False),
        ("FFFF", False),
        ("FFFFF", True),
        ("FFFFS", False),
        ("FFFFSFFFF", False),
        ("FFFFSFFFFF", True),
        ("FFFFTF", True),
        ("FRFIFTFBF", True),
        ("TTTTTTTTTTTTTTTTTTTTTTTT", False),
        ("RRRRRRRRRRRRRRRRRRRRRRRR", False),
        ("IIIIIIIIIIIIIIIIIIIIIIII", False),
        ("BBBBBBBBBBBBBBBBBBBBBBBB", False),
        # Half of twenty, never two in a row.
        ("SFSFSFSFSFSFSFSFSFS", False),
        ("SFSFSFSFSFSFSFSFSFSF", True),
        # Four in five, never five in a row.
        ("SFFFFSFFFFSFFFFSFFF", False),
        ("SFFFFSFFFFSFFFFSFFFF", True),
        # Nine of twenty are too few; ten of twenty-one are too few as well.
        ("SSSFSFSFSFSFSFSFSFSFS", False),
        ("SSSFSFSFSFSFSFSFSFSFSF", False),
        # Neutral results are no samples: nineteen and five neutral ones are nineteen.
        ("SFSFSFSFSRTIBRFSFSFSFSFS", False),
    ],
)
def test_the_breaker_opens_at_five_in_a_row_or_half_of_twenty(results: str, opens: bool) -> None:
    health = Health()

    changes = tell(health, results)

    assert (Change.OPENED in changes) == opens
    assert (health.block(0.0) is not None) == opens


def test_the_breaker_opens_at_the_very_failure_that_is_one_too_many() -> None:
    assert tell(Health(), "FFFFF") == [None, None, None, None, Change.OPENED]


@pytest.mark.parametrize(("last_at", "opens"), [(0.0, True), (29.0, True), (29.99, True), (30.0, False)])
def test_results_leave_the_window_after_thirty_seconds(last_at: float, opens: bool) -> None:
    health = Health()
    tell(health, "SFFFFSFFFFSFFFFSFFF", now=0.0)

    change = record(health, TRANSIENT, probe=False, now=last_at)

    assert (change is Change.OPENED) == opens


def test_a_row_of_failures_has_no_time_limit() -> None:
    """An upstream called once a minute that always fails is down, too."""
    health = Health()

    changes = [record(health, TRANSIENT, probe=False, now=60.0 * minute) for minute in range(5)]

    assert changes[-1] is Change.OPENED


def test_success_alone_never_opens_the_breaker() -> None:
    """The twentieth result brings the share to a half, but it is a good one."""
    health = Health()

    changes = tell(health, "FSFSFSFSFSFSFSFSFSFS")

    assert changes == [None] * 20


def test_a_breaker_that_is_switched_off_never_opens() -> None:
    health = Health(breaker=False)

    assert tell(health, "F" * 100) == [None] * 100
    assert health.block(0.0) is None


@given(steps=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=150))
@settings(deadline=None, max_examples=200)
def test_the_breaker_agrees_with_a_naive_count(steps: list[tuple[int, bool]]) -> None:
    breaker = Breaker()
    seen: list[tuple[int, bool]] = []
    now = 0
    for gap_s, failed in steps:
        now += gap_s
        seen.append((now, failed))
        recent = [result for at, result in seen if now - at < 30]
        row = [result for _, result in seen[-5:]]
        must_open = failed and (row == [True] * 5 or (len(recent) >= 20 and 2 * sum(recent) >= len(recent)))
        assert breaker.record(failed=failed, now=float(now)) == must_open


# ---- An open breaker ------------------------------------------------------------------------------------


def test_an_open_breaker_blocks_for_five_seconds_and_says_so() -> None:
    health = opened(at=100.0)

    assert health.block(100.0) == Block(FailureKind.TRANSIENT, 105.0)
    assert health.block(104.99) == Block(FailureKind.TRANSIENT, 105.0)
    assert health.block(105.0) is None


def test_the_block_doubles_with_each_failed_probe_up_to_fifteen_seconds() -> None:
    health = opened()
    now = 0.0
    lengths = []
    for _ in range(5):
        block = health.block(now)
        assert block is not None
        lengths.append(block.until - now)
        now = block.until
        assert probe(health, TRANSIENT, now=now) is Change.OPENED

    assert lengths == [5.0, 10.0, 15.0, 15.0, 15.0]


def test_a_breaker_that_opens_anew_begins_with_five_seconds_again() -> None:
    health = opened()
    probe(health, TRANSIENT, now=5.0)
    assert probe(health, None, now=15.0) is Change.CLOSED

    assert tell(health, "FFFFF", now=20.0)[-1] is Change.OPENED
    assert health.block(20.0) == Block(FailureKind.TRANSIENT, 25.0)


def test_exactly_one_probe_goes() -> None:
    health = opened()

    assert health.block(5.0) is None
    assert health.enter()

    assert health.block(5.0) is not None
    assert health.block(1e9) is not None


def test_while_a_probe_is_out_the_others_are_not_told_a_time_in_the_past() -> None:
    health = opened()
    health.enter()

    assert health.block(50.0) == Block(FailureKind.TRANSIENT, 50.0)


def test_a_probe_that_succeeds_closes_the_breaker() -> None:
    health = opened()

    assert probe(health, None, now=5.0) is Change.CLOSED
    assert health.clear
    assert health.block(5.0) is None
    assert not health.enter()


def test_a_closed_breaker_has_forgotten_the_outage() -> None:
    """Otherwise the first failure after an outage would open it again."""
    health = opened()
    probe(health, None, now=5.0)

    assert tell(health, "FFFF", now=5.0) == [None] * 4


def test_an_abandoned_probe_does_not_lock_everybody_out() -> None:
    health = opened()
    health.enter()

    health.abandon_probe()

    assert health.block(5.0) is None
    assert health.enter()


@pytest.mark.parametrize("kind", NEUTRAL_KINDS)
def test_a_neutral_answer_to_the_probe_decides_nothing(kind: FailureKind) -> None:
    """The next caller probes, at once."""
    health = opened()

    assert probe(health, Failure(kind=kind), now=5.0) is None
    assert health.breaker.probation.active
    assert health.block(5.0) is None
    assert health.enter()


@pytest.mark.parametrize("letters", ["S", "F", "M", "SSSSSSSSSS", "FFFFFFFFFF", "MMMMMMMMMM"])
def test_results_of_calls_older_than_the_opening_are_ignored(letters: str) -> None:
    """A call that began before the outage says nothing about now, in either direction."""
    health = opened()

    assert tell(health, letters, now=1.0) == [None] * len(letters)
    assert health.block(1.0) == Block(FailureKind.TRANSIENT, 5.0)
    assert probe(health, None, now=5.0) is Change.CLOSED


def test_late_results_do_not_answer_for_the_probe() -> None:
    health = opened()
    health.enter()

    tell(health, "SF", now=6.0)

    assert health.block(6.0) is not None


# ---- The hold -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "holds"),
    [
        ("MM", False),
        ("MMM", True),
        ("MMSM", False),
        ("MMSMMM", True),
        ("MMRM", True),
        ("MFMTM", True),
        ("RRRRRRRR", False),
    ],
)
def test_an_upstream_is_held_after_three_misconfigured_answers_in_a_row(results: str, holds: bool) -> None:
    health = Health()

    assert (Change.HELD in tell(health, results)) == holds
    assert (health.block(0.0) is not None) == holds


def test_a_held_upstream_is_probed_every_thirty_to_three_hundred_seconds() -> None:
    health = held()
    now = 0.0
    lengths = []
    for _ in range(7):
        block = health.block(now)
        assert block is not None
        assert block.kind is FailureKind.MISCONFIGURED
        lengths.append(block.until - now)
        now = block.until
        probe(health, MISCONFIGURED, now=now)

    assert lengths == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 300.0]


def test_a_probe_that_succeeds_releases_the_upstream() -> None:
    health = held()

    assert probe(health, None, now=30.0) is Change.RELEASED
    assert health.clear
    assert tell(health, "MM", now=31.0) == [None, None]


def test_a_hold_that_an_operator_lifts_lets_calls_through_at_once() -> None:
    health = held(at=0.0)
    assert health.lift_hold()
    assert health.block(1.0) is None
    assert not health.enter(), "an ordinary call, not a probe"
    assert tell(health, "SMM", now=1.0) == [None, None, None]
    assert not health.lift_hold(), "there is none"


def test_the_first_misconfigured_answer_after_a_lift_holds_again() -> None:
    health = held(at=0.0)
    health.lift_hold()
    assert tell(health, "M", now=1.0) == [Change.HELD]


def test_lifting_a_hold_leaves_the_breaker_as_it_is() -> None:
    health = opened(at=0.0)
    assert not health.lift_hold()
    assert health.block(1.0) == Block(FailureKind.TRANSIENT, 5.0)


def test_the_operator_s_mistake_is_remembered_for_those_kept_out() -> None:
    assert held().last_mistake is MISCONFIGURED


def test_misconfigured_answers_hold_even_where_the_breaker_is_off() -> None:
    health = Health(breaker=False)

    assert tell(health, "MMM")[-1] is Change.HELD
    assert probe(health, TRANSIENT, now=30.0) is None
    assert health.block(30.0) is None
    assert health.enter()


@pytest.mark.parametrize("kind", [*NEUTRAL_KINDS, FailureKind.TRANSIENT])
def test_a_held_upstream_stays_on_probation_until_a_call_succeeds(kind: FailureKind) -> None:
    health = held()

    probe(health, Failure(kind=kind), now=30.0)

    assert health.hold.probation.active
    assert health.block(30.0) is None
    assert health.enter()


# ---- Both at once -----------------------------------------------------------------------------------------


def held_and_opened() -> Health:
    """Held for a wrong key; then its probes meet an outage as well."""
    health = held()
    changes = [probe(health, TRANSIENT, now=30.0) for _ in range(5)]
    assert changes[-1] is Change.OPENED
    return health


def test_a_misconfigured_answer_to_the_breaker_s_probe_does_not_move_the_breaker() -> None:
    """Only transient failures and successes do; and whoever was told "open" is told when it is not."""
    health = opened()

    change = probe(health, MISCONFIGURED, now=5.0)

    assert health.breaker.probation.active or change is Change.CLOSED


def test_one_failure_after_a_misconfigured_probe_is_not_five_in_a_row() -> None:
    health = opened()
    probe(health, MISCONFIGURED, now=5.0)

    assert tell(health, "F", now=6.0) == [None]


def test_one_success_ends_both_and_leaves_neither_listener_behind() -> None:
    """A dashboard that was told "held" and "open" must not show either for ever."""
    health = held_and_opened()

    assert health.enter()
    changes = health.record(None, probe=True, now=35.0)

    assert health.clear
    assert set(changes) == {Change.RELEASED, Change.CLOSED}


def test_both_together_block_until_both_may_be_probed() -> None:
    health = held_and_opened()

    assert health.block(34.9) == Block(FailureKind.TRANSIENT, 35.0)
    assert health.block(35.0) is None


# ---- Ambiguous codes --------------------------------------------------------------------------------------


def read_and_tell(health: Health, failure: Failure, *, now: float = 0.0) -> tuple[Failure, Change | None]:
    taken = health.read(failure)
    return taken, record(health, taken, probe=False, now=now)


def test_the_third_ambiguous_answer_in_a_row_is_misconfigured() -> None:
    """With a wrong model name nothing ever succeeds; a bad request is somebody's alone."""
    health = Health()

    taken = [read_and_tell(health, AMBIGUOUS) for _ in range(3)]

    assert [failure.kind for failure, _ in taken] == [
        FailureKind.REJECTED,
        FailureKind.REJECTED,
        FailureKind.MISCONFIGURED,
    ]
    assert [change for _, change in taken] == [None, None, Change.HELD]


def test_what_the_provider_said_survives_the_reading() -> None:
    health = Health()
    for _ in range(2):
        health.read(AMBIGUOUS)

    taken = health.read(AMBIGUOUS)

    assert (taken.status, taken.code, taken.message) == (400, "ValidationException", AMBIGUOUS.message)
    assert not taken.retryable


def test_after_any_success_ambiguous_codes_stay_rejected() -> None:
    health = Health()
    record(health, None, probe=False, now=0.0)

    assert [read_and_tell(health, AMBIGUOUS) for _ in range(10)] == [(AMBIGUOUS, None)] * 10


def test_a_success_between_them_starts_no_new_count() -> None:
    health = Health()
    for _ in range(2):
        read_and_tell(health, AMBIGUOUS)
    record(health, None, probe=False, now=0.0)

    assert [read_and_tell(health, AMBIGUOUS) for _ in range(10)] == [(AMBIGUOUS, None)] * 10


def test_a_plain_rejection_is_never_read_as_a_wrong_set_up() -> None:
    health = Health()

    assert [read_and_tell(health, REJECTED) for _ in range(10)] == [(REJECTED, None)] * 10


def test_an_ambiguous_answer_to_the_probe_holds_for_longer() -> None:
    health = Health()
    for _ in range(3):
        read_and_tell(health, AMBIGUOUS)
    assert health.block(0.0) == Block(FailureKind.MISCONFIGURED, 30.0)

    probe(health, health.read(AMBIGUOUS), now=30.0)

    assert health.block(30.0) == Block(FailureKind.MISCONFIGURED, 90.0)


# ---- Probation by itself ------------------------------------------------------------------------------------


def test_a_probation_that_never_started_blocks_nobody() -> None:
    probation = Probation(5.0, 15.0)

    assert not probation.active
    assert not probation.blocks(0.0)


def test_a_probation_that_ended_blocks_nobody_although_a_probe_was_out() -> None:
    probation = Probation(5.0, 15.0)
    probation.start(0.0)
    probation.send_probe()

    probation.end()

    assert not probation.blocks(0.0)
    probation.start(10.0)
    assert not probation.blocks(15.0)


# ---- Any order of events --------------------------------------------------------------------------------------


class HealthMachine(RuleBasedStateMachine):
    """Calls come, end well or badly, or never come back; time passes; the upstream is never lost."""

    def __init__(self) -> None:
        super().__init__()
        self.health = Health()
        self.now = 1000.0
        self.calls: list[bool] = []
        """For each call in flight, whether it went as the probe."""

    @rule()
    def a_call_goes_in(self) -> None:
        if self.health.block(self.now) is None:
            self.calls.append(self.health.enter())

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), result=st.sampled_from([*RESULTS.values(), AMBIGUOUS, TRANSIENT, MISCONFIGURED]))
    def a_call_ends(self, data: st.DataObject, result: Failure | None) -> None:
        was_probe = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        before = (self.health.hold.probation.until, self.health.breaker.probation.until)
        clear = self.health.clear
        taken = result if result is None else self.health.read(result)
        self.health.record(taken, probe=was_probe, now=self.now)
        if not clear and not was_probe:
            assert (self.health.hold.probation.until, self.health.breaker.probation.until) == before

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_never_comes_back(self, data: st.DataObject) -> None:
        if self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1))):
            self.health.abandon_probe()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 15.0, 31.0, 300.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def one_probe_at_most(self) -> None:
        assert sum(self.calls) <= 1

    @invariant()
    def only_a_probe_or_the_clock_keeps_callers_out(self) -> None:
        if any(self.calls):
            assert self.health.block(self.now) is not None
            return
        block = self.health.block(self.now)
        if block is None:
            return
        assert self.now < block.until <= self.now + 300
        # Both may block, one after the other; past the later of the two nothing does.
        following = self.health.block(block.until)
        assert following is None or self.health.block(following.until) is None

    @invariant()
    def clear_means_clear(self) -> None:
        on_probation = self.health.hold.probation.active or self.health.breaker.probation.active
        assert self.health.clear != on_probation


HealthMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrderOfEvents = HealthMachine.TestCase
