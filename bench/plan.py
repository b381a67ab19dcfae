"""What a plan costs and how true it is: 10,000 jobs planned, and plans beside real runs of half a minute.

Run: python bench/plan.py. The real runs are on the real clock, with SQLite on a file with fsync, side by side.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import headgate
from headgate import Context, wiring
from headgate.observe.prices import Prices
from headgate.planner.plan import make_plan
from headgate.planner.scenario import read_scenario
from headgate.planner.summary import play
from headgate.wiring.planning import PlanBench

JOBS: Final = 10_000
MOST_S: Final = 20.0
MOST_OFF: Final = 0.10
USER: Final = [{"role": "user", "content": "Summarise this."}]
LOGNORMAL: Final = {"latency": "lognormal", "seed": 5}
THROTTLED: Final = {"failures": {"throttled": 0.05}, "retry_after_s": 2, "failure_latency_s": 0.1, "seed": 3}
SHAPES: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "slots": ({"slots": 4, "latency_s": 1.5}, 80),
    "slots, latencies by chance": ({"slots": 8, "latency_s": 1.0, **LOGNORMAL}, 240),
    "pacing": ({"slots": 8, "interval_s": 0.25, "latency_s": 1.0}, 120),
    "throttled": ({"slots": 8, "latency_s": 1.0, **THROTTLED}, 120),
}


@headgate.task("asks", model="m")
async def asks(ctx: Context, _given: Any) -> None:
    await ctx.llm.complete(messages=USER)


def _settings(folder: str, upstream: dict[str, Any]) -> dict[str, Any]:
    model = {"upstreams": [{"provider": "simulated", **upstream}]}
    return {"data_dir": folder, "models": {"m": model}}


def _bench(upstream: dict[str, Any]) -> PlanBench:
    return PlanBench(wiring.read_settings(_settings("unused", upstream), env={}), "m", Prices())


async def _really(folder: str, upstream: dict[str, Any], jobs: int) -> float:
    async with headgate.open(_settings(folder, upstream), env={}, tasks=[asks], work=True) as gateway:
        began = time.monotonic()
        asked = [{"task": "asks", "input": number} for number in range(jobs)]
        for handle in await gateway.jobs.submit_many(asked):
            await handle.wait()
        return time.monotonic() - began


async def _all_of_them(folder: str) -> list[float]:
    runs = (_really(str(Path(folder) / name), *SHAPES[name]) for name in SHAPES)
    return await asyncio.gather(*runs)


def plan_many() -> bool:
    """The whole of it: the run, what holds it up, and what helps."""
    scenario = read_scenario({"load": {"jobs": JOBS}, "upstream": {"latency": "1/3"}})
    began, cpu = time.monotonic(), time.process_time()
    plan, _ = make_plan(_bench({"slots": 8}), scenario, changes={}, seed=0)
    took_s = time.monotonic() - began
    assert plan.summary is not None
    print(
        f"{JOBS:,} jobs planned, advice included: {took_s:.1f} s (≤ {MOST_S:g} s), {time.process_time() - cpu:.1f} s of CPU;"
        f" {plan.summary.span_s:,.0f} s of virtual time"
    )
    return took_s <= MOST_S


def beside_real_runs() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        real = dict(zip(SHAPES, asyncio.run(_all_of_them(folder)), strict=True))
    holds = True
    for name, (upstream, jobs) in SHAPES.items():
        summary, _ = play(
            _bench(upstream), read_scenario({"load": {"jobs": jobs}}), changes={}, seed=1, runs=1
        )
        off = summary.span_s / real[name] - 1
        holds = holds and abs(off) <= MOST_OFF
        print(
            f"{name}: {summary.span_s:.1f} s planned, {real[name]:.1f} s real: {off:+.1%} (±{MOST_OFF:.0%})"
        )
    return holds


if __name__ == "__main__":
    results = [plan_many(), beside_real_runs()]
    sys.exit(0 if all(results) else 1)
