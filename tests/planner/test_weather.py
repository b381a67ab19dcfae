"""Weathers by name: what each stands for, how calls fare in it with and without the gateway, and what the gate learns."""

from typing import Any

import pytest
from planner.plan_stage import bench_of, scenario_of

from headgate.planner.plan import make_plan
from headgate.planner.pressure import tightest
from headgate.planner.summary import Summary, play, play_alone
from headgate.planner.weather import WEATHERS, read_weather

STEADY = {"calls": 300, "per_s": 15}
LATENCY = "0.42/1.05"


def _played(load: Any, *weathers: str, runs: int = 2) -> tuple[Summary, Summary]:
    """Through the gateway, and with the SDK alone."""
    fields: dict[str, Any] = {}
    for weather in weathers:
        fields |= read_weather(weather)[1]
    bench, scenario = bench_of(), scenario_of(load, LATENCY, **fields)
    summary, _ = play(bench, scenario, changes={}, seed=1, runs=runs)
    return summary, play_alone(bench, scenario, changes={}, seed=1, runs=runs)


def _limit(summary: Summary) -> str:
    (learned,) = summary.learned
    return learned.limit


# ---- Names and numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("chance=0.1", {"throttled": 0.1, "retry_after_s": 1}),
        ("errors=0.25", {"failing": 0.25}),
        ("quota=20", {"requests_per_second": 20, "retry_after_s": 1}),
        ("windows=84/6", {"requests_per_window": (84, 6)}),
        ("windows=600/1min", {"requests_per_window": (600, 60)}),
        (" in-flight = 8 ", {"max_in_flight": 8, "retry_after_s": 1}),
        ("outage=4", {"outages": [(3, 7)]}),
        ("outage=2min", {"outages": [(3, 123)]}),
    ],
)
def test_a_weather_stands_for_fields_of_the_upstream(text: str, fields: dict[str, Any]) -> None:
    assert read_weather(text)[1] == fields


@pytest.mark.parametrize("name", WEATHERS)
@pytest.mark.parametrize("number", ["", "0", "-1", "x", "nan", "inf", "1/2/3", "84/0", "84/-6", "1e9"])
def test_a_wrong_number_is_told_with_a_right_one(name: str, number: str) -> None:
    with pytest.raises(ValueError, match=f"write {WEATHERS[name].example}, ") as caught:
        read_weather(f"{name}={number}")
    assert f"'{name}={number}'" in str(caught.value)


@pytest.mark.parametrize("text", ["fog=1", "", "=3", "Quota=1"])
def test_an_unknown_weather_is_told_with_all_that_are_known(text: str) -> None:
    with pytest.raises(ValueError, match="is no weather") as caught:
        read_weather(text)
    assert all(weather.example in str(caught.value) for weather in WEATHERS.values())


def test_each_example_is_right() -> None:
    for name, weather in WEATHERS.items():
        assert read_weather(weather.example)[0] == name


# ---- With the gateway, and with the SDK alone -------------------------------------------------------------


@pytest.mark.parametrize("name", WEATHERS)
def test_in_every_weather_the_gateway_answers_at_least_what_the_sdk_alone_does(name: str) -> None:
    summary, alone = _played(STEADY, WEATHERS[name].example)
    assert alone.answered <= summary.answered == 300
    assert summary.calls / summary.answered <= 1.02 * alone.calls / alone.answered
    assert (alone.items, alone.runs) == (summary.items, summary.runs)


def test_refusals_by_chance_are_retried_and_set_no_limit() -> None:
    summary, alone = _played(STEADY, "chance=0.1")
    assert _limit(summary) == ""
    assert summary.throttled == pytest.approx(33, abs=10)
    assert summary.p50_s == pytest.approx(alone.p50_s, rel=0.15)
    assert summary.learned[0].refused_share == pytest.approx(0.1, abs=0.06)


def test_a_quota_is_learned_in_starts_a_second() -> None:
    """Twice the quota: the SDK gives up, the gateway starts as many as pass."""
    summary, alone = _played({"calls": 400, "per_s": 40}, "quota=20")
    words = _limit(summary).split()
    assert words[:2] == ["limited", "to"]
    assert 15 <= float(words[2]) <= 23
    assert words[3:] == ["starts/s:", "refusals", "began", "above", "it"]
    assert summary.learned[0].limited_runs == 2
    assert alone.answered < 0.75 * summary.answered == 300
    assert alone.throttled > 5 * summary.throttled


