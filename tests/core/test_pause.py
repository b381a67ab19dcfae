"""A paused gate: nobody during it, one by one after it, and a second pause never speeds things up."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.pause import Pause

LONGEST_S = 300.0

lengths = st.sampled_from([0.1, 1.0, 4.0, 22.8, 40.0, 300.0]) | st.floats(0.01, 300)
instants = st.sampled_from([0.0, 47224.52435761166]) | st.floats(0, 1e6)


def paused(seconds: float, *, at: float = 0.0) -> Pause:
    pause = Pause()
    assert pause.begin(at, seconds, LONGEST_S)
    return pause


def test_a_gate_that_was_never_paused_has_all_its_slots() -> None:
    pause = Pause()

    assert pause.over(0.0)
    assert pause.slots(0.0, 8) == 8
    assert pause.next_change_at(0.0, 8) is None


@pytest.mark.parametrize("now", [0.0, 5.0, 39.999])
def test_nobody_passes_during_a_pause(now: float) -> None:
    pause = paused(40.0)

    assert pause.slots(now, 8) == 0
    assert not pause.over(now)
    assert pause.next_change_at(now, 8) == 40.0


@pytest.mark.parametrize(
    ("now", "slots"), [(40.0, 1), (41.0, 1), (42.5, 2), (45.0, 3), (47.5, 4), (49.9, 4), (50.0, 5), (60.0, 5)]
)
def test_slots_come_back_one_by_one(now: float, slots: int) -> None:
    """Everybody at once is what made the provider ask for the pause."""
    assert paused(40.0).slots(now, 5) == slots


@pytest.mark.parametrize(
    ("pause_s", "ramp_s"), [(0.4, 0.1), (4.0, 1.0), (20.0, 5.0), (40.0, 10.0), (100.0, 10.0), (300.0, 10.0)]
)
def test_the_ramp_takes_a_quarter_of_the_pause_and_ten_seconds_at_most(pause_s: float, ramp_s: float) -> None:
    pause = paused(pause_s)

    assert pause.slots(pause_s + 0.99 * ramp_s, 100) < 100
    assert pause.slots(pause_s + 1.01 * ramp_s, 100) == 100
    assert pause.over(pause_s + 1.01 * ramp_s)


@given(at=instants, pause_s=lengths, slots=st.integers(1, 50), share=st.lists(st.floats(0, 1.2), max_size=20))
@settings(deadline=None, max_examples=200)
def test_the_ramp_only_rises_from_one_to_all(
    at: float, pause_s: float, slots: int, share: list[float]
) -> None:
    pause = paused(pause_s, at=at)
    ramp_s = min(10.0, pause_s / 4)
    seen = [pause.slots(pause.until + part * ramp_s, slots) for part in sorted(share)]

    assert seen == sorted(seen)
    assert all(1 <= count <= slots for count in seen)


@given(at=instants, pause_s=lengths, slots=st.integers(1, 50))
@settings(deadline=None, max_examples=200)
def test_each_announced_change_is_later_and_brings_more_slots_until_all_are_back(
    at: float, pause_s: float, slots: int
) -> None:
    """The gate sleeps until the announced change. One that brings nothing, with none after it, is a slot lost."""
    pause = paused(pause_s, at=at)
    now = at
    while (change_at := pause.next_change_at(now, slots)) is not None:
        assert change_at > now
        assert pause.slots(change_at, slots) > pause.slots(now, slots)
        now = change_at

    assert pause.slots(now, slots) == slots


def test_the_last_slot_is_back_when_the_ramp_is_over() -> None:
    """until + ramp − until is not always ramp: the rounding of one pause in two once kept the last slot."""
    pause = paused(22.8, at=47224.52435761166)
    end = pause.until + 5.7

    assert pause.over(end)
    assert pause.slots(end, 8) == 8


@pytest.mark.parametrize(("at", "asked_s", "news"), [(1.0, 8.9, False), (1.0, 9.0, False), (1.0, 9.1, True)])
def test_the_longer_pause_wins(at: float, asked_s: float, news: bool) -> None:
    pause = paused(10.0)

    assert pause.begin(at, asked_s, LONGEST_S) == news
    assert pause.until == pytest.approx(max(10.0, at + asked_s))


@given(
    slots=st.integers(1, 12),
    first_s=st.sampled_from([1.0, 4.0, 40.0, 1000.0]),
    at_s=st.sampled_from([0.0, 0.5, 4.5, 40.0, 45.0, 49.0, 299.0]),
    second_s=st.sampled_from([0.0, 0.1, 1.0, 20.0, 40.0, 300.0, 1000.0]),
    later_s=st.lists(st.floats(0, 400), max_size=10),
)
@settings(deadline=None, max_examples=200)
def test_a_further_pause_never_lets_more_through(
    slots: int, first_s: float, at_s: float, second_s: float, later_s: list[float]
) -> None:
    """Another "slow down" while the gate is still cautious must not make it less so."""
    once, twice = paused(first_s), paused(first_s)

    twice.begin(at_s, second_s, LONGEST_S)

    for now in (at_s, *(at_s + later for later in later_s)):
        assert twice.slots(now, slots) <= once.slots(now, slots)


def test_a_short_pause_during_the_ramp_does_not_end_the_ramp() -> None:
    pause = paused(40.0)
    assert pause.slots(41.0, 8) == 1

    pause.begin(41.0, 0.1, LONGEST_S)

    assert pause.slots(41.2, 8) < 8


# ---- Longer than we are willing to wait -------------------------------------------------------------------


def test_a_pause_is_never_longer_than_the_longest() -> None:
    assert paused(100_000.0).until == LONGEST_S


@pytest.mark.parametrize("now", [300.0, 305.0, 310.0, 1e6])
def test_after_a_pause_cut_short_one_call_goes_until_it_succeeds(now: float) -> None:
    """The provider asked for more than we waited, so one call asks whether it is well again."""
    pause = paused(1000.0)

    assert pause.slots(now, 8) == 1
    assert not pause.over(now)
    assert pause.next_change_at(now, 8) is None


def test_a_success_opens_a_pause_that_was_cut_short() -> None:
    pause = paused(1000.0)

    pause.call_succeeded(math.inf)

    assert pause.slots(305.0, 9) == 5
    assert pause.slots(310.0, 9) == 9
    assert pause.over(310.0)


def test_a_pause_of_exactly_the_longest_needs_no_probe() -> None:
    assert paused(LONGEST_S).slots(311.0, 8) == 8


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_a_probe_needs_a_slot_like_any_other(slots: int) -> None:
    assert paused(1000.0).slots(300.0, slots) == 1


def test_a_short_pause_after_one_cut_short_does_not_drop_the_probe() -> None:
    """A late 429 without a hint pauses for a drawn wait; what the provider asked before still stands."""
    pause = paused(1000.0)

    pause.begin(290.0, 20.0, LONGEST_S)

    assert pause.until == 310.0
    assert pause.slots(320.0, 8) == 1


def test_a_pause_cut_short_to_the_same_end_still_needs_its_probe() -> None:
    pause = paused(LONGEST_S)

    pause.begin(0.0, 5000.0, LONGEST_S)

    assert pause.slots(320.0, 8) == 1


def test_a_success_during_a_pause_does_not_end_it() -> None:
    """A call that began before the pause may still succeed; the provider's wait stands."""
    pause = paused(40.0)

    pause.call_succeeded(math.inf)

    assert pause.slots(39.0, 8) == 0


def test_the_end_of_a_pause_is_a_number_even_before_the_first() -> None:
    assert Pause().until == -math.inf
