"""The adaptive limit: slow up, quick down, never outside 1 … the configured slots."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.adaptive import AdaptiveLimit


def cut(limit: AdaptiveLimit, times: int) -> None:
    for instant in range(times):
        limit.pushed_back(started_at=float(instant), now=float(instant))


def test_a_limit_begins_at_the_configured_slots() -> None:
    assert AdaptiveLimit(8).slots == 8


def test_each_push_back_takes_a_quarter() -> None:
    limit = AdaptiveLimit(8)
    seen = []
    for instant in range(8):
        limit.pushed_back(started_at=float(instant), now=float(instant))
        seen.append(limit.slots)

    assert seen == [6, 4, 3, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("most", [1, 2, 8, 1000])
def test_a_limit_never_falls_below_one(most: int) -> None:
    limit = AdaptiveLimit(most)
    cut(limit, 100)

    assert limit.slots == 1


def test_calls_that_began_before_a_cut_do_not_cut_again() -> None:
    """A burst of eight throttled calls is one message, not eight: 8 → 6, not 8 → 1."""
    limit = AdaptiveLimit(8)
    for moment in range(8):
        limit.pushed_back(started_at=0.0, now=10.0 + moment)

    assert limit.slots == 6


def test_a_call_that_began_after_the_cut_cuts_again() -> None:
    limit = AdaptiveLimit(8)
    limit.pushed_back(started_at=0.0, now=10.0)
    limit.pushed_back(started_at=11.0, now=12.0)

    assert limit.slots == 4


def test_an_ignored_push_back_does_not_shield_later_calls() -> None:
    """Only a cut moves the time before which calls are judged already."""
    limit = AdaptiveLimit(8)
    limit.pushed_back(started_at=0.0, now=10.0)
    limit.pushed_back(started_at=5.0, now=100.0)
    limit.pushed_back(started_at=50.0, now=101.0)

    assert limit.slots == 4


def test_a_limit_that_nobody_reaches_does_not_grow() -> None:
    """Success with one call at a time says nothing about eight."""
    limit = AdaptiveLimit(8)
    cut(limit, 2)
    for _ in range(1000):
        limit.succeeded(in_use=limit.slots - 1)

    assert limit.slots == 4


@pytest.mark.parametrize("most", [2, 8, 100])
def test_a_limit_in_use_grows_by_about_one_slot_a_round(most: int) -> None:
    """A round is as many successes as there are slots."""
    limit = AdaptiveLimit(most)
    limit.pushed_back(started_at=0.0, now=0.0)
    before = limit.slots
    successes = 0
    while limit.slots == before:
        limit.succeeded(in_use=limit.slots)
        successes += 1

    assert limit.slots == before + 1
    assert successes <= before + 2


@pytest.mark.parametrize("most", [1, 2, 8, 100])
def test_success_brings_back_all_slots_and_no_more(most: int) -> None:
    limit = AdaptiveLimit(most)
    cut(limit, 50)
    for _ in range(most * most + most):
        limit.succeeded(in_use=limit.slots)

    assert limit.slots == most


@given(
    most=st.integers(1, 50),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.floats(0, 100)), max_size=200),
)
@settings(deadline=None, max_examples=100)
def test_a_limit_stays_between_one_and_the_configured_slots(
    most: int, steps: list[tuple[bool, int, float]]
) -> None:
    limit = AdaptiveLimit(most)
    for now, (success, in_use, age_s) in enumerate(steps):
        before = limit.slots
        if success:
            limit.succeeded(in_use=in_use)
            assert before <= limit.slots <= before + 1
        else:
            limit.pushed_back(started_at=now - age_s, now=float(now))
            assert limit.slots <= before
        assert 1 <= limit.slots <= most
