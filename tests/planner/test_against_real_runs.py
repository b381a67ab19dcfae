"""A plan's finishing time beside that of a real run: the same settings, a real clock, the real store on the disk."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conftest import Figure

import headgate
from headgate import Context, wiring
from headgate.observe.prices import Prices
from headgate.planner.scenario import read_scenario
from headgate.planner.summary import play
from headgate.wiring.planning import PlanBench

USER = [{"role": "user", "content": "Summarise this."}]
MOST_OFF = 0.10
SHAPES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "slots": ({"slots": 4, "latency_s": 0.5}, {"jobs": 32}),
    "slots, latencies by chance": (
        {"slots": 4, "latency_s": 0.4, "latency": "lognormal", "seed": 5},
        {"many": 40},
    ),
    "pacing": ({"slots": 8, "interval_s": 0.25, "latency_s": 0.5}, {"many": 14}),
    "throttled": (
        {
            "slots": 4,
            "latency_s": 0.3,
            "failures": {"throttled": 0.1},
            "retry_after_s": 0.5,
            "failure_latency_s": 0.1,
            "seed": 3,
        },
        {"jobs": 36},
    ),
    "a queue of callers": ({"slots": 3, "depth": 0, "latency_s": 0.3}, {"calls": 36}),
}


@headgate.task("asks", model="m")
async def asks(ctx: Context, _given: Any) -> None:
    await ctx.llm.complete(messages=USER)


def _settings(shape: str, folder: Path) -> dict[str, Any]:
    model = {"upstreams": [{"provider": "simulated", **SHAPES[shape][0]}], "retry": {"jitter": "none"}}
    return {"data_dir": str(folder / shape), "models": {"m": model}}


async def _really(settings: dict[str, Any], load: dict[str, int]) -> float:
    async with headgate.open(settings, env={}, tasks=[asks], work=True) as gateway:
        began = time.monotonic()
        match load:
            case {"jobs": count}:
                asked = [{"task": "asks", "input": number} for number in range(count)]
                for handle in await gateway.jobs.submit_many(asked):
                    await handle.wait()
            case {"many": count}:
                await gateway.complete_many([{"messages": USER}] * count, model="m")
            case {"calls": count}:
                await asyncio.gather(*(gateway.complete(model="m", messages=USER) for _ in range(count)))
        return time.monotonic() - began


async def _side_by_side(shapes: Iterable[str], folder: Path) -> dict[str, float]:
    """How long each takes; they mostly sleep."""
    runs = (_really(_settings(shape, folder), SHAPES[shape][1]) for shape in shapes)
    return dict(zip(shapes, await asyncio.gather(*runs), strict=True))


def _planned(shape: str, folder: Path) -> float:
    bench = PlanBench(wiring.read_settings(_settings(shape, folder), env={}), "m", Prices())
    summary, _ = play(bench, read_scenario({"load": SHAPES[shape][1]}), changes={}, seed=1, runs=1)
    assert summary.lost == 0
    return summary.span_s


def test_the_plan_says_when_a_real_run_will_be_done(tmp_path: Path, figure: Figure) -> None:
    """Who trusts a plan changes a production system by it.

    A busy machine lengthens a real run and never shortens one: whoever is off has another go.
    """
    planned_s = {shape: _planned(shape, tmp_path / "planned") for shape in SHAPES}
    real_s = asyncio.run(_side_by_side(SHAPES, tmp_path / "real"))
    for go in ("second", "third"):
        off = [shape for shape in SHAPES if planned_s[shape] < (1 - MOST_OFF) * real_s[shape]]
        real_s |= asyncio.run(_side_by_side(off, tmp_path / go))

    errors = {shape: planned_s[shape] / real_s[shape] - 1 for shape in SHAPES}
    for shape in SHAPES:
        told = f"{planned_s[shape]:.2f} s planned, {real_s[shape]:.2f} s real"
        figure(f"plan against a real run: {shape}", f"{told}: {errors[shape]:+.1%} (±{MOST_OFF:.0%})")
    assert {shape: error for shape, error in errors.items() if abs(error) > MOST_OFF} == {}
