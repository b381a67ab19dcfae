"""The simulated provider's own limits: a minute that slides, and a Retry-After that can be trusted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from providers.simulated_stage import FakeClock, complete, failure_from, provider_named

from headgate.core.failures import FailureKind
from headgate.providers.simulated.limits import MinuteLimits


def test_a_call_above_the_limit_is_throttled_and_told_when_there_is_room() -> None:
    clock = FakeClock()
    provider = provider_named("instant", clock=clock, requests_per_minute=2, failure_latency_s=0)
    complete(provider)
    clock.time += 20
    complete(provider)
    clock.time += 10
    failure = failure_from(provider)
    assert (failure.kind, failure.status, failure.retry_after_s) == (FailureKind.THROTTLED, 429, 30)
    clock.time += 30
    complete(provider)


def test_tokens_are_those_of_prompt_and_answer() -> None:
    limits = MinuteLimits(None, 100)
    assert limits.take(60, 0.0) == 0
    assert limits.take(60, 10.0) == 50
    assert limits.take(40, 10.0) == 0
    assert limits.take(60, 60.0) == 0


def test_a_call_that_is_larger_than_a_minute_s_tokens_gets_in_alone() -> None:
    limits = MinuteLimits(None, 100)
    assert limits.take(500, 0.0) == 0
    assert limits.take(1, 1.0) == 59
    assert limits.take(500, 60.0) == 0


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), max_size=60),
    st.integers(1, 8),
    st.integers(40, 120),
)
def test_no_minute_holds_more_than_its_limit_and_who_waits_as_told_gets_in(
    calls: list[tuple[float, int]], requests: int, tokens: int
) -> None:
    limits, now, let_in = MinuteLimits(requests, tokens), 0.0, list[tuple[float, int]]()
    for gap_s, size in calls:
        now += gap_s
        if wait_s := limits.take(size, now):
            now += wait_s
            assert limits.take(size, now) == 0
        let_in.append((now, size))
    for at, _ in let_in:
        window = [size for then, size in let_in if then <= at < then + 60]
        assert len(window) <= requests
        assert sum(window) <= tokens


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute"])
def test_a_limit_is_a_whole_number_above_0(name: str) -> None:
    wrong: Any
    for wrong in (0, -1, 1.5, "many"):
        with pytest.raises(ValueError, match=name):
            provider_named("instant", **{name: wrong})
