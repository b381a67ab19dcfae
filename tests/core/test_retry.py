"""Whether and when a failed attempt is repeated: the table of waits, and every policy hypothesis can think of."""

import dataclasses
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.failures import Failure, FailureKind
from headgate.core.problems import InvalidSettings
from headgate.core.retry import GiveUp, Jitter, RetryPolicy, Wait, WaitSeries

TRANSIENT = Failure(kind=FailureKind.TRANSIENT)
FIELDS = ("max_attempts", "first_wait_s", "factor", "longest_wait_s", "jitter_share", "jitter_s")
RETRYABLE = [FailureKind.TRANSIENT, FailureKind.THROTTLED, FailureKind.INVALID_OUTPUT]

seconds = st.floats(0, allow_nan=False, allow_infinity=False)
chances = st.floats(0, 1, exclude_max=True)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 100),
    first_wait_s=seconds | st.integers(0, 100),
    factor=st.floats(1, allow_nan=False, allow_infinity=False) | st.integers(1, 100),
    longest_wait_s=seconds | st.integers(0, 100),
    jitter=st.sampled_from(Jitter),
    jitter_share=seconds,
    jitter_s=seconds,
)
any_policy = settings(deadline=None, max_examples=200)


def without_jitter(policy: RetryPolicy) -> RetryPolicy:
    return dataclasses.replace(policy, jitter=Jitter.NONE)


# ---- How long ---------------------------------------------------------------------------------------


@given(policy=policies, attempt=st.integers(1, 10_000), chance=chances)
@any_policy
def test_a_drawn_wait_is_never_negative_and_never_above_the_longest(
    policy: RetryPolicy, attempt: int, chance: float
) -> None:
    """A cap applied before the jitter once turned 20 s into 30 s; a large power must not overflow either."""
    assert 0 <= policy.backoff_s(attempt, chance) <= policy.longest_wait_s


@pytest.mark.parametrize(
    ("preset", "waits"),
    [
        (RetryPolicy.bedrock, [2, 4, 8, 16, 20]),
        (RetryPolicy.web, [1, 2, 4, 8, 16]),
        (RetryPolicy.agents, [1, 2, 4, 8, 16]),
    ],
)
def test_a_preset_waits_its_documented_series(preset: Callable[[], RetryPolicy], waits: list[float]) -> None:
    policy = without_jitter(preset())

    assert [policy.backoff_s(attempt, 0.7) for attempt in range(1, 6)] == waits


@pytest.mark.parametrize(
    ("preset", "shortest", "longest"),
    [
        (RetryPolicy.bedrock, [2, 4, 8, 16, 20], [3, 6, 12, 20, 20]),
        (RetryPolicy.web, [1, 2, 4], [1.1, 2.2, 4.4]),
        (RetryPolicy.agents, [0.5, 1.5, 3.5], [1.5, 2.5, 4.5]),
    ],
)
def test_a_preset_spreads_its_waits_as_documented(
    preset: Callable[[], RetryPolicy], shortest: list[float], longest: list[float]
) -> None:
    policy = preset()
    attempts = range(1, len(shortest) + 1)

    assert [policy.backoff_s(attempt, 0.0) for attempt in attempts] == pytest.approx(shortest)
    assert [policy.backoff_s(attempt, 1.0) for attempt in attempts] == pytest.approx(longest)


@pytest.mark.parametrize(
    ("jitter", "at_0", "at_half", "at_1"),
    [
        (Jitter.NONE, 8.0, 8.0, 8.0),
        (Jitter.FULL, 0.0, 4.0, 8.0),
        (Jitter.EQUAL, 4.0, 6.0, 8.0),
        (Jitter.ADDITIVE, 8.0, 9.0, 10.0),
        (Jitter.SYMMETRIC, 5.0, 8.0, 11.0),
    ],
)
def test_each_jitter_spreads_a_wait_between_its_bounds(
    jitter: Jitter, at_0: float, at_half: float, at_1: float
) -> None:
    policy = RetryPolicy(first_wait_s=8.0, jitter=jitter, jitter_share=0.25, jitter_s=3.0)

    assert [policy.backoff_s(1, chance) for chance in (0.0, 0.5, 1.0)] == [at_0, at_half, at_1]


def test_symmetric_jitter_never_waits_less_than_nothing() -> None:
    policy = RetryPolicy(first_wait_s=1.0, jitter=Jitter.SYMMETRIC, jitter_s=5.0)

    assert policy.backoff_s(1, 0.0) == 0.0


@pytest.mark.parametrize("jitter", [Jitter.ADDITIVE, Jitter.SYMMETRIC])
def test_the_longest_wait_holds_after_the_jitter(jitter: Jitter) -> None:
    policy = RetryPolicy(first_wait_s=20.0, longest_wait_s=20.0, jitter=jitter)

    assert policy.backoff_s(1, 0.99) == 20.0


