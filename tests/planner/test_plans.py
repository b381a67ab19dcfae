"""What a plan says is what the parts do: times that can be worked out by hand, and every kind of bad weather."""

import time

import msgspec
import pytest
from conftest import Figure
from planner.plan_stage import bench_of, planned, scenario_of

from headgate.planner.books import Books, UpstreamBooks
from headgate.planner.plan import make_plan
from headgate.planner.pressure import tightest
from headgate.planner.run import run_once
from headgate.planner.scenario import read_scenario
from headgate.planner.summary import chance, percentile


@pytest.mark.parametrize("kind", ["jobs", "many", "calls"])
def test_slots_decide_when_nothing_else_does(kind: str) -> None:
    """20 calls of 1 s through 4 slots are 5 s, whoever makes them."""
    summary = planned(bench_of(slots=4, depth=0), scenario_of({kind: 20}))
    assert summary.span_s == pytest.approx(5.0, abs=0.01)
    assert summary.ends == {"answered": 20}
    assert summary.calls == 20
    assert tightest(summary.pressures).limit == "slots"  # type: ignore[union-attr]  # None fails as well


def test_pacing_decides_when_there_are_slots_enough() -> None:
    summary = planned(bench_of(slots=8, interval_s=0.5), scenario_of({"many": 20}))
    assert summary.span_s == pytest.approx(19 * 0.5 + 1)
    assert tightest(summary.pressures).limit == "interval_s"  # type: ignore[union-attr]  # as above


def test_waits_are_told_by_lane() -> None:
    """Interactive goes first: whoever shares a gate wants to know who pays for it."""
    load = [{"calls": 20, "burst": 2, "every_s": 2}, {"jobs": 20}]
    summary = planned(bench_of(slots=2, reserved_slots=1), scenario_of(load))
    waits = {found.lane: found.p50_s for found in summary.waits}
    assert set(waits) == {"interactive", "batch"}
    assert waits["interactive"] < 1 < waits["batch"]


def test_a_full_queue_refuses_and_who_comes_back_loses_nothing() -> None:
    bench = bench_of(slots=1, depth=3)
    leaving = planned(bench, scenario_of({"calls": 10}))
    assert leaving.ends == {"answered": 4, "refused": 6}
    assert leaving.refusals == {"queue_full": 6}
    back = planned(bench, scenario_of({"calls": 10, "come_back": True}))
    assert back.ends == {"answered": 10}
    assert back.refusals["queue_full"] >= 6


def test_two_loads_of_one_kind_do_not_get_into_each_other_s_way() -> None:
    summary = planned(bench_of(slots=4), scenario_of([{"many": 8}, {"many": 8}]))
    assert summary.ends == {"answered": 16}
    assert summary.span_s == pytest.approx(4, abs=0.05)


def test_a_deadline_that_passes_is_counted() -> None:
    summary = planned(bench_of(slots=1, depth=0), scenario_of({"calls": 10, "deadline_s": 4.5}))
    assert summary.ends["answered"] == 4
    assert summary.lost == 6
    assert summary.missed_deadline is not None
    assert summary.missed_deadline[0] == summary.ends["expired"] / 10


def test_the_upstream_s_own_limit_throttles_and_pacing_at_it_spares_the_pauses() -> None:
    """30 a minute: 90 calls cannot take less than two minutes, and a call refused is a call made in vain."""
    bench = bench_of(slots=4)
    limited = scenario_of({"many": 90}, latency=0.5, requests_per_minute=30)
    blind = planned(bench, limited)
    assert 120 <= blind.span_s <= 135
    assert blind.calls > 90
    paced = planned(bench, limited, interval_s=2)
    assert paced.calls == 90
    assert paced.span_s <= 180


def test_tokens_count_too() -> None:
    scenario = msgspec.structs.replace(
        scenario_of({"many": 30}, latency=0.5, tokens_per_minute=10_000), tokens_in=800, tokens_out=200
    )
    assert 120 <= planned(bench_of(slots=4), scenario).span_s <= 150


def test_an_outage_falls_back_where_there_is_a_fallback() -> None:
    spare = {"provider": "openai", "model": "spare", "api_key": "x", "slots": 4}
    scenario = read_scenario(
        {
            "load": {"many": 40},
            "upstreams": {
                "openai/large": {"latency": 1, "outages": [[2, 60]]},
                "openai/spare": {"latency": 2},
            },
        }
    )
    summary = planned(bench_of(spare, slots=4), scenario)
    assert summary.ends == {"answered": 40}
    assert summary.fallbacks > 10
    assert summary.span_s < 40


def test_nobody_waits_for_a_first_upstream_that_is_down_longer_than_the_patience() -> None:
    """The second is idle: two seconds of patience are for the whole call, not for each probe of the first."""
    spare = {"provider": "openai", "model": "spare", "api_key": "x"}
    scenario = read_scenario(
        {
            "load": {"calls": 300, "per_s": 5},
            "upstreams": {
                "openai/large": {"latency": 0.8, "outages": [[10, 600]]},
                "openai/spare": {"latency": 0.9},
            },
        }
    )
    summary = planned(bench_of(spare), scenario)
    assert summary.ends == {"answered": 300}
    assert summary.p99_s is not None
    assert summary.p99_s < 2.0 + 0.9 + 1.0


def test_throttled_jobs_are_put_back_and_lose_no_attempt() -> None:
    scenario = scenario_of({"jobs": 40}, throttled=0.2, retry_after_s=2)
    summary = planned(bench_of(slots=4), scenario)
    assert summary.ends == {"answered": 40}
    assert summary.put_back >= 1
    assert summary.retries == 0
    assert summary.calls > 40


