"""Learned limits: where the load lies that is refused, the window it is counted in, proof, raise and undo."""

import math
import random
from collections.abc import Sequence
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from headgate.core.limit import (
    FIRST_RAISE_S,
    LONGEST_RAISE_S,
    NEXT_RAISE_S,
    SPAN_S,
    Limit,
    Measure,
    Window,
    threshold,
)
from headgate.core.start import Start

_numbers = count(1)


def a_start(at: float, *, refused: bool = False, tokens: float = 1.0) -> Start:
    start = Start(at, next(_numbers), tokens, "tenant", probe=False)
    start.refused = refused
    return start


def a_limit(most: float = 20.0, *, measure: Measure = Measure.STARTS, at: float = 0.0) -> Limit:
    return Limit(at, measure, most, before=0.5)


def proven(most: float = 20.0, *, residue: float = 0.0) -> Limit:
    limit = a_limit(most)
    limit.proved(0.0, residue)
    return limit


# ---- Where it lies ------------------------------------------------------------------------------------------


def test_a_clean_cut_is_found_where_it_is() -> None:
    """Refused at 20 and more, passed below: 20 is the first load that is too much."""
    assert threshold([float(load) for load in range(20, 40)], [float(load) for load in range(20)]) == (
        1.0,
        20.0,
    )


def test_a_cut_that_some_calls_cross_is_found_all_the_same() -> None:
    refused = [5.0, 9.0, *(21.0 + load for load in range(18))]
    passed = [*(1.0 + load / 2 for load in range(38)), 22.0, 23.0]

    found = threshold(refused, passed)

    assert found is not None
    assert found[1] == 21.0


@pytest.mark.parametrize(
    ("refused", "passed"),
    [
        ([], []),
        ([30.0] * 7, [1.0] * 100),
        ([30.0] * 100, [1.0] * 7),
    ],
)
def test_a_handful_of_refusals_proves_nothing(refused: list[float], passed: list[float]) -> None:
    assert threshold(refused, passed) is None


@pytest.mark.parametrize(
    "passed", [[10.0] * 40, [float(load % 20) for load in range(40)]], ids=["one load", "the same loads"]
)
def test_where_the_loads_are_alike_no_limit_is_found(passed: list[float]) -> None:
    assert threshold(passed[:20], passed) is None


def test_refusals_at_low_load_are_no_limit() -> None:
    """More load, fewer refusals: whatever refuses here, it is not our load."""
    assert threshold([1.0] * 50, [30.0] * 50) is None


def test_chance_is_hardly_ever_taken_for_a_limit() -> None:
    chance = random.Random(1)
    found = 0
    for _ in range(2000):
        loads = [chance.uniform(1, 30) for _ in range(100)]
        refused = [load for load in loads if chance.random() < 0.3]
        found += threshold(refused, [load for load in loads if load not in refused]) is not None

    assert found <= 4


@given(refused=st.lists(st.integers(0, 30), max_size=60), passed=st.lists(st.integers(0, 30), max_size=60))
@settings(deadline=None, max_examples=200)
def test_the_threshold_is_the_widest_gap_between_the_two(refused: list[int], passed: list[int]) -> None:
    def share_below(load: float, loads: Sequence[float]) -> float:
        return sum(other < load for other in loads) / len(loads)

    found = threshold([float(load) for load in refused], [float(load) for load in passed])

    if found is None:
        return
    gap, most = found
    gaps = {load: share_below(load, passed) - share_below(load, refused) for load in refused}
    assert gap == pytest.approx(gaps[int(most)]) == pytest.approx(max(gaps.values()))
    assert gap >= 0.5


# ---- The last second ------------------------------------------------------------------------------------------


def test_rates_are_counted_over_little_more_than_a_second() -> None:
    """Over much longer windows everything that grows with time looks like a load that is refused."""
    assert 1.0 <= SPAN_S <= 1.1


def test_a_start_counts_for_one_span() -> None:
    window = Window()
    window.add(a_start(0.0, tokens=300.0))
    window.add(a_start(0.5, tokens=200.0))

    window.trim(SPAN_S - 0.001)
    assert (len(window), window.tokens) == (2, 500.0)

    window.trim(window.opens_at())
    assert (len(window), window.tokens) == (1, 200.0)


