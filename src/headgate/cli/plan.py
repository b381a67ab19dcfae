"""`headgate plan`: how a load will fare under these settings, before it comes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate import wiring
from headgate.cli import plan_options as options
from headgate.cli.options import ConfigOption, JsonOption
from headgate.cli.plan_screen import show_plan
from headgate.cli.screen import note, show_json
from headgate.planner.picture import check_plot, draw
from headgate.planner.plan import Plan, make_plan
from headgate.planner.run import Run
from headgate.planner.sweep import read_change
from headgate.wiring.planning import open_bench


def command(
    *,
    config: ConfigOption = None,
    model: options.ModelOption = None,
    scenario: options.ScenarioOption = None,
    latency: options.LatencyOption = None,
    throttled: options.ThrottledOption = None,
    failing: options.FailingOption = None,
    requests_per_minute: options.UpstreamRpmOption = None,
    tokens_per_minute: options.UpstreamTpmOption = None,
    outages: options.OutageOption = None,
    weather: options.WeatherOption = None,
    jobs: options.JobsOption = None,
    calls: options.CallsOption = None,
    many: options.ManyOption = None,
    per_s: options.PerSecondOption = None,
    burst: options.BurstOption = None,
    every_s: options.EveryOption = None,
    lane: options.LaneOption = None,
    deadline_s: options.DeadlineOption = None,
    come_back: options.ComeBackOption = False,
    tokens_in: options.TokensInOption = None,
    tokens_out: options.TokensOutOption = None,
    finish_by_s: options.FinishByOption = None,
    change: options.SetOption = None,
    swept: options.SweepOption = None,
    plot: options.PlotOption = None,
    runs: options.RunsOption = None,
    seed: options.SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Simulate a load and say which setting to change.

    The load runs in virtual time, on the real gate, retries and worker.
    """
    upstream = {"latency": latency, "throttled": throttled, "failing": failing, "outages": outages}
    limits = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    load = {"jobs": jobs, "calls": calls, "many": many, "per_s": per_s, "burst": burst, "every_s": every_s}
    callers = {"lane": lane and lane.value, "deadline_s": deadline_s, "come_back": come_back or None}
    rest = {"tokens_in": tokens_in, "tokens_out": tokens_out, "finish_by_s": finish_by_s}
    asked = options.gather_scenario(scenario, weather or (), upstream | limits, load | callers, rest)
    if plot is not None:
        check_plot(plot)
    bench = open_bench(wiring.read_settings(config), model)
    bench.check(asked)
    changes, sweep = options.read_changes(change or ()), dict(map(read_change, swept or ()))
    with _quiet():
        plan, run = make_plan(bench, asked, changes=changes, seed=seed, runs=runs, sweep=sweep)
    _show(plan, run, plot, as_json=as_json)


def _show(plan: Plan, run: Run | None, plot: Path | None, *, as_json: bool) -> None:
    if as_json:
        show_json(plan)
    else:
        show_plan(plan)
    if plot is not None:
        draw(plan, run, plot)
        note(f"Drawn: {plot}")


@contextmanager
def _quiet() -> Iterator[None]:
    """What goes wrong in virtual time is the plan's to tell, not the log's."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
