"""A plan's finishing time beside that of a real run: the same settings, a real clock, the real store on the disk."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Figure

import headgate
from headgate import Context, wiring
from headgate.planner.scenario import read_scenario
from headgate.planner.summary import play
from headgate.wiring.planning import open_bench

USER = [{"role": "user", "content": "Summarise this."}]
MOST_OFF = 0.10
SHAPES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "slots": ({"slots": 4, "latency_s": 0.5}, {"jobs": 32}),
    "slots, latencies by chance": (
        {"slots": 4, "latency_s": 0.4, "latency": "lognormal", "seed": 5},
        {"many": 40},
    ),
    "pacing": ({"slots": 8, "interval_s": 0.1, "latency_s": 0.3}, {"many": 36}),
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def real_s(folder: Path) -> dict[str, float]:
    """How long each takes; they mostly sleep, so they run side by side."""

    async def all_of_them() -> list[float]:
        return await asyncio.gather(
            *(_really(_settings(shape, folder), SHAPES[shape][1]) for shape in SHAPES)
        )

    return dict(zip(SHAPES, asyncio.run(all_of_them()), strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_plan_says_when_a_real_run_will_be_done(
    shape: str, folder: Path, real_s: dict[str, float], figure: Figure
) -> None:
    """Who trusts a plan changes a production system by it."""
    bench = open_bench(wiring.read_settings(_settings(shape, folder), env={}), "m")
    planned, _ = play(bench, read_scenario({"load": SHAPES[shape][1]}), changes={}, seed=1, runs=1)

    off = planned.span_s / real_s[shape] - 1
    figure(
        f"plan against a real run: {shape}",
        f"{planned.span_s:.2f} s planned, {real_s[shape]:.2f} s real: {off:+.1%} (±{MOST_OFF:.0%})",
    )
    assert planned.lost == 0
    assert abs(off) <= MOST_OFF