def test_a_refused_start_is_load_but_has_not_passed() -> None:
    window = Window()
    start = a_start(0.0, tokens=300.0)
    window.add(start)

    window.refuse(start)

    assert (len(window), window.tokens) == (1, 300.0)
    assert (window.passed, window.passed_tokens) == (0, 0.0)


def test_a_start_that_is_refused_after_it_left_the_window_changes_nothing() -> None:
    window = Window()
    old = a_start(0.0)
    window.add(old)
    window.trim(10.0)
    window.add(a_start(10.0))

    window.refuse(old)

    assert window.passed == 1


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 0.6), st.booleans(), st.integers(0, 3), st.sampled_from([0.1, 1.0, 7.3])),
        max_size=80,
    )
)
@settings(deadline=None, max_examples=150)
def test_a_window_agrees_with_a_naive_recount(steps: list[tuple[float, bool, int, float]]) -> None:
    """Starts come, refusals come late and in any order, time passes."""
    window = Window()
    starts: list[Start] = []
    now = 0.0
    for gap_s, refuses, which, tokens in steps:
        now += gap_s
        window.trim(now)
        undecided = [start for start in starts if not start.refused]
        if refuses and which < len(undecided):
            window.refuse(undecided[which])
            undecided[which].refused = True
        else:
            starts.append(a_start(now, tokens=tokens))
            window.add(starts[-1])
        recent = [start for start in starts if start.at > now - SPAN_S]
        passed = [start for start in recent if not start.refused]
        assert (len(window), window.passed) == (len(recent), len(passed))
        assert window.tokens == pytest.approx(sum(start.tokens for start in recent))
        assert window.passed_tokens == pytest.approx(sum(start.tokens for start in passed), abs=1e-6)


# ---- Proof, raise and undo --------------------------------------------------------------------------------------


def saw(limit: Limit, *, at: float, passed: int = 0, refused: int = 0) -> None:
    for number in range(passed + refused):
        limit.saw(at, a_start(at, refused=number >= passed))


def test_a_limit_on_trial_is_not_raised() -> None:
    assert a_limit().raise_at == math.inf


@pytest.mark.parametrize(
    ("starts", "refused", "over"),
    [
        # Enough was seen.
        (40, 10, True),
        (39, 10, False),
        # So many without a refusal, where half were refused before, is no chance.
        (7, 0, False),
        (20, 0, True),
        # It cannot succeed any more: more than a quarter of forty were refused already.
        (16, 11, True),
        (11, 11, True),
        (10, 7, False),
    ],
)
def test_a_trial_lasts_until_enough_was_seen(starts: int, refused: int, over: bool) -> None:
    assert a_limit().tried(starts, refused) == over


def test_a_proven_limit_may_be_raised_after_three_seconds() -> None:
    limit = a_limit()
    limit.proved(10.0, 0.0)

    assert limit.proven
    assert limit.raise_at == 10.0 + FIRST_RAISE_S


def test_raises_that_go_well_grow() -> None:
    limit = proven(100.0)
    seen = []
    for _ in range(4):
        before, now = limit.most, limit.raise_at
        limit.lift(now, 0.0)
        saw(limit, at=now, passed=50)
        seen.append(limit.most - before)
        assert limit.raise_at == now + (NEXT_RAISE_S if len(seen) > 1 else FIRST_RAISE_S)

    assert seen == pytest.approx([5.0, 10.5, 23.1, 55.44])


def test_a_small_limit_is_raised_by_one_at_least() -> None:
    limit = proven(3.0)
    limit.lift(3.0, 0.0)

    assert limit.most == 4.0


def test_refusals_after_a_raise_undo_it() -> None:
    limit = proven(100.0)
    limit.lift(3.0, 0.0)

    saw(limit, at=3.5, passed=20, refused=1)
    assert limit.most == 105.0, "one may be chance"
    saw(limit, at=3.6, refused=2)

    assert limit.most == 100.0
    assert limit.settled


def test_only_the_last_raise_is_undone() -> None:
    limit = proven(100.0)
    limit.lift(3.0, 0.0)
    saw(limit, at=4.0, passed=50)
    limit.lift(6.0, 0.0)
    saw(limit, at=7.0, refused=3)

    assert limit.most == 105.0


