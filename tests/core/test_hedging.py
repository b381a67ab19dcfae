"""When a call is slow enough for a second attempt, and how many of them there may be."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.hedging import BURST, ENOUGH, MEMORY, HedgeRules, Hedging
from headgate.core.problems import InvalidSettings


def _fed(after: str | float, times: list[float], *, streamed: bool = False) -> Hedging:
    hedging = Hedging(HedgeRules(after=after))
    for took_s in times:
        hedging.took(took_s, streamed=streamed)
    return hedging


# ---- The rules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "quantile"),
    [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), (2, None), (0.05, None)],
)
def test_a_quantile_or_a_time_is_taken(after: str | float, quantile: float | None) -> None:
    assert HedgeRules(after=after).quantile == (None if quantile is None else pytest.approx(quantile))


@pytest.mark.parametrize(
    "after",
    [
        "p49",
        "p0",
        "p100",
        "p9",
        "95",
        "P95",
        "p95%",
        "p99.99",
        " p95",
        "p95\n",
        "",
        "2s",
        0,
        -1,
        True,
        math.inf,
    ],
)
def test_anything_else_is_refused_with_its_name(after: Any) -> None:
    with pytest.raises(InvalidSettings) as caught:
        HedgeRules(after=after)
    assert [problem.path for problem in caught.value.problems] == ["after"]


@pytest.mark.parametrize("share", [0, -0.1, 1.01, True, math.nan, "5%"])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(InvalidSettings) as caught:
        HedgeRules(share=share)
    assert [problem.path for problem in caught.value.problems] == ["share"]


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(InvalidSettings) as caught:
        HedgeRules(after="p10", share=2)
    assert [problem.path for problem in caught.value.problems] == ["after", "share"]


# ---- How long to wait ---------------------------------------------------------------------------------------------


def test_a_fixed_time_holds_from_the_first_call_and_whatever_is_seen() -> None:
    assert _fed(3.0, []).after_s(streamed=False) == 3.0
    assert _fed(3.0, [0.1] * 500).after_s(streamed=True) == 3.0


def test_a_quantile_says_nothing_before_enough_calls_were_seen() -> None:
    assert _fed("p95", [1.0] * (ENOUGH - 1)).after_s(streamed=False) is None
    assert _fed("p95", [1.0] * ENOUGH).after_s(streamed=False) == 1.0


@pytest.mark.parametrize("quantile", [50, 75, 90, 95, 99])
def test_as_many_of_the_recent_calls_are_slower_as_the_quantile_says(quantile: int) -> None:
    times = [number / 100 for number in range(1, MEMORY + 1)]
    random.Random(quantile).shuffle(times)
    after_s = _fed(f"p{quantile}", times).after_s(streamed=False)
    assert after_s is not None
    slower = sum(took_s >= after_s for took_s in times)
    assert slower == pytest.approx(MEMORY * (1 - quantile / 100), abs=1)


def test_streams_and_whole_answers_are_timed_apart() -> None:
    hedging = _fed("p95", [30.0] * ENOUGH)
    assert hedging.after_s(streamed=True) is None
    for _ in range(ENOUGH):
        hedging.took(0.5, streamed=True)
    assert (hedging.after_s(streamed=True), hedging.after_s(streamed=False)) == (0.5, 30.0)


def test_old_times_are_forgotten() -> None:
    assert _fed("p95", [9.0] * MEMORY + [1.0] * MEMORY).after_s(streamed=False) == 1.0


@given(
    st.sampled_from(["p50", "p90", "p95", "p99", "p99.9"]),
    st.lists(st.floats(0, 1000), min_size=ENOUGH, max_size=3 * MEMORY),
)
def test_the_time_is_always_one_that_was_seen_lately(after: str, times: list[float]) -> None:
    after_s = _fed(after, times).after_s(streamed=False)
    assert after_s in times[-MEMORY - 5 :]


# ---- How many -----------------------------------------------------------------------------------------------------


def _seconds_of(hedging: Hedging, calls: int) -> int:
    """So many calls, all of them slow: how many get a second attempt."""
    count = 0
    for _ in range(calls):
        hedging.begun()
        count += hedging.take()
    return count


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("calls", [100, 1000])
def test_second_attempts_are_bounded_by_their_share_of_the_calls_and_a_burst(
    share: float, calls: int
) -> None:
    count = _seconds_of(Hedging(HedgeRules(share=share)), calls)
    assert min(calls, share * calls) - 1 <= count <= BURST + share * calls


def test_what_was_not_used_is_not_saved_up_beyond_the_burst() -> None:
    hedging = Hedging(HedgeRules(share=1.0))
    for _ in range(1000):
        hedging.begun()
    taken = 0
    while hedging.take():
        taken += 1
    assert taken == BURST


def test_a_second_attempt_that_found_no_place_costs_nothing() -> None:
    hedging = Hedging(HedgeRules(share=0.05))
    for _ in range(100):
        assert hedging.take()
        hedging.give_back()
    assert _seconds_of(hedging, 1) == 1
    while hedging.take():
        pass
    hedging.give_back()
    assert hedging.take()
    assert not hedging.take()
