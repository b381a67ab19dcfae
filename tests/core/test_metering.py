"""Limits per minute and at a time: never more than allowed in any 60 s, and a Retry-After that keeps its word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import RateLimited
from headgate.core.metering import WINDOW_S, Meter, Window

gaps = st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3, 7.5, 59.9, 60.0]) | st.floats(0, 70)


def a_meter(requests: int | None = None, tokens: int | None = None, parallel: int | None = None) -> Meter:
    return Meter(requests=requests, tokens=tokens, parallel=parallel)


def refused(meter: Meter, now: float) -> float:
    with pytest.raises(RateLimited) as refusal:
        meter.enter(now)
    return refusal.value.retry_after_s


@given(st.integers(1, 6), st.lists(gaps, max_size=60))
def test_no_minute_ever_sees_more_and_retry_after_is_true(most: int, waits: list[float]) -> None:
    """Whoever comes back after the time it was told is let in; whoever comes half a second earlier is not."""
    meter, now, entered = a_meter(requests=most), 1000.0, list[float]()
    for gap_s in waits:
        now += gap_s
        try:
            meter.enter(now)
        except RateLimited as refusal:
            if refusal.retry_after_s > 0.5:
                refused(meter, now + refusal.retry_after_s - 0.5)
            now += refusal.retry_after_s
            meter.enter(now)
        entered.append(now)
    for first, start in enumerate(entered):
        assert sum(start <= at < start + WINDOW_S for at in entered[first:]) <= most


def test_retry_after_is_a_minute_at_most() -> None:
    """The header cannot say more."""
    meter = a_meter(requests=3)
    for at in (10.0, 10.05, 10.09):
        meter.enter(at)

    assert refused(meter, 10.09) == pytest.approx(60.0, abs=0.002)
    assert refused(meter, 40.0) == pytest.approx(30.09, abs=0.002)
    meter.enter(70.09)


def test_refused_requests_do_not_count() -> None:
    """A client that knocks all the time gets in as soon as anybody would."""
    meter = a_meter(requests=1)
    meter.enter(0.0)
    for second in range(1, 60):
        refused(meter, float(second))
    meter.enter(60.0)


def test_tokens_are_charged_when_they_are_known_and_close_the_door_then() -> None:
    """A large answer may go over the limit; the next request waits until the minute has room."""
    meter = a_meter(tokens=100)
    meter.enter(0.0)
    meter.enter(0.0)
    meter.used(90, 5.0)
    meter.enter(6.0)
    meter.used(500, 10.0)

    assert refused(meter, 12.0) == pytest.approx(58.0, abs=0.002)
    meter.enter(70.0)


def test_tokens_that_are_unknown_or_none_cost_nothing() -> None:
    meter = a_meter(tokens=1)
    meter.used(0, 1.0)
    meter.used(-5, 1.0)
    meter.enter(1.0)


def test_only_so_many_at_a_time() -> None:
    meter = a_meter(parallel=2)
    meter.enter(0.0)
    meter.enter(0.0)
    assert refused(meter, 0.0) == 1.0
    meter.leave()
    meter.enter(0.0)
    assert meter.in_flight == 2


def test_a_full_line_costs_no_request_of_the_minute() -> None:
    """One refusal must not spend another limit."""
    meter = a_meter(requests=2, parallel=1)
    meter.enter(0.0)
    for _ in range(5):
        refused(meter, 1.0)
    meter.leave()
    meter.enter(2.0)


def test_without_limits_nothing_is_counted_but_who_is_inside() -> None:
    meter = a_meter()
    for _ in range(1000):
        meter.enter(0.0)
    assert meter.in_flight == 1000


def test_memory_is_bounded_however_many_come() -> None:
    """A million requests in a minute are some hundred groups."""
    window = Window(10**9)
    for number in range(200_000):
        now = number * 0.0006
        window.opens_at(now)
        window.add(1, now)

    assert len(window._groups) <= 602


def test_what_is_left_is_told_until_all_is_there_again() -> None:
    """Clients pace themselves by these numbers: they must fall and rise with the window itself."""
    meter = a_meter(requests=10, tokens=100)
    assert [(told.what, told.left, told.reset_s) for told in meter.allowances(0.0)] == [
        ("requests", 10, 0.0),
        ("tokens", 100, 0.0),
    ]
    meter.enter(0.0)
    meter.enter(20.0)
    meter.used(130, 20.0)
    requests, tokens = meter.allowances(30.0)
    assert (requests.most, requests.left, requests.reset_s) == (10, 8, 50.0)
    assert (tokens.left, tokens.reset_s) == (0, 50.0)
    assert [told.left for told in meter.allowances(60.0)] == [9, 0]
    assert [told.left for told in meter.allowances(80.0)] == [10, 100]


def test_a_refusal_says_how_the_key_stands() -> None:
    meter = a_meter(requests=1, parallel=5)
    meter.enter(0.0)
    with pytest.raises(RateLimited) as refusal:
        meter.enter(15.0)
    assert [tuple(told) for told in refusal.value.allowances] == [("requests", 1, 0, 45.0)]
    assert not a_meter(parallel=5).limited


# ---- Jobs --------------------------------------------------------------------------------------------------------


def sent_back(meter: Meter, now: float, *, tokens: int = 10, deferrals: int = 0) -> float:
    with pytest.raises(RateLimited) as refusal:
        meter.enter_job(now, tokens=tokens, deferrals=deferrals)
    return refusal.value.retry_after_s


def test_jobs_that_are_refused_come_back_in_groups_that_a_minute_takes() -> None:
    """All at once they would be claimed and sent back again every minute, a thousand for the sake of five."""
    meter = a_meter(requests=5)
    for _ in range(5):
        meter.enter_job(0.0, tokens=10, deferrals=0)

    waits = [sent_back(meter, 0.0) for _ in range(12)]

    assert waits == [pytest.approx(at, abs=0.1) for at in [60.0] * 5 + [120.0] * 5 + [180.0] * 2]


def test_groups_hold_as_many_tokens_as_a_minute_takes() -> None:
    meter = a_meter(tokens=100)
    meter.enter_job(0.0, tokens=60, deferrals=0)
    meter.used(100, 0.0)

    waits = [sent_back(meter, 0.0, tokens=60) for _ in range(4)]

    assert waits == [pytest.approx(at, abs=0.1) for at in [60.0, 60.0, 120.0, 120.0]]


def test_no_job_is_sent_away_for_more_than_ten_minutes() -> None:
    """Those ahead of it may be cancelled meanwhile."""
    meter = a_meter(requests=1)
    meter.enter_job(0.0, tokens=10, deferrals=0)

    assert max(sent_back(meter, 0.0) for _ in range(100)) == pytest.approx(600.0, abs=0.1)


def test_a_job_that_comes_in_its_turn_and_a_moment_early_keeps_it() -> None:
    meter = a_meter(requests=1)
    meter.enter_job(1.5, tokens=10, deferrals=0)
    for _ in range(5):
        sent_back(meter, 1.5)

    assert sent_back(meter, 60.5) == pytest.approx(1.0, abs=0.1)


def test_a_job_waits_ever_longer_for_a_running_one() -> None:
    """Nobody knows when that ends."""
    meter = a_meter(parallel=1)
    meter.enter_job(0.0, tokens=10, deferrals=0)

    assert [sent_back(meter, 0.0, deferrals=number) for number in (0, 1, 3, 20)] == [1.0, 2.0, 8.0, 60.0]
    meter.leave()
    meter.enter_job(0.0, tokens=10, deferrals=3)


def test_further_calls_of_a_job_count_and_are_not_refused() -> None:
    meter = a_meter(requests=2)
    meter.enter_job(0.0, tokens=10, deferrals=0)
    for _ in range(4):
        meter.add(0.0)

    assert refused(meter, 0.0) == pytest.approx(60.0, abs=0.002)