def test_refusals_of_starts_before_the_raise_do_not_undo_it() -> None:
    """They come back after it, but were started under the old limit."""
    limit = proven(100.0)
    limit.lift(3.0, 0.0)

    for _ in range(10):
        limit.saw(3.2, a_start(2.9, refused=True))

    assert limit.most == 105.0


def test_the_usual_refusals_do_not_undo_a_raise() -> None:
    """Under a limit that left 10 % of chance, one in ten after the raise is no news."""
    limit = proven(100.0, residue=0.1)
    limit.lift(3.0, 0.1)
    for _ in range(10):
        saw(limit, at=4.0, passed=9, refused=1)
    assert limit.most == 105.0

    saw(limit, at=5.0, refused=20)
    assert limit.most == 100.0


def test_after_an_undo_the_next_raise_waits_longer_and_is_small_again() -> None:
    limit = proven(100.0)
    now = FIRST_RAISE_S
    waits = []
    for _ in range(4):
        limit.lift(now, 0.0)
        assert limit.most == 105.0
        saw(limit, at=now, refused=3)
        waits.append(limit.raise_at - now)
        now = limit.raise_at

    assert waits == [6.0, LONGEST_RAISE_S, LONGEST_RAISE_S, LONGEST_RAISE_S]


def test_a_raise_that_goes_well_ends_the_long_waits() -> None:
    limit = proven(100.0)
    limit.lift(3.0, 0.0)
    saw(limit, at=3.0, refused=3)
    limit.lift(10.0, 0.0)
    saw(limit, at=11.0, passed=50)
    limit.lift(16.0, 0.0)

    assert limit.raise_at == 16.0 + NEXT_RAISE_S


def test_a_limit_is_settled_only_after_a_raise_was_undone() -> None:
    """Before that it is what the upstream takes at least, and estimates must not be made from it."""
    limit = a_limit()
    assert not limit.settled
    limit.proved(0.0, 0.0)
    assert not limit.settled
    limit.lift(3.0, 0.0)
    assert not limit.settled


@pytest.mark.parametrize(
    ("at", "explained"), [(2.9, False), (3.0, True), (3.5, True), (4.0, True), (4.1, False)]
)
def test_a_raise_explains_the_refusals_of_calls_that_were_started_under_it(
    at: float, explained: bool
) -> None:
    """They say nothing about a closed upstream, also those that come back after the raise was undone."""
    limit = proven(100.0)
    limit.lift(3.0, 0.0)
    assert limit.explains(a_start(at)) == (at >= 3.0)
    saw(limit, at=4.0, refused=3)

    assert limit.explains(a_start(at)) == explained


def test_a_limit_that_was_never_raised_explains_nothing() -> None:
    assert not a_limit().explains(a_start(5.0))
    assert not proven().explains(a_start(5.0))


@pytest.mark.parametrize(
    ("measure", "unit"),
    [(Measure.IN_FLIGHT, "calls in flight"), (Measure.STARTS, "starts/s"), (Measure.TOKENS, "tokens/s")],
)
def test_a_limit_says_what_it_is(measure: Measure, unit: str) -> None:
    limit = a_limit(20.0, measure=measure)
    assert unit in limit.words
    assert "on trial" in limit.words

    limit.proved(0.0, 0.0)
    assert unit in limit.words
    assert "on trial" not in limit.words


@given(
    most=st.floats(2, 1000),
    events=st.lists(st.tuples(st.floats(0, 10), st.sampled_from(["lift", "pass", "refuse"])), max_size=60),
)
@settings(deadline=None, max_examples=150)
def test_a_limit_never_falls_below_where_it_was_proven(most: float, events: list[tuple[float, str]]) -> None:
    limit = proven(most)
    now = 0.0
    for gap_s, event in events:
        now += gap_s
        before = limit.most
        if event == "lift":
            limit.lift(now, 0.1)
            assert limit.most > before
        else:
            limit.saw(now, a_start(now, refused=event == "refuse"))
            assert limit.most <= before
        assert limit.most >= most
        assert limit.raise_at > now or event != "lift"
