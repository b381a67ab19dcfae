"""Scenarios: what is accepted, and what every mistake is told."""

from typing import Any

import pytest

from headgate.core.errors import SettingsError
from headgate.planner.scenario import read_latency, read_scenario, read_seconds
from headgate.planner.sweep import combinations, read_change


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("2.5s", 2.5), ("800 ms", 0.8), ("15min", 900), ("2h", 7200), (".5", 0.5)]
)
def test_lengths_of_time_have_units(text: str, seconds: float) -> None:
    assert read_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1", "5 parsecs", "1e3", "1.2.3", "5s/"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no length of time"):
        read_latency(text, 0.0, 1)


@pytest.mark.parametrize("text", ["12/4", "0/4", "0 tokens/s"])
def test_a_latency_must_make_sense(text: str) -> None:
    with pytest.raises(ValueError, match="a latency"):
        read_latency(text, 0.0, 1)


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({}, "load"),
        ({"load": []}, "at least one"),
        ({"load": {}}, "exactly one of jobs, calls and many"),
        ({"load": {"jobs": 1, "calls": 1}}, "exactly one of jobs, calls and many"),
        ({"load": {"jobs": 0}}, "load.jobs"),
        ({"load": {"jobs": "many"}}, "load.jobs"),
        ({"load": {"jobs": 5, "lanes": 2}}, "lanes"),
        ({"load": {"jobs": 5, "deadline_s": 2}}, "no deadline"),
        ({"load": {"jobs": 5, "come_back": True}}, "only calls can come back"),
        ({"load": {"many": 5, "per_s": 2}}, "arrives at once"),
        ({"load": {"calls": 5, "burst": 2}}, "belong together"),
        ({"load": {"calls": 5, "burst": 2, "every_s": 1, "per_s": 1}}, "not both"),
        ({"load": [{"jobs": 60_000}, {"calls": 60_000}]}, "at most 100,000"),
        ({"load": {"jobs": 1}, "upstream": {}}, "latency"),
        ({"load": {"jobs": 1}, "upstream": {"latency": 1, "throttled": 2}}, "upstream.throttled"),
        ({"load": {"jobs": 1}, "upstream": {"latency": 1, "throttled": 0.6, "failing": 0.6}}, "at most 1"),
        ({"load": {"jobs": 1}, "upstream": {"latency": 1, "outages": [[5, 2]]}}, "end after its start"),
        ({"load": {"jobs": 1}, "upstream": {"latency": "soon"}}, "length of time"),
        ({"load": {"jobs": 1}, "upstream": {"latency": 1, "requests_per_second": 0}}, "requests_per_second"),
        ({"load": {"jobs": 1}, "upstream": {"latency": 1, "max_in_flight": 0}}, "max_in_flight"),
        (
            {"load": {"jobs": 1}, "upstream": {"latency": 1, "requests_per_window": [84]}},
            "requests_per_window",
        ),
        (
            {"load": {"jobs": 1}, "upstream": {"latency": 1, "requests_per_window": [84, 0]}},
            "requests_per_window",
        ),
        (
            {"load": {"jobs": 1}, "upstream": {"latency": 1, "requests_per_window": "84/6"}},
            "requests_per_window",
        ),
        ({"load": {"jobs": 1}, "finish_by_s": 0}, "finish_by_s"),
        ({"load": {"jobs": 1}, "finish_by_s": float("nan")}, "finish_by_s"),
        ({"load": {"calls": 1, "per_s": float("nan")}}, "load.per_s"),
        ({"load": {"jobs": 1}, "upstream": {"latency": float("nan")}}, "length of time"),
        ({"load": {"jobs": 1}, "upstream": {"latency": 1, "failing": float("nan")}}, "upstream.failing"),
    ],
)
def test_every_mistake_is_told_with_its_place(tree: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_scenario(tree)
    assert str(caught.value).startswith("the scenario: ")
    assert told in str(caught.value)


def test_a_part_of_a_scenario_is_the_same_question_smaller() -> None:
    scenario = read_scenario({"load": [{"jobs": 100}, {"calls": 40, "per_s": 1}]})
    assert [load.count for load in scenario.cut(0.25).loads] == [25, 10]
    assert [load.count for load in scenario.cut(0.001).loads] == [1, 1]


def test_what_is_left_to_chance_is_known() -> None:
    """Nobody needs twenty runs of what is always the same."""
    assert not read_scenario({"load": {"jobs": 5}, "upstream": {"latency": 5}}).by_chance
    assert read_scenario({"load": {"jobs": 5}, "upstream": {"latency": "5/6"}}).by_chance
    assert read_scenario({"load": {"calls": 5, "per_s": 1}, "upstream": {"latency": 5}}).by_chance
    for limit in ({"requests_per_second": 2}, {"requests_per_window": [2, 6]}, {"max_in_flight": 2}):
        assert read_scenario({"load": {"jobs": 5}, "upstream": {"latency": 5, **limit}}).by_chance


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("slots=4", [4]),
        ("slots=1..4", [1, 2, 3, 4]),
        ("interval_s=0,1.25", [0, 1.25]),
        ("depth=1..2,8", [1, 2, 8]),
    ],
)
def test_a_sweep_has_values_and_ranges(text: str, values: list[float]) -> None:
    assert read_change(text) == (text.partition("=")[0], values)


@pytest.mark.parametrize(
    "text",
    [
        "slots",
        "slots=",
        "=4",
        "slots=a",
        "slots=8..1",
        "slots=1..2.5",
        "slots=1..999",
        "slots=nan",
        "slots=inf",
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"slots|=4"):
        read_change(text)


def test_sweeps_combine_up_to_a_bound() -> None:
    assert combinations({"slots": [1, 2], "depth": [5]}) == [
        {"slots": 1, "depth": 5},
        {"slots": 2, "depth": 5},
    ]
    with pytest.raises(SettingsError, match="combinations"):
        combinations({"slots": list(range(1, 100)), "depth": [1, 2, 3]})
