"""The retry budget: what an outage may cost, and that no order of payments breaks the bucket."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.budget import BURST, SDK_SHARE, RetryBudget

SHARES = [None, 0.0, 0.1, 1.0, 5.0]


def retries_paid_for(budget: RetryBudget, *, asked: int = 10_000) -> int:
    return sum(budget.take() for _ in range(asked))


@pytest.mark.parametrize(("share", "retries"), [(None, 200), (1.0, 100), (0.1, 10), (0.001, 1), (0.0, 0)])
def test_a_full_outage_pays_for_a_known_number_of_retries(share: float | None, retries: int) -> None:
    """However many calls fail, the upstream sees this many extra ones, then only first attempts."""
    assert retries_paid_for(RetryBudget(share)) == retries


def test_the_default_is_what_the_sdk_alone_would_send() -> None:
    """Two retries per call, for as long as calls come."""
    budget = RetryBudget()
    retries_paid_for(budget)
    for _ in range(1000):
        budget.first_attempt()
        assert [budget.take() for _ in range(3)] == [True, True, False]


def test_only_a_share_that_was_set_is_a_cap() -> None:
    """Without one, calls wait longer when it is used up, but are retried."""
    assert not RetryBudget().strict
    assert RetryBudget(SDK_SHARE).strict
    assert RetryBudget(0.0).strict


@pytest.mark.parametrize(("share", "calls_per_retry"), [(0.1, 10), (0.25, 4), (0.5, 2), (1.0, 1)])
def test_every_call_pays_for_its_share_of_a_retry(share: float, calls_per_retry: int) -> None:
    budget = RetryBudget(share)
    retries_paid_for(budget)
    retries = 0
    for _ in range(100 * calls_per_retry):
        budget.first_attempt()
        retries += budget.take()

    assert retries == pytest.approx(100, abs=1)


def test_a_refused_payment_costs_nothing() -> None:
    budget = RetryBudget(0.5)
    retries_paid_for(budget)
    budget.first_attempt()
    assert retries_paid_for(budget) == 0

    budget.first_attempt()

    assert budget.take()


def test_a_retry_that_was_never_sent_costs_nothing() -> None:
    budget = RetryBudget(0.1)
    retries_paid_for(budget)

    budget.give_back()

    assert retries_paid_for(budget) == 1


@pytest.mark.parametrize("share", [0.1, 1.0, SDK_SHARE])
def test_a_full_bucket_does_not_overflow(share: float) -> None:
    """Hours of success must not save up a storm."""
    budget = RetryBudget(share)
    for _ in range(10_000):
        budget.first_attempt()
        budget.give_back()

    assert retries_paid_for(budget) == pytest.approx(share * BURST)


@given(
    share=st.sampled_from(SHARES) | st.floats(0, 100),
    steps=st.lists(st.sampled_from(["call", "retry", "give back"]), max_size=300),
)
@settings(deadline=None, max_examples=150)
def test_the_bucket_stays_between_empty_and_full(share: float | None, steps: list[str]) -> None:
    budget = RetryBudget(share)
    for step in steps:
        before = budget.left
        match step:
            case "call":
                budget.first_attempt()
                assert budget.left >= before
            case "retry":
                assert budget.take() == (before >= 1)
                assert budget.left == (before - 1 if before >= 1 else before)
            case _:
                budget.give_back()
        assert 0 <= budget.left <= budget.capacity


def extra_share(failing: float, share: float, *, calls: int = 20_000, max_attempts: int = 3) -> float:
    """The retries sent per call where this share of attempts fails."""
    chance = random.Random(7)
    budget = RetryBudget(share)
    sent = 0
    for _ in range(calls):
        budget.first_attempt()
        for _ in range(max_attempts - 1):
            if chance.random() >= failing or not budget.take():
                break
            sent += 1
    return sent / calls


@pytest.mark.parametrize("failing", [0.3, 0.5, 0.9, 1.0])
def test_a_share_bounds_the_retries_whatever_fails(failing: float) -> None:
    """A tenth of the calls, and the burst that was saved up."""
    assert extra_share(failing, 0.1) == pytest.approx(0.1, abs=0.002)


def test_few_failures_are_retried_without_limit() -> None:
    assert extra_share(0.05, 0.1) == pytest.approx(0.05 + 0.05**2, rel=0.1)