def test_calls_in_flight_are_learned_as_such() -> None:
    """The number is what passes, not the first that is refused."""
    summary, _ = _played(STEADY, "in-flight=8")
    assert _limit(summary) == "limited to 8 calls in flight: refusals began above it"


def test_calls_of_one_size_are_limited_in_starts_and_not_in_tokens() -> None:
    """A stranger who reads of tokens would look for a quota of tokens."""
    summary, _ = _played(STEADY, "quota=10", "chance=0.2", runs=1)
    assert "starts/s" in _limit(summary)


def test_an_outage_is_waited_out() -> None:
    summary, alone = _played(STEADY, "outage=4")
    assert (summary.answered, summary.throttled) == (300, 0)
    assert alone.answered < 290


def test_weathers_add_up() -> None:
    """A quota with failures on top of it."""
    summary, alone = _played({"calls": 300, "per_s": 20}, "quota=10", "errors=0.2")
    assert alone.throttled > 100
    assert alone.calls - alone.throttled - alone.answered > 20
    assert summary.answered > alone.answered


def test_the_sdk_alone_gives_up_after_two_retries_and_obeys_the_hint() -> None:
    """Nothing passes: three calls each, a second apart."""
    _, alone = _played({"calls": 10, "deadline_s": 60}, "chance=1")
    assert (alone.answered, alone.calls, alone.throttled) == (0, 30, 30)
    assert (alone.p50_s, alone.p99_s) == (None, None)
    assert alone.ends == {"refused": 10}
    # Three refusals of 0.2 s each, and the two hints between them.
    assert alone.span_s == pytest.approx(3 * 0.2 + 2 * 1.0)


def test_a_caller_s_deadline_ends_the_sdk_s_call_too() -> None:
    _, alone = _played({"calls": 10, "deadline_s": 1}, "chance=1")
    assert alone.ends == {"expired": 10}
    assert alone.span_s == pytest.approx(1)


def test_a_model_s_deadline_holds_for_both() -> None:
    bench, scenario = bench_of(), scenario_of({"calls": 10}, LATENCY, throttled=1)
    alone = play_alone(bench, scenario, changes={"total_s": 1}, seed=1, runs=1)
    assert alone.ends == {"expired": 10}


@pytest.mark.parametrize(
    ("load", "compared"),
    [
        ({"calls": 20}, True),
        ([{"calls": 10}, {"calls": 10, "lane": "batch"}], True),
        ({"jobs": 20}, False),
        ({"many": 20}, False),
        ({"calls": 20, "come_back": True}, False),
        ([{"calls": 20}, {"jobs": 20}], False),
    ],
)
def test_only_what_the_sdk_alone_could_do_is_compared(load: Any, compared: bool) -> None:
    scenario = scenario_of(load, LATENCY, **read_weather("quota=20")[1])
    plan, _ = make_plan(bench_of(), scenario, changes={}, seed=1, runs=1)
    assert (plan.alone is not None) is compared
    assert plan.summary is not None
    assert plan.summary.learned


def test_an_upstream_that_refuses_nothing_is_not_compared() -> None:
    plan, _ = make_plan(bench_of(), scenario_of({"calls": 20}), changes={}, seed=0)
    assert plan.alone is None


def test_answers_are_timed_from_the_arrival() -> None:
    summary, _ = play(bench_of(slots=1), scenario_of({"calls": 4}, 1.0), changes={}, seed=0, runs=1)
    assert summary.p50_s == pytest.approx(2, abs=0.01)
    assert summary.p99_s == pytest.approx(4, abs=0.01)


def test_the_same_seed_gives_the_same_comparison_and_another_weather_another() -> None:
    first, again, other = (_played(STEADY, f"chance={share}", runs=1) for share in (0.3, 0.3, 0.4))
    assert first == again
    assert first[1].calls < other[1].calls


@pytest.mark.parametrize(
    ("weather", "load", "limit"),
    [
        ("quota=10", {"calls": 300, "per_s": 20}, "upstream requests"),
        ("windows=60/6", {"calls": 300}, "upstream requests"),
        ("in-flight=4", {"calls": 300, "per_s": 15}, "upstream calls in flight"),
    ],
)
def test_an_upstream_s_limit_is_blamed_for_the_time_that_it_takes(
    weather: str, load: Any, limit: str
) -> None:
    summary, _ = _played(load, weather, runs=1)
    blamed = tightest(summary.pressures)
    assert blamed is not None
    assert blamed.limit == limit
