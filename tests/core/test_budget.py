"""The retry budget: what an outage may cost, and that no order of payments breaks the bucket."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.budget import CAPACITY, COST, RetryBudget
from headgate.core.failures import RETRYABLE, FailureKind

MAX_ATTEMPTS = 3


def retries_paid_for(budget: RetryBudget, kind: FailureKind, *, asked: int = 10_000) -> int:
    return sum(budget.take(kind) is not None for _ in range(asked))


@pytest.mark.parametrize(
    ("kind", "retries"),
    [(FailureKind.TRANSIENT, 35), (FailureKind.THROTTLED, 100), (FailureKind.INVALID_OUTPUT, 100)],
)
def test_a_full_outage_pays_for_a_known_number_of_retries(kind: FailureKind, retries: int) -> None:
    """However many calls fail, the upstream sees this many extra ones, then only first attempts."""
    assert retries_paid_for(RetryBudget(), kind) == retries


def test_every_kind_that_is_retried_has_its_price() -> None:
    """A kind without a price would be retried for free, without end."""
    assert set(COST) == RETRYABLE
    assert all(cost > 0 for cost in COST.values())


def test_a_refused_payment_costs_nothing() -> None:
    budget = RetryBudget(capacity=13.0)

    assert budget.take(FailureKind.TRANSIENT) is None
    assert budget.tokens == 13.0


def test_a_bucket_that_cannot_pay_for_an_outage_may_pay_for_a_throttle() -> None:
    budget = RetryBudget(capacity=13.0)

    assert budget.take(FailureKind.TRANSIENT) is None
    assert budget.take(FailureKind.THROTTLED) == 5.0


def test_the_last_tokens_can_be_spent() -> None:
    budget = RetryBudget(capacity=14.0)

    assert budget.take(FailureKind.TRANSIENT) == 14.0
    assert budget.tokens == 0.0


@pytest.mark.parametrize("kind", sorted(RETRYABLE))
def test_a_retry_that_succeeds_is_refunded_whole(kind: FailureKind) -> None:
    budget = RetryBudget()
    cost = budget.take(kind)
    assert cost is not None

    budget.give_back(cost)

    assert budget.tokens == CAPACITY


def test_a_success_at_the_first_try_earns_one_token() -> None:
    budget = RetryBudget()
    retries_paid_for(budget, FailureKind.TRANSIENT)
    assert budget.tokens == 10.0

    for _ in range(4):
        budget.first_try_succeeded()

    assert budget.tokens == 14.0
    assert budget.take(FailureKind.TRANSIENT) == 14.0


def test_a_full_bucket_does_not_overflow() -> None:
    """Hours of success must not save up a storm."""
    budget = RetryBudget()

    for _ in range(1000):
        budget.first_try_succeeded()
    budget.give_back(14.0)

    assert retries_paid_for(budget, FailureKind.TRANSIENT) == 35


@given(
    capacity=st.floats(0, 1000),
    steps=st.lists(
        st.sampled_from(["first try", "refund", FailureKind.TRANSIENT, FailureKind.THROTTLED]), max_size=200
    ),
)
@settings(deadline=None, max_examples=100)
def test_the_bucket_stays_between_empty_and_full(capacity: float, steps: list[str]) -> None:
    budget = RetryBudget(capacity)
    paid: list[float] = []
    for step in steps:
        if step == "first try":
            budget.first_try_succeeded()
        elif step == "refund":
            budget.give_back(paid.pop() if paid else 0.0)
        elif (cost := budget.take(FailureKind(step))) is not None:
            paid.append(cost)
        assert 0 <= budget.tokens <= capacity


def test_an_infinite_bucket_always_pays() -> None:
    budget = RetryBudget(math.inf)

    assert retries_paid_for(budget, FailureKind.TRANSIENT) == 10_000
    budget.give_back(14.0)
    budget.first_try_succeeded()
    assert budget.tokens == math.inf


def test_an_empty_bucket_never_pays() -> None:
    budget = RetryBudget(0.0)
    budget.first_try_succeeded()

    assert retries_paid_for(budget, FailureKind.THROTTLED) == 0


def refused_share(failing: float, *, calls: int = 20_000) -> float:
    """Of the retries that calls ask for at this failure rate, the share that the bucket cannot pay."""
    chance = random.Random(7)
    budget = RetryBudget()
    asked = refused = 0
    for _ in range(calls):
        paid = 0.0
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if chance.random() >= failing:
                if attempt == 1:
                    budget.first_try_succeeded()
                else:
                    budget.give_back(paid)
                break
            if attempt == MAX_ATTEMPTS:
                break
            asked += 1
            cost = budget.take(FailureKind.TRANSIENT)
            if cost is None:
                refused += 1
                break
            paid = cost
    return refused / asked


def test_a_fifth_of_failures_is_retried_without_limit() -> None:
    assert refused_share(0.18) == 0.0


def test_extra_load_falls_as_the_upstream_gets_worse() -> None:
    """Retries help most where failures are few, and hurt most where they are many."""
    shares = [refused_share(failing) for failing in (0.3, 0.5, 0.7, 0.9)]

    assert shares == sorted(shares)
    assert shares[0] > 0
    assert shares[-1] > 0.9
