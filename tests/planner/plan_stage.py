"""A bench for plans of the model `m`, without the price list."""

from typing import Any

from headgate import wiring
from headgate.observe.prices import Prices
from headgate.planner.scenario import Scenario, read_scenario
from headgate.planner.summary import Summary, play
from headgate.wiring.planning import PlanBench


def bench_of(
    *more: dict[str, Any], jobs: dict[str, Any] | None = None, retry: Any = None, **upstream: Any
) -> PlanBench:
    """The first upstream has these settings; `more` are those behind it."""
    first = {"provider": "openai", "model": "large", "api_key": "x", **upstream}
    model = {"upstreams": [first, *more], **({"retry": retry} if retry else {})}
    return PlanBench(
        wiring.read_settings({"models": {"m": model}, "jobs": jobs or {}}, env={}), "m", Prices()
    )


def scenario_of(load: Any, latency: float | str = 1.0, **upstream: Any) -> Scenario:
    return read_scenario({"load": load, "upstream": {"latency": latency, **upstream}})


def planned(bench: PlanBench, scenario: Scenario, *, runs: int = 1, **changes: float) -> Summary:
    return play(bench, scenario, changes=changes, seed=0, runs=runs)[0]
