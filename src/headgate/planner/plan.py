"""A plan: one question, its answer, what to change, and the sweep that was asked for."""

from collections.abc import Mapping, Sequence

import msgspec

from headgate.planner.advice import Advice, advise
from headgate.planner.run import Bench, Changes, Run
from headgate.planner.scenario import Scenario
from headgate.planner.summary import Summary, play, play_alone
from headgate.planner.sweep import Row, combinations, play_rows


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `headgate plan` has found out. With a sweep there is a row per combination instead of advice."""

    model: str
    seed: int
    scenario: Scenario
    settings: Mapping[str, float | None]
    summary: Summary | None = None
    alone: Summary | None = None
    """The same calls with the official SDK and no gateway, where an upstream that refuses calls is described."""
    advice: Advice | None = None
    rows: Sequence[Row] = ()


def make_plan(
    bench: Bench,
    scenario: Scenario,
    *,
    changes: Changes,
    seed: int,
    runs: int | None = None,
    sweep: Mapping[str, Sequence[float]] | None = None,
) -> tuple[Plan, Run | None]:
    """Play it and find what helps, and keep the first run for a picture; or play every combination of a sweep."""
    plan = Plan(model=bench.model, seed=seed, scenario=scenario, settings=bench.values(changes))
    if sweep:
        rows = list(play_rows(bench, scenario, combinations(sweep), changes=changes, seed=seed, runs=runs))
        return msgspec.structs.replace(plan, rows=rows), None
    summary, run = play(bench, scenario, changes=changes, seed=seed, runs=runs)
    advice = advise(bench, scenario, summary, changes=changes, seed=seed)
    alone = None
    if scenario.compares:
        alone = play_alone(bench, scenario, changes=changes, seed=seed, runs=summary.runs)
    return msgspec.structs.replace(plan, summary=summary, alone=alone, advice=advice), run
