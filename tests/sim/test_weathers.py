"""Each weather does what its name says, by its own counts; and the harness loses no call on the way."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from conftest import Figure
from weathers.kinds import Calm
from weathers.offer import Outcome
from weathers.report import compare
from weathers.table import OTHER_KINDS, WEATHERS
from weathers.virtual import Way, play

Log = Sequence[tuple[float, int]]
Check = Callable[[Outcome, list[Calm]], None]
SLACK = 0.05
"""Of a share that chance decides: three standard deviations at 1,000 calls."""
SLOW = {"storm", "storm-slow-refusals"}
"""Minutes of load."""


def _share(log: Log, status: int) -> float:
    return sum(one == status for _, one in log) / len(log)


def _most_within(log: Log, span_s: float) -> int:
    """The most accepted starts in any span of this length."""
    starts = [at for at, status in log if status == 200]
    return max(
        sum(start <= at < start + span_s for at in starts[index:]) for index, start in enumerate(starts)
    )


def chance(throttled: float = 0.0, failing: float = 0.0, cut: float = 0.0) -> Check:
    def check(_: Outcome, sky: list[Calm]) -> None:
        log = sky[0].log
        slack = max(SLACK, 3 * math.sqrt(0.25 / len(log)))
        assert _share(log, 429) == pytest.approx(throttled, abs=slack)
        assert _share(log, 500) == pytest.approx(failing, abs=slack)
        assert _share(log, 0) == pytest.approx(cut, abs=slack)

    return check


def quota(rate: int, *, reached: bool = True) -> Check:
    """A quota is never exceeded, refuses some calls and is used up at times."""

    def check(_: Outcome, sky: list[Calm]) -> None:
        most = _most_within(sky[0].log, 1.0)
        assert most <= rate
        assert not reached or most == rate
        assert _share(sky[0].log, 429) > 0

    return check


def quota_changes(at: float, before: int, after: int) -> Check:
    def check(_: Outcome, sky: list[Calm]) -> None:
        earlier, later = _split(sky[0].log, at)
        assert _most_within(earlier, 1.0) == before
        # Starts of the old quota's last second still count.
        assert _most_within([one for one in later if one[0] >= at + 1], 1.0) == after

    return check


def windows(size: int, span_s: float) -> Check:
    def check(_: Outcome, sky: list[Calm]) -> None:
        accepted = Counter(int(at / span_s) for at, status in sky[0].log if status == 200)
        refused = Counter(int(at / span_s) for at, status in sky[0].log if status == 429)
        assert max(accepted.values()) == size
        # Refusals begin only when a window is used up.
        assert all(accepted[window] == size for window in refused)

    return check


def bucket(rate: float, depth: float, *, rival: bool = False) -> Check:
    def check(_: Outcome, sky: list[Calm]) -> None:
        starts = [at for at, status in sky[0].log if status == 200]
        for count, (first, last) in enumerate(zip([starts[0]] * len(starts), starts, strict=True), 1):
            assert count <= depth + rate * (last - first) + 1
        assert _share(sky[0].log, 429) > 0
        assert not rival or len(starts) < rate * starts[-1]

    return check


def refuses(status: int, *spells: tuple[float, float], every_s: float = math.inf) -> Check:
    """Everything within the spells, nothing else."""

    def check(_: Outcome, sky: list[Calm]) -> None:
        for at, seen in sky[0].log:
            inside = any(start <= at % every_s < end for start, end in spells)
            assert seen == (status if inside else 200)
        assert _share(sky[0].log, status) > 0

    return check


def crowd(most: int) -> Check:
    def check(_: Outcome, sky: list[Calm]) -> None:
        assert sky[0].max_in_flight == most
        assert _share(sky[0].log, 429) > 0

    return check


def tail(outcome: Outcome, _: list[Calm]) -> None:
    assert 0.005 < sum(took_s >= 8 for took_s in outcome.took_s) / outcome.answered < 0.05


def all_answered(*, slowest_s: tuple[float, float]) -> Check:
    def check(outcome: Outcome, _: list[Calm]) -> None:
        assert outcome.answered == outcome.offered
        assert slowest_s[0] < max(outcome.took_s) < slowest_s[1]

    return check


def degrading(_: Outcome, sky: list[Calm]) -> None:
    before, after = _split(sky[0].log, 5.0)
    assert _share(before, 500) == 0
    assert _share(after, 500) == pytest.approx(0.3, abs=0.1)
    assert sky[0].service_s(4.9) * 3 < sky[0].service_s(5.1)


def quota_goes(_: Outcome, sky: list[Calm]) -> None:
    before, after = _split(sky[0].log, 20.0)
    assert _most_within(before, 1.0) == 5
    assert _share([one for one in after if one[0] > 21], 429) == 0


def slow_start(_: Outcome, sky: list[Calm]) -> None:
    before, after = _split(sky[0].log, 4.0)
    assert _most_within(before, 1.0) <= 4 + 2 * 4
    assert _share(before, 429) > 0.2
    assert _share([one for one in after if one[0] > 15], 429) == 0


def tells_its_bucket(outcome: Outcome, sky: list[Calm]) -> None:
    bucket(20, 100)(outcome, sky)
    headers = sky[0].answer_headers(99.0)
    assert headers["x-ratelimit-limit-requests"] == "100"
    assert 0 <= int(headers["x-ratelimit-remaining-requests"]) <= 100


def token_quota(outcome: Outcome, sky: list[Calm]) -> None:
    """It refuses while it is used up, and what is bigger than the whole bucket."""
    assert 0.05 < _share(sky[0].log, 429) < 0.3
    assert sky[0].refusal(1e6, 61.0) is not None
    assert sky[0].refusal(1e6, 60.0) is None


def _split(log: Log, at: float) -> tuple[Log, Log]:
    return [one for one in log if one[0] < at], [one for one in log if one[0] >= at]


CHECKS: dict[str, Check] = {
    "chance-10": chance(0.1),
    "chance-10-errors-5": chance(0.1, 0.05),
    "quota-20": quota(20),
    "windows": windows(84, 6.0),
    "outage-4": refuses(500, (3, 7)),
    "slow-tail": tail,
    "slow-tail-hedged": tail,
    "throttled-first": refuses(429, (3, 4)),
    "in-flight-8": crowd(8),
    "overload": quota(20),
    "chance-30-no-hint": chance(0.3),
    "chance-50": chance(0.5),
    "chance-20-at-1": chance(0.2),
    "chance-20-at-100": chance(0.2),
    "errors-50": chance(failing=0.5),
    "retry-after-20": refuses(429, (3, 13)),
    "slow-refusals": refuses(429, (3, 13)),
    "quota-halves": quota_changes(8.0, 20, 10),
    "slow-start": slow_start,
    "quota-and-chance": quota(20),
    "rival": bucket(24, 24, rival=True),
    "tokens": token_quota,
    "bucket": bucket(20, 100),
    "bucket-headers": tells_its_bucket,
    "cuts": chance(cut=0.1),
    "doubling": all_answered(slowest_s=(3.0, 20.0)),
    "surge": quota(20),
    "degrading": degrading,
    "cold": all_answered(slowest_s=(20.0, 25.0)),
    "burst": quota(20),
    "chance-30": chance(0.3),
    "chance-10-no-hint": chance(0.1),
    "quota-20-full": quota(20),
    "quota-2": quota(2),
    "quota-100": quota(100),
    "quota-doubles": quota_changes(30.0, 10, 20),
    "windows-double": windows(84, 6.0),
    "windows-10": windows(150, 10.0),
    "minute-840": windows(840, 60.0),
    "minute-600": windows(600, 60.0),
    "bucket-1": bucket(1, 10),
    "tokens-90": chance(),
    "outage-30": refuses(500, (10, 40)),
    "flapping": refuses(500, (5, 7), every_s=10.0),
    "slow-over-8": all_answered(slowest_s=(0.8, 5.0)),
    "burst-16-places": all_answered(slowest_s=(10.0, 20.0)),
    "volleys": chance(0.2),
    "slow-answers": quota(3),
    "blips": refuses(500, (0, 1), every_s=10.0),
    "cold-40": all_answered(slowest_s=(40.0, 45.0)),
    "slow-answers-504": refuses(504, (3, 6), every_s=60.0),
    "retry-after-100": refuses(429, (10, 110)),
    "zeros": all_answered(slowest_s=(0.4, 3.0)),
    "quota-goes": quota_goes,
    "storm": refuses(429, (0, 999)),
    "storm-slow-refusals": refuses(429, (0, 999)),
}


def test_every_weather_has_a_check_of_its_own() -> None:
    assert set(CHECKS) == set(WEATHERS)
    assert set(OTHER_KINDS) <= set(WEATHERS)
    assert len([weather for weather in WEATHERS.values() if weather.usual]) >= 20


@pytest.mark.parametrize("name", WEATHERS)
def test_a_weather_does_what_its_name_says(name: str) -> None:
    outcome, sky = play(WEATHERS[name], Way.SDK, seed=1)

    CHECKS[name](outcome, sky)
    assert outcome.answered + outcome.refused.total() == outcome.offered == WEATHERS[name].calls
    assert all(upstream.in_flight == 0 for upstream in sky)


@pytest.mark.parametrize("way", [Way.HEADGATE, Way.RETRIES])
@pytest.mark.parametrize("name", [name for name in WEATHERS if name not in SLOW])
def test_before_the_real_gates_every_call_ends_and_every_call_at_the_upstream_is_counted(
    name: str, way: Way
) -> None:
    weather = WEATHERS[name]
    outcome, sky = play(weather, way, seed=2)

    answers = sum(status == 200 for upstream in sky for _, status in upstream.log)
    assert outcome.answered + outcome.refused.total() == outcome.offered
    # An answer may be on its way to a caller that has given up.
    assert outcome.answered <= answers
    assert outcome.calls == sum(len(upstream.log) for upstream in sky)
    assert all(upstream.in_flight == 0 for upstream in sky)


def test_two_upstreams_are_both_called_and_the_sdk_alone_knows_the_first_only() -> None:
    _, through = play(WEATHERS["degrading"], Way.HEADGATE, seed=1)
    _, alone = play(WEATHERS["degrading"], Way.SDK, seed=1)

    assert all(upstream.log for upstream in through)
    assert [bool(upstream.log) for upstream in alone] == [True, False]


@pytest.mark.parametrize("way", [Way.SDK, Way.HEADGATE, Way.ORACLE])
def test_the_same_seed_gives_the_same_run_and_another_seed_another(way: Way) -> None:
    first, again, other = (play(WEATHERS["quota-20"], way, seed)[0] for seed in (1, 1, 2))

    assert first == again
    assert first.took_s != other.took_s


def test_all_ways_meet_the_same_load() -> None:
    weather = WEATHERS["tokens"]

    assert list(weather.arrivals(5)) == list(weather.arrivals(5))
    assert all(earlier.at <= later.at for earlier, later in pairwise(weather.arrivals(5)))
    sizes = [arrival.size for seed in range(10) for arrival in weather.arrivals(seed)]
    assert sum(sizes) / len(sizes) == pytest.approx(1.0, abs=0.15)


def test_an_oracle_answers_what_capacity_and_deadlines_allow(figure: Figure) -> None:
    """Twice the load of a quota for 10 s fits into 60 s of patience; 1,650 calls at 20/s do not."""
    overload, sky = play(WEATHERS["overload"], Way.ORACLE, seed=1)
    surge, _ = play(WEATHERS["surge"], Way.ORACLE, seed=1)

    figure("oracle: overload, surge", f"{overload.share:.1%}, {surge.share:.1%}")
    assert overload.answered == overload.offered == overload.calls
    assert _most_within(sky[0].log, 1.0) <= 20
    assert 0.8 < surge.share < 1.0


def test_ratios_compare_latencies_only_where_the_sdk_alone_answers_nearly_everything() -> None:
    full = Outcome(100, [1.0] * 100, calls=100)
    less = Outcome(100, [1.0] * 90, calls=90)

    calm, above = WEATHERS["chance-10"], WEATHERS["windows"]
    fair = compare(calm, [full], [full], [full])
    unfair = compare(calm, [less], [full], [full])
    over = compare(above, [full], [full], [full])
    worse = compare(calm, [full], [less], [full])

    assert (fair.answered, fair.p50, fair.p99, fair.calls, fair.failed) == (1.0, 1.0, 1.0, 1.0, [])
    assert (unfair.p50, unfair.p99, unfair.failed) == (over.p50, over.p99, over.failed) == (None, None, [])
    assert worse.failed == ["answered", "worst seed", "p99"]