def test_jobs_that_use_up_their_attempts_are_dead_letters() -> None:
    summary = planned(
        bench_of(slots=4, jobs={"retry": {"max_attempts": 1}}), scenario_of({"jobs": 50}, failing=0.3)
    )
    assert summary.ends["dead letters"] == summary.lost > 0


def test_the_same_seed_tells_the_same_and_another_does_not() -> None:
    """A plan that changes by itself could not be argued about."""
    bench = bench_of(slots=4)
    scenario = scenario_of({"jobs": 60}, latency="1/3", throttled=0.05, failing=0.05)
    spans = [run_once(bench, scenario, changes={}, seed=seed).span_s for seed in (1, 1, 2)]
    assert spans[0] == spans[1] != spans[2]


def test_a_speed_is_a_latency() -> None:
    scenario = scenario_of({"many": 10}, latency="100 tokens/s", first_token_s=1.0)
    assert planned(bench_of(slots=1), scenario).span_s == pytest.approx(10 * (1 + 200 / 100))


def test_median_and_p99_are_what_the_calls_take() -> None:
    run = run_once(bench_of(slots=4), scenario_of({"many": 1000}, latency="2/9"), changes={}, seed=0)
    took = [item.ended_at - item.called_at for item in run.books.items]
    assert percentile(took, 0.5) == pytest.approx(2, rel=0.05)
    assert percentile(took, 0.99) == pytest.approx(9, rel=0.2)


def test_the_chance_to_be_late_keeps_its_doubt() -> None:
    """No miss in 20 runs is no promise: Wilson's interval at 0 of 20 ends at 16 %."""
    never = chance(0, 20)
    assert (never.low, round(never.high, 2)) == (0.0, 0.16)
    half = chance(10, 20)
    assert (round(half.low, 2), round(half.high, 2)) == (0.3, 0.7)


def test_late_runs_are_counted_over_the_seeds() -> None:
    scenario = msgspec.structs.replace(scenario_of({"many": 20}, latency="1/4"), finish_by_s=13.0)
    summary = planned(bench_of(slots=2), scenario, runs=20)
    assert summary.late is not None
    assert 0 < summary.late.times < 20
    assert summary.late.low < summary.late.times / 20 < summary.late.high


# ---- Advice -----------------------------------------------------------------------------------------


def test_the_advice_doubles_what_is_short_until_something_else_is() -> None:
    """Two slots are short; with four the spacing is the limit, and more slots are no gain."""
    plan, _ = make_plan(bench_of(slots=2, interval_s=0.25), scenario_of({"many": 80}), changes={}, seed=0)
    assert plan.advice is not None
    steps = [(step.settings, round(step.now.span_s)) for step in plan.advice.steps]
    assert steps == [({"slots": 4}, 21)]
    assert tightest(plan.advice.steps[-1].now.pressures) is not None
    assert [change.setting for change in plan.advice.in_vain] == ["interval_s"]


def test_limits_that_are_tight_at_once_are_eased_together() -> None:
    plan, _ = make_plan(bench_of(slots=2, interval_s=0.5), scenario_of({"many": 40}), changes={}, seed=0)
    assert plan.advice is not None
    assert plan.advice.steps[0].settings == {"slots": 4, "interval_s": 0.25}
    assert plan.advice.steps[0].now.span_s < 0.6 * plan.advice.base.span_s


def test_nothing_is_advised_where_the_load_itself_is_the_limit() -> None:
    plan, _ = make_plan(
        bench_of(slots=8), scenario_of({"calls": 20, "burst": 1, "every_s": 5}), changes={}, seed=0
    )
    assert plan.advice is not None
    assert (list(plan.advice.steps), list(plan.advice.others)) == ([], [])


def test_a_long_load_is_tried_by_its_first_part() -> None:
    plan, _ = make_plan(bench_of(slots=8, depth=0), scenario_of({"calls": 1000}), changes={}, seed=0, runs=1)
    assert plan.summary is not None
    assert plan.summary.items == 1000
    assert plan.advice is not None
    assert plan.advice.tried_items == plan.advice.base.items == 800


def test_what_the_settings_forbid_is_not_tried() -> None:
    """Halving the slots would leave fewer than are reserved, doubling them more than a gate may have."""
    bench = bench_of(slots=60_000, reserved_slots=60_000, retry={"max_attempts": 90})
    plan, _ = make_plan(
        bench, scenario_of({"calls": 30}, throttled=0.9, retry_after_s=1), changes={}, seed=0, runs=1
    )
    assert plan.advice is not None
    assert not {"slots", "max_attempts"} & {change.setting for change in plan.advice.in_vain}


# ---- Books ------------------------------------------------------------------------------------------


def test_pauses_that_overlap_count_once() -> None:
    now = 0.0
    books, upstream = Books(lambda: now, 1), UpstreamBooks()
    books._pause(upstream, 10)
    now = 5.0
    books._pause(upstream, 8)
    assert upstream.paused_s == 13


def test_a_thousand_jobs_are_planned_in_a_moment(figure: Figure) -> None:
    """Through the real worker and store. Nobody plans what takes minutes to plan; 10,000 are in bench/plan.py."""
    began = time.process_time()
    summary = planned(bench_of(slots=8), scenario_of({"jobs": 1000}, latency="1/3"))
    took_s = time.process_time() - began
    figure("1,000 jobs planned", f"{took_s:.2f} s of CPU (≤ 3 s)")
    assert summary.ends == {"answered": 1000}
    assert took_s <= 3
