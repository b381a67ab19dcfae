"""Estimates from measured answer times, and the Retry-After made of them."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.drain import ENOUGH_SAMPLES, Drain, spread

UNPACED = math.inf


LONG_AGO = -math.inf


def measured(*answer_s: float) -> Drain:
    """Answers to calls that began when others had been answered before: the first ones of all do not count."""
    drain = Drain()
    drain.answered(1000.0, LONG_AGO)
    for seconds in answer_s:
        drain.answered(seconds, 0.0)
    return drain


@pytest.mark.parametrize(
    ("estimate_s", "at_0", "at_half", "at_1"),
    [
        (None, 22.5, 30.0, 37.5),
        (0.0, 1.0, 1.0, 1.25),
        (-5.0, 1.0, 1.0, 1.25),
        (1.0, 1.0, 1.0, 1.25),
        (4.0, 3.0, 4.0, 5.0),
        (60.0, 45.0, 60.0, 75.0),
        (61.0, 45.0, 60.0, 75.0),
        (1e9, 45.0, 60.0, 75.0),
        (math.inf, 45.0, 60.0, 75.0),
    ],
)
def test_a_retry_after_is_clamped_and_then_spread(
    estimate_s: float | None, at_0: float, at_half: float, at_1: float
) -> None:
    """Clamping after the spread would send everybody who is told 60 s back at the same instant."""
    assert [spread(estimate_s, chance) for chance in (0.0, 0.5, 1.0)] == [at_0, at_half, at_1]


@given(estimate_s=st.none() | st.floats(0, 1e9), chance=st.floats(0, 1))
@settings(deadline=None, max_examples=200)
def test_a_retry_after_is_never_under_a_second_nor_absurd(estimate_s: float | None, chance: float) -> None:
    assert 1 <= spread(estimate_s, chance) <= 75


def test_nothing_is_known_before_the_first_sample() -> None:
    assert Drain().wait_s(10, slots=2, starts_per_s=UNPACED) is None


def test_the_first_sample_counts_whole() -> None:
    assert measured(10.0).wait_s(1, slots=1, starts_per_s=UNPACED) == 10.0


@pytest.mark.parametrize(
    ("count", "slots", "starts_per_s", "wait_s"),
    [
        (0, 2, UNPACED, 0.0),
        (1, 1, UNPACED, 10.0),
        (4, 2, UNPACED, 20.0),
        (4, 8, UNPACED, 5.0),
        (4, 0, UNPACED, 40.0),
        # One start every ten seconds is slower than eight slots of ten seconds each.
        (4, 8, 0.1, 40.0),
        (4, 2, 100.0, 20.0),
    ],
)
def test_a_wait_is_the_count_over_the_drain_rate(
    count: int, slots: int, starts_per_s: float, wait_s: float
) -> None:
    drain = measured(10.0, 10.0, 10.0)

    assert drain.wait_s(count, slots=slots, starts_per_s=starts_per_s) == pytest.approx(wait_s)


def test_few_samples_give_their_plain_mean() -> None:
    assert measured(1.0, 2.0, 3.0, 6.0).answer_s == pytest.approx(3.0)


def test_the_mean_follows_a_change() -> None:
    """A model that became ten times slower must be seen within a few dozen calls, not after thousands."""
    drain = measured(*[1.0] * 1000)
    for _ in range(100):
        drain.answered(10.0, 0.0)

    assert drain.answer_s == pytest.approx(10.0, rel=0.1)


@given(answer_s=st.lists(st.floats(0, 1000), min_size=1, max_size=100))
@settings(deadline=None, max_examples=100)
def test_the_mean_lies_among_its_samples(answer_s: list[float]) -> None:
    mean = measured(*answer_s).answer_s

    assert min(answer_s) - 1e-9 <= mean <= max(answer_s) + 1e-9


def test_nothing_is_needed_for_an_answer_before_enough_were_measured() -> None:
    assert measured(*[10.0] * (ENOUGH_SAMPLES - 1)).nearly_all_answer_s == 0.0
    assert measured(*[10.0] * ENOUGH_SAMPLES).nearly_all_answer_s == 10.0


def test_what_began_before_the_first_answer_is_forgotten() -> None:
    """A cold model: five calls wait 20 s for it, and the next ones are answered in half a second."""
    drain = Drain()
    for now in (20.0, 20.1, 20.2, 20.3, 20.4):
        drain.answered(20.0, now)
    assert drain.answer_s == pytest.approx(20.0)
    sure = [drain.sure]

    for now in (20.9, 21.0, 21.1, 21.2, 21.3):
        drain.answered(0.5, now)
        sure.append(drain.sure)

    assert sure == [False, False, False, False, False, True]
    assert [drain.answer_s, drain.strays_s] == pytest.approx([0.5, 0.0])


def test_nearly_all_answers_come_within_the_time_that_says_so() -> None:
    """Waiters with less time left are dismissed, so it must not be the mean, which half of all answers exceed."""
    chance = random.Random(1)
    answers_s = [chance.lognormvariate(0, 0.4) for _ in range(2000)]
    within = []
    drain = measured()
    for seconds in answers_s:
        if drain.nearly_all_answer_s:
            within.append(seconds <= drain.nearly_all_answer_s)
        drain.answered(seconds, 0.0)

    assert sum(within) / len(within) >= 0.9
    assert drain.nearly_all_answer_s <= 5 * drain.answer_s


def test_the_rejected_are_expected_until_they_are_due() -> None:
    drain = Drain()
    for retry_at in (10.0, 20.0, 30.0):
        drain.rejected(retry_at)

    assert [drain.expected_back(now) for now in (0.0, 9.9, 10.0, 25.0, 31.0)] == [3, 3, 2, 1, 0]


def test_a_flood_of_rejected_callers_takes_no_endless_memory() -> None:
    drain = Drain()
    for _ in range(50_000):
        drain.rejected(60.0)

    assert drain.expected_back(0.0) <= 10_000
    assert drain.expected_back(60.0) == 0


def test_batch_waits_longer_by_the_share_it_gets() -> None:
    drain = measured(10.0)
    for _ in range(1000):
        drain.granted_while_batch_waits(to_batch=False)

    alone = drain.wait_s(1, slots=1, starts_per_s=UNPACED)
    batch = drain.wait_s(1, slots=1, starts_per_s=UNPACED, batch=True)

    assert alone == 10.0
    assert batch == pytest.approx(50.0)


def test_batch_is_never_thought_to_get_less_than_its_turn() -> None:
    """One grant in five is promised, whatever the last ones were."""
    drain = measured(1.0)
    for _ in range(10_000):
        drain.granted_while_batch_waits(to_batch=False)

    assert drain.wait_s(3, slots=1, starts_per_s=UNPACED, batch=True) == pytest.approx(15.0)


def test_batch_alone_waits_like_anybody() -> None:
    drain = measured(10.0)
    drain.granted_while_batch_waits(to_batch=True)

    assert drain.wait_s(3, slots=1, starts_per_s=UNPACED, batch=True) == 30.0


@given(grants=st.lists(st.booleans(), max_size=200))
@settings(deadline=None, max_examples=100)
def test_the_share_of_batch_is_a_share(grants: list[bool]) -> None:
    drain = Drain()
    for to_batch in grants:
        drain.granted_while_batch_waits(to_batch=to_batch)

    assert 0 <= drain.batch_share <= 1
