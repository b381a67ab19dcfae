"""What an `Intake` learns of its own load: limits where refusals depend on it, none where they do not."""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
from core.intake_stage import Story, own, play, started, steady
from weathers.kinds import OK, Bucket, Calm, Crowd, Quota, Verdict

from headgate.core.intake import Intake
from headgate.core.limit import SPAN_S, Measure
from headgate.core.start import Outcome

SEEDS = range(3)
FOR_S = 60.0


def learned(upstream: Calm, rate: float, *, learns: bool = True, seed: int = 0) -> tuple[Intake, Story]:
    intake = own(64, learns=learns)
    return intake, play(intake, upstream, steady(rate, FOR_S, seed=seed), until_s=FOR_S, seed=seed)


def throttled_share(upstream: Calm, since_s: float) -> float:
    statuses = [status for at, status in upstream.log if at >= since_s]
    return sum(status != OK for status in statuses) / len(statuses)


# ---- Quotas ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("rate", "load"), [(5.0, 2.0), (20.0, 1.0), (20.0, 2.0), (100.0, 2.0)])
def test_a_quota_of_starts_is_learned_and_used(rate: float, load: float, seed: int) -> None:
    upstream = Quota(seed=seed, rate=rate)

    intake, story = learned(upstream, load * rate, seed=seed)

    limit = intake.limit
    assert limit is not None
    assert (limit.measure, limit.proven) == (Measure.STARTS, True)
    assert rate <= limit.most <= 1.1 * rate + 2
    assert story.answered(20.0, FOR_S) >= 0.9 * rate
    assert throttled_share(upstream, 20.0) <= 0.05
    assert not story.closed_at(after_s=20.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_quota_that_is_hardly_ever_reached_costs_few_refusals_and_no_answers(seed: int) -> None:
    upstream = Quota(seed=seed, rate=20)
    arrivals = steady(15, FOR_S, seed=seed)

    story = play(own(64), upstream, arrivals, seed=seed)

    assert len(story.answered_at) == len(arrivals)
    assert len(upstream.log) <= 1.05 * len(arrivals)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_quota_that_halves_is_learned_anew(seed: int) -> None:
    upstream = Quota(seed=seed, rate=20, change_at=25, changed=10)

    intake, story = learned(upstream, 30, seed=seed)

    assert intake.limit is not None
    assert 10 <= intake.limit.most <= 13
    assert story.answered(40.0, FOR_S) >= 9
    assert throttled_share(upstream, 40.0) <= 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_quota_that_doubles_is_found_by_raising_the_limit(seed: int) -> None:
    upstream = Quota(seed=seed, rate=20, change_at=20, changed=40)

    intake, story = learned(upstream, 60, seed=seed)

    assert intake.limit is not None
    assert 40 <= intake.limit.most <= 46
    assert story.answered(45.0, FOR_S) >= 36


@pytest.mark.parametrize("seed", SEEDS)
def test_a_raise_that_brings_refusals_is_undone(seed: int) -> None:
    """Up to the quota and no further, again and again: the limit never runs away."""
    upstream = Quota(seed=seed, rate=20)
    _, story = learned(upstream, 40, seed=seed)

    proven = [limit.most for limit in story.limits if limit.proven]
    raises = [after > before for before, after in pairwise(proven)]
    assert True in raises
    assert False in raises
    assert max(proven) <= 26


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_known_of_a_settled_quota_makes_the_estimates(seed: int) -> None:
    intake, _ = learned(Quota(seed=seed, rate=20), 40, seed=seed)

    assert intake.learning.settled(Measure.STARTS) == pytest.approx(20, rel=0.1)
    assert intake.learning.settled(Measure.IN_FLIGHT) == float("inf")


def test_nothing_is_estimated_before_a_raise_was_undone() -> None:
    intake = own(64)
    story = play(intake, Quota(rate=20), steady(40, FOR_S), until_s=4.0)

    assert story.limits
    assert all(intake.learning.settled(measure) == float("inf") for measure in Measure)


@pytest.mark.parametrize("seed", SEEDS)
def test_starts_under_a_limit_are_spread_over_the_second(seed: int) -> None:
    """All at the beginning of each second would be a burst that buckets refuse."""
    upstream = Quota(seed=seed, rate=20)
    learned(upstream, 40, seed=seed)

    at = [at for at, _ in upstream.log if at >= 20.0]
    most = max(sum(begin <= other < begin + 0.25 for other in at) for begin in at)
    assert most <= 12


@pytest.mark.parametrize("seed", SEEDS)
def test_a_quota_of_tokens_is_learned_where_calls_differ_in_size(seed: int) -> None:
    """The starts a second say nothing: it is the few large calls."""
    chance = random.Random(f"{seed} sizes")
    arrivals = [(at, chance.choice([0.1, 0.1, 0.1, 4.0])) for at, _ in steady(30, FOR_S, seed=seed)]
    upstream = Bucket(seed=seed, rate=20, depth=20)
    intake = own(64)

    story = play(intake, upstream, arrivals, tokens_per_size=1000, until_s=FOR_S, seed=seed)

    assert Measure.TOKENS in {limit.measure for limit in story.limits if limit.proven}
    assert intake.limit is not None
    assert intake.limit.measure is Measure.TOKENS
    assert 16_000 <= intake.limit.most <= 32_000
    assert throttled_share(upstream, 20.0) <= 0.1


def test_a_call_larger_than_the_limit_goes_all_the_same() -> None:
    """Otherwise it would wait for ever."""
    chance = random.Random("sizes")
    arrivals = [(at, chance.choice([0.1, 0.1, 0.1, 4.0])) for at, _ in steady(30, FOR_S)]
    intake = own(64)
    play(intake, Bucket(rate=20, depth=20), arrivals, tokens_per_size=1000, until_s=FOR_S)
    assert intake.limit is not None

    assert intake.opens_at(FOR_S + 10, 1e9) <= FOR_S + 10


# ---- Calls in flight --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rate", [15.0, 40.0])
def test_a_limit_on_calls_in_flight_is_learned(rate: float, seed: int) -> None:
    upstream = Crowd(seed=seed, most=8)

    intake, story = learned(upstream, rate, seed=seed)

    limit = intake.limit
    assert limit is not None
    assert (limit.measure, limit.proven) == (Measure.IN_FLIGHT, True)
    assert 8 < limit.most <= 11
    assert intake.learning.settled(Measure.IN_FLIGHT) == limit.allows
    assert throttled_share(upstream, 20.0) <= 0.05
    assert story.answered(20.0, FOR_S) >= min(0.9 * rate, 8 / 0.5)


def test_under_a_limit_on_calls_in_flight_the_next_goes_when_one_returns() -> None:
    intake, _ = learned(Crowd(most=8), 40)
    now = FOR_S + 100.0
    starts = []
    while intake.opens_at(now, 0) <= now:
        starts.append(started(intake, now))
        now += 0.01
    assert 1 <= intake.in_flight <= 10
    assert intake.limit is not None
    assert intake.opens_at(now, 0) == intake.limit.raise_at


# ---- Where refusals do not depend on our load -------------------------------------------------------------------


def slow_down_helped(story: Story) -> bool:
    return any(limit.proven for limit in story.limits)


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("rate", [1.0, 15.0, 100.0])
def test_chance_gets_no_limit_at_any_rate(rate: float, share: float) -> None:
    for seed in SEEDS:
        intake, story = learned(Calm(seed=seed, throttled=share), rate, seed=seed)

        assert intake.limit is None
        assert not slow_down_helped(story)
        assert story.limited_s(FOR_S) <= 10


def test_a_limit_that_does_not_help_is_dropped_and_tried_ever_more_rarely() -> None:
    """Half of all calls are refused by chance: slowing down is tried, changes nothing, and ends."""
    upstream = Calm(seed=1, throttled=0.5)
    intake = own(64)
    story = play(intake, upstream, steady(15, 200, seed=1), until_s=200.0)

    assert story.limits
    assert story.limits[-1].measure is None
    assert story.limited_s(200.0) <= 30
    ends = [limit.at for limit in story.limits if limit.measure is None]
    begins = [limit.at for limit in story.limits if limit.measure is not None]
    rests_s = [begin - end for end, begin in zip(ends, begins[1:], strict=False)]
    assert len(rests_s) >= 2
    assert rests_s[-1] > rests_s[0] >= 5


def test_failures_are_no_reason_for_a_limit() -> None:
    intake, story = learned(Calm(failing=0.5), 15)

    assert not story.limits
    assert intake.limit is None


def test_what_must_not_learn_does_not() -> None:
    intake, story = learned(Quota(rate=20), 40, learns=False)

    assert not story.limits
    assert intake.limit is None


@dataclass(kw_only=True)
class EveryThird(Calm):
    """Refuses every third call that comes after `since_s`: spread as evenly as can be, whatever the load is."""

    since_s: float = 0.0
    _calls: int = 0

    def refusal(self, now: float, size: float) -> Verdict | None:
        self._calls += now >= self.since_s
        refuses = now >= self.since_s and self._calls % 3 == 0
        return self.throttle(self.hint_s) if refuses else None


def test_load_that_grows_while_refusals_are_spread_evenly_gives_no_limit() -> None:
    """Over windows much longer than a second, all that grows with time would look like a load that is refused."""
    growing = [
        arrival for second in range(60) for arrival in steady(5 + second, 1.0, since=second, seed=second)
    ]
    intake = own(1000)

    story = play(intake, EveryThird(answer_s=3.0), growing, slots=1000)

    assert not story.limits


@pytest.mark.parametrize("since_s", [1.5, 2.0, 3.0])
def test_refusals_that_begin_while_the_load_is_steady_give_no_limit(since_s: float) -> None:
    """A window of ten seconds would still be filling: all refused starts would have a higher load than those before."""
    even = [(number / 30, 1.0) for number in range(30 * 20)]
    # The hint is so long that none of the refused calls comes back and adds to the load.
    upstream = EveryThird(since_s=since_s, spread=0.0, hint_s=20.0)

    story = play(own(64), upstream, even, until_s=20.0)

    assert not story.limits


def test_the_load_of_a_start_is_that_of_the_last_second() -> None:
    intake = own(64)
    for number in range(100):
        start = started(intake, number / 10, tokens=7.0)
        intake.end(number / 10 + 0.01, start, Outcome.ANSWERED)

    now = 9.9 + SPAN_S + 0.001
    assert started(intake, now, tokens=7.0).loads == (1, 1, 7.0)
    assert start.loads[Measure.STARTS] <= 12


# ---- A reload ---------------------------------------------------------------------------------------------------


def test_a_reload_keeps_a_learned_limit() -> None:
    upstream = Quota(rate=20)
    old, _ = learned(upstream, 40)
    fresh = own(64)
    fresh.inherit(old)

    play(fresh, upstream, steady(40, 30, since=FOR_S + 1), until_s=FOR_S + 30)

    assert fresh.limit is not None
    assert throttled_share(upstream, FOR_S + 1) <= 0.05
