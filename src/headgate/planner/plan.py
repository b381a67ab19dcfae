"""A plan: one question, its answer, what to change, and the sweep that was asked for."""

from collections.abc import Mapping, Sequence

import msgspec

from headgate.planner.advice import Advice, advise
from headgate.planner.run import Bench, Changes, Run
from headgate.planner.scenario import Scenario
from headgate.planner.summary import Summary, play
from headgate.planner.sweep import Row, sweep


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `headgate plan` has found out. With a sweep there is a row per combination instead of advice."""

    model: str
    seed: int
    scenario: Scenario
    settings: Mapping[str, float | None]
    summary: Summary | None = None
    advice: Advice | None = None
    rows: Sequence[Row] = ()


def make_plan(
    bench: Bench, scenario: Scenario, *, changes: Changes, seed: int, runs: int | None
) -> tuple[Plan, Run]:
    """Play it, find what holds it up and what helps; and the first run, for a picture."""
    summary, run = play(bench, scenario, changes=changes, seed=seed, runs=runs)
    advice = advise(bench, scenario, summary, changes=changes, seed=seed, runs=summary.runs)
    settings = bench.values(changes)
    plan = Plan(
        model=bench.model, seed=seed, scenario=scenario, settings=settings, summary=summary, advice=advice
    )
    return plan, run


def make_sweep(
    bench: Bench,
    scenario: Scenario,
    rows: Sequence[Mapping[str, float]],
    *,
    changes: Changes,
    seed: int,
    runs: int | None,
) -> Plan:
    found = list(sweep(bench, scenario, rows, changes=changes, seed=seed, runs=runs))
    return Plan(model=bench.model, seed=seed, scenario=scenario, settings=bench.values(changes), rows=found)