@pytest.mark.parametrize(("factor", "attempt"), [(2.0, 99), (1e6, 60), (1e300, 3)])
def test_a_policy_without_waits_never_waits(factor: float, attempt: int) -> None:
    """Nothing times anything is nothing, also where the power is too large for a float."""
    policy = RetryPolicy(first_wait_s=0.0, factor=factor, max_attempts=100, jitter=Jitter.NONE)

    assert policy.backoff_s(attempt, 0.5) == 0.0


def test_a_factor_of_one_waits_the_same_each_time() -> None:
    policy = RetryPolicy(first_wait_s=3.0, factor=1.0, jitter=Jitter.NONE)

    assert {policy.backoff_s(attempt, 0.5) for attempt in range(1, 100)} == {3.0}


@given(policy=policies, attempt=st.integers(1, 10_000), chance=chances, asked_s=st.floats(0, 1e6))
@any_policy
def test_what_the_provider_asks_for_is_a_floor_and_beats_the_cap(
    policy: RetryPolicy, attempt: int, chance: float, asked_s: float
) -> None:
    failure = Failure(kind=FailureKind.THROTTLED, retry_after_s=asked_s)

    wait_s = policy.wait_after(failure, attempt=attempt, chance=chance)

    assert wait_s >= asked_s
    assert wait_s == max(asked_s, policy.backoff_s(attempt, chance))


@pytest.mark.parametrize(
    ("asked_s", "wait_s"), [(None, 1.0), (0.0, 1.0), (0.2, 1.0), (1.5, 1.5), (20.0, 20.0), (600.0, 600.0)]
)
def test_a_provider_s_wait_only_lengthens_ours(asked_s: float | None, wait_s: float) -> None:
    policy = RetryPolicy(jitter=Jitter.NONE, first_wait_s=1.0, longest_wait_s=20.0)
    failure = Failure(kind=FailureKind.TRANSIENT, retry_after_s=asked_s)

    assert policy.decide(failure, attempt=1, remaining_s=1000, chance=0.5) == Wait(wait_s)


def test_bad_output_is_regenerated_at_once() -> None:
    """Waiting mends a tired provider, not a bad answer."""
    failure = Failure(kind=FailureKind.INVALID_OUTPUT)

    assert RetryPolicy.bedrock().decide(failure, attempt=4, remaining_s=1, chance=0.9) == Wait(0.0)


# ---- Whether ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind not in RETRYABLE])
def test_a_failure_that_repeating_cannot_mend_is_not_repeated(kind: FailureKind) -> None:
    """Not even when the provider names a time to come back."""
    failure = Failure(kind=kind, retry_after_s=1.0)

    decision = RetryPolicy().decide(failure, attempt=1, remaining_s=60, chance=0.5)

    assert isinstance(decision, GiveUp)
    assert not decision.expired
    assert kind in decision.reason


@pytest.mark.parametrize("kind", RETRYABLE)
@pytest.mark.parametrize(
    ("policy", "calls"),
    [
        (RetryPolicy(max_attempts=1), 1),
        (RetryPolicy(max_attempts=2), 2),
        (RetryPolicy.web(), 3),
        (RetryPolicy.agents(), 4),
        (RetryPolicy.bedrock(), 5),
        (RetryPolicy(max_attempts=100), 100),
    ],
)
def test_max_attempts_counts_all_calls(policy: RetryPolicy, calls: int, kind: FailureKind) -> None:
    """An SDK's retries times our own once made 25 calls of five."""
    made = 1
    while isinstance(policy.decide(Failure(kind=kind), attempt=made, remaining_s=math.inf, chance=0.5), Wait):
        made += 1

    assert made == calls


@given(policy=policies, attempt=st.integers(1, 99), chance=chances, remaining_s=st.floats(-10, 1e4))
@any_policy
def test_no_wait_reaches_the_deadline(
    policy: RetryPolicy, attempt: int, chance: float, remaining_s: float
) -> None:
    decision = policy.decide(TRANSIENT, attempt=attempt, remaining_s=remaining_s, chance=chance)

    if isinstance(decision, Wait):
        assert 0 <= decision.seconds < remaining_s
        assert attempt < policy.max_attempts
    else:
        assert decision.expired == (attempt < policy.max_attempts)


@pytest.mark.parametrize(
    ("remaining_s", "expired"), [(-1.0, True), (0.0, True), (3.99, True), (4.0, True), (4.01, False)]
)
def test_a_wait_that_ends_past_the_deadline_is_given_up_at_once(remaining_s: float, expired: bool) -> None:
    """Sleeping until the deadline only to fail there would keep the caller for nothing."""
    policy = RetryPolicy(first_wait_s=4.0, jitter=Jitter.NONE)

    decision = policy.decide(TRANSIENT, attempt=1, remaining_s=remaining_s, chance=0.5)

    assert isinstance(decision, GiveUp) == expired
    assert not isinstance(decision, GiveUp) or decision.expired


