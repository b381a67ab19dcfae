"""The simulated provider's own limits: spans of time, calls in flight, and a Retry-After that can be trusted."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from providers.simulated_stage import FakeClock, ask, failure_from, provider_named, send

from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.providers.simulated import SimulatedOptions, SimulatedProvider
from headgate.providers.simulated.limits import MINUTE_S, Sliding, Windows


def test_a_call_above_the_limit_is_throttled_and_told_when_there_is_room() -> None:
    clock = FakeClock()
    provider = provider_named("instant", clock=clock, requests_per_minute=2, failure_latency_s=0)
    send(provider)
    clock.time += 20
    send(provider)
    clock.time += 10
    failure = failure_from(provider)
    assert (failure.kind, failure.status, failure.retry_after_s) == (FailureKind.THROTTLED, 429, 30)
    clock.time += 30
    send(provider)


def _take(limit: Sliding | Windows, tokens: int, now: float) -> float:
    """As a provider does: let in what there is room for; else the seconds to wait."""
    if not (wait_s := limit.wait_s(tokens, now)):
        limit.take(tokens, now)
    return wait_s


def test_tokens_are_those_of_prompt_and_answer() -> None:
    limits = Sliding(MINUTE_S, None, 100)
    assert _take(limits, 60, 0.0) == 0
    assert _take(limits, 60, 10.0) == 50
    assert _take(limits, 40, 10.0) == 0
    assert _take(limits, 60, 60.0) == 0


def test_a_call_that_is_larger_than_a_minute_s_tokens_gets_in_alone() -> None:
    limits = Sliding(MINUTE_S, None, 100)
    assert _take(limits, 500, 0.0) == 0
    assert _take(limits, 1, 1.0) == 59
    assert _take(limits, 500, 60.0) == 0


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), max_size=60),
    st.integers(1, 8),
    st.integers(40, 120),
    st.sampled_from([1.0, 60.0]),
)
def test_no_span_holds_more_than_its_limit_and_who_waits_as_told_gets_in(
    calls: list[tuple[float, int]], requests: int, tokens: int, span_s: float
) -> None:
    limits, now, let_in = Sliding(span_s, requests, tokens), 0.0, list[tuple[float, int]]()
    for gap_s, size in calls:
        now += gap_s
        if wait_s := _take(limits, size, now):
            now += wait_s
            assert _take(limits, size, now) == 0
        let_in.append((now, size))
    for at, _ in let_in:
        window = [size for then, size in let_in if then <= at < then + span_s]
        assert len(window) <= requests
        assert sum(window) <= tokens


@given(st.lists(st.floats(0, 5), max_size=80), st.integers(1, 6), st.sampled_from([0.5, 6.0]))
def test_a_window_that_is_used_up_refuses_everything_until_it_ends(
    gaps: list[float], requests: int, span_s: float
) -> None:
    limits, now, let_in = Windows(requests, span_s, begin=3.0), 3.0, Counter[int]()
    for gap_s in gaps:
        now += gap_s
        window = int((now - 3.0) / span_s)
        wait_s = _take(limits, 1, now)
        assert bool(wait_s) == (let_in[window] == requests)
        assert now + wait_s >= 3.0 + (window + 1) * span_s - 1e-9 or not wait_s
        let_in[window] += not wait_s


def test_a_second_and_a_window_have_limits_too_and_a_refused_call_uses_up_neither() -> None:
    clock = FakeClock()
    provider = provider_named(
        "instant", clock=clock, requests_per_second=2, requests_per_window=[3, 10], failure_latency_s=0
    )
    send(provider)
    send(provider)
    assert failure_from(provider).retry_after_s == 1
    clock.time += 1
    send(provider)
    assert failure_from(provider).retry_after_s == 9
    clock.time += 9
    send(provider)
    send(provider)
    assert failure_from(provider).retry_after_s == 1


def test_a_retry_after_that_was_set_is_what_every_429_asks_for() -> None:
    provider = provider_named("instant", requests_per_minute=1, retry_after_s=2, failure_latency_s=0)
    send(provider)
    assert failure_from(provider).retry_after_s == 2


def _failures(options: SimulatedOptions, starts_s: Sequence[float]) -> list[Failure | None]:
    """What becomes of calls that start at these times, in virtual time."""

    async def main(world: World) -> list[Failure | None]:
        provider = SimulatedProvider(options, model="simulated", clock=world.clock, chance=world.chance)

        async def call(number: int, start_s: float) -> Failure | None:
            await world.clock.sleep(start_s)
            try:
                await provider.send(ask(id=f"r{number}"))
            except ProviderFailure as error:
                return error.failure
            return None

        return await asyncio.gather(*(call(*numbered) for numbered in enumerate(starts_s)))

    return virtual.run(main)


def test_calls_above_the_limit_in_flight_are_refused_and_refusals_do_not_count() -> None:
    """Two are let in for a second each; refusals take half a second and keep nobody out."""
    options = SimulatedOptions(max_in_flight=2, latency_s=1.0, failure_latency_s=0.5)
    failures = _failures(options, [0.0, 0.1, 0.2, 0.9, 1.05, 1.06, 1.15])
    assert [failure is None for failure in failures] == [True, True, False, False, True, False, True]
    # Nobody knows when there will be room.
    assert {(one.status, one.retry_after_s) for one in failures if one is not None} == {(429, None)}


@pytest.mark.parametrize(
    "name", ["requests_per_minute", "tokens_per_minute", "requests_per_second", "max_in_flight"]
)
def test_a_limit_is_a_whole_number_above_0(name: str) -> None:
    wrong: Any
    for wrong in (0, -1, 1.5, "many"):
        with pytest.raises(ValueError, match=name):
            provider_named("instant", **{name: wrong})


def test_a_window_is_a_pair_of_requests_and_seconds() -> None:
    wrong: Any
    for wrong in (84, "84/6", [84], [84, 0], [0, 6], [1.5, 6], [None, 6], [84, 6, 1]):
        with pytest.raises(ValueError, match="requests_per_window"):
            provider_named("instant", requests_per_window=wrong)