def test_a_provider_s_wait_past_the_deadline_is_given_up_at_once() -> None:
    failure = Failure(kind=FailureKind.THROTTLED, retry_after_s=60.0)

    decision = RetryPolicy().decide(failure, attempt=1, remaining_s=30, chance=0.5)

    assert decision == GiveUp("the next attempt would start past the deadline", expired=True)


@pytest.mark.parametrize("remaining_s", [0.0, -5.0])
def test_bad_output_is_not_regenerated_when_no_time_is_left(remaining_s: float) -> None:
    failure = Failure(kind=FailureKind.INVALID_OUTPUT)

    decision = RetryPolicy().decide(failure, attempt=1, remaining_s=remaining_s, chance=0.5)

    assert isinstance(decision, GiveUp)
    assert decision.expired


def test_the_last_attempt_is_not_called_expired_when_time_is_short_too() -> None:
    """The caller learns that all attempts failed, not that more time would have helped."""
    decision = RetryPolicy(max_attempts=3).decide(TRANSIENT, attempt=3, remaining_s=0, chance=0.5)

    assert decision == GiveUp("3 of 3 attempts failed", expired=False)


def test_the_same_chance_gives_the_same_wait() -> None:
    """What is logged is what is slept: the wait is drawn by the caller, once."""
    policy = RetryPolicy.bedrock()
    decisions = {policy.decide(TRANSIENT, attempt=2, remaining_s=60, chance=0.25) for _ in range(10)}

    assert decisions == {Wait(4.5)}


# ---- Bad policies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1, "3", True])
@pytest.mark.parametrize("field", FIELDS)
def test_a_number_that_makes_no_sense_is_refused_by_name(field: str, bad: object) -> None:
    """A NaN compares false with everything, so an unchecked one would pass every later test."""
    with pytest.raises(InvalidSettings) as refused:
        RetryPolicy(**{field: bad})  # type: ignore[arg-type]

    assert [problem.path for problem in refused.value.problems] == [field]


@pytest.mark.parametrize(
    ("field", "bad"), [("max_attempts", 0), ("max_attempts", 101), ("max_attempts", 2.0), ("factor", 0.99)]
)
def test_a_number_out_of_its_range_is_refused(field: str, bad: float) -> None:
    with pytest.raises(InvalidSettings, match=field):
        RetryPolicy(**{field: bad})  # type: ignore[arg-type]


def test_all_mistakes_of_a_policy_are_told_at_once() -> None:
    with pytest.raises(InvalidSettings) as refused:
        RetryPolicy(
            max_attempts=0,
            first_wait_s=-1,
            factor=math.nan,
            longest_wait_s=math.inf,
            jitter_share=-0.1,
            jitter_s=-0.1,
        )

    assert tuple(problem.path for problem in refused.value.problems) == FIELDS


def test_a_jitter_that_does_not_exist_is_refused_when_the_policy_is_made() -> None:
    """Found only at the first failure, it would break the retry instead of the start."""
    with pytest.raises(InvalidSettings, match="jitter"):
        RetryPolicy(jitter="ful")  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["first_wait_s", "longest_wait_s", "jitter_share", "jitter_s"])
def test_zero_is_a_fine_wait(field: str) -> None:
    policy = RetryPolicy(**{field: 0})  # type: ignore[arg-type]

    assert policy.backoff_s(1, 0.5) >= 0


def test_the_defaults_are_the_documented_ones() -> None:
    policy = RetryPolicy()

    assert (policy.max_attempts, policy.first_wait_s, policy.factor) == (3, 0.5, 2.0)
    assert (policy.longest_wait_s, policy.jitter, policy.jitter_share) == (20.0, Jitter.FULL, 0.5)
    assert not policy.count_throttles


@pytest.mark.parametrize("preset", [RetryPolicy.bedrock, RetryPolicy.web, RetryPolicy.agents])
def test_the_presets_count_throttles(preset: Callable[[], RetryPolicy]) -> None:
    """Their number of attempts is what those clients make against 429s."""
    assert preset().count_throttles


def test_waits_that_are_listed_are_kept_one_by_one() -> None:
    policy = WaitSeries(waits_s=(5.0, 300.0))

    assert policy.max_attempts == 3
    assert [policy.backoff_s(attempt, 0.0) for attempt in (1, 2)] == [5.0, 300.0]
    assert policy.backoff_s(2, 1.0) == pytest.approx(330.0), "a tenth more at most"
    assert policy.backoff_s(7, 0.0) == 300.0, "somebody allowed more attempts than there are waits"


def test_a_listed_wait_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"waits_s\[1\]"):
        WaitSeries(waits_s=(5.0, -1.0))
