"""Retries never storm: what an upstream gets to bear while it fails, and what callers get meanwhile."""

import math
from collections.abc import Sequence

import pytest
from conftest import LONG_RUNS, Figure
from stage import USER, Stage, Visit, open_loop, set_stage

from headgate.planner import virtual
from headgate.planner.virtual import World

PER_S = 50
FIRST_S = 60
THEN_S = 600 if LONG_RUNS else 150


async def _load(stage: Stage, seconds: float) -> list[Visit]:
    start = stage.now
    arrivals = [start + index / PER_S for index in range(int(seconds * PER_S))]
    return await open_loop(stage, arrivals, lambda gateway: gateway.complete(model="m", messages=USER))


def _amplification(calls: int, visits: Sequence[Visit]) -> float:
    return calls / len(visits)


SHARES = [0.1, 0.2, 0.22, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
"""Of calls that fail; the bucket's theoretical peak of amplification lies at 0.22."""
BREAKER_ON_FOR_LONG = [0.1, 0.22, 0.5, 1.0]


async def _amplified(
    world: World, share: float, *, breaker: bool, then_s: float
) -> tuple[float, float, float]:
    """Provider calls per request in the first minute and after it, and the share of requests served."""
    stage = set_stage(
        world,
        {
            "slots": 200,
            "depth": 0,
            "latency_s": 0.1,
            "failures": {"transient": share},
            "breaker": breaker,
        },
    )
    first = await _load(stage, FIRST_S)
    first_calls = stage.provider.calls
    then = await _load(stage, then_s)
    served = sum(visit.reply is not None for visit in first + then) / len(first + then)
    later_calls = stage.provider.calls - first_calls
    return (
        _amplification(first_calls, first),
        _amplification(later_calls, then) if then else math.nan,
        served,
    )


@pytest.mark.parametrize(
    ("share", "breaker", "then_s"),
    [
        *(pytest.param(share, False, THEN_S, id=f"{share} breaker off") for share in SHARES),
        *(
            pytest.param(share, True, THEN_S if share in BREAKER_ON_FOR_LONG else 0, id=f"{share} breaker on")
            for share in SHARES
        ),
    ],
)
def test_retries_add_little_whatever_share_of_calls_fails(
    share: float, breaker: bool, then_s: float, figure: Figure
) -> None:
    """Three attempts without a budget would be 3.0 at a full outage; the bucket makes that about 1.01."""

    async def main(world: World) -> tuple[float, float, float]:
        return await _amplified(world, share, breaker=breaker, then_s=then_s)

    first, then, served = virtual.run(main, seed=int(share * 10))

    later = f"next {then_s} s {then:.3f}, " if then_s else ""
    figure(
        f"amplification, p = {share:g}, breaker {'on' if breaker else 'off'}",
        f"first 60 s {first:.3f}, {later}served {served:.2%}",
    )
    assert first <= (1.12 if share >= 0.5 else 1.30)
    if then_s:
        assert then <= (1.08 if share >= 0.5 else 1.27)
    if not breaker:
        assert served >= {0.1: 0.997, 0.2: 0.985}.get(share, 0.0)


def test_a_full_outage_costs_at_most_35_retries(figure: Figure) -> None:
    async def main(world: World) -> tuple[int, int]:
        stage = set_stage(
            world,
            {"slots": 200, "depth": 0, "latency_s": 0.1, "failures": {"transient": 1.0}, "breaker": False},
        )
        visits = await _load(stage, FIRST_S)
        return stage.provider.calls, len(visits)

    calls, requests = virtual.run(main)

    figure("full outage, 3,000 requests", f"{calls - requests} retries (≤ 35)")
    assert 0 < calls - requests <= 35


def test_an_always_failing_upstream_is_called_exactly_max_attempts_times_per_request() -> None:
    """One owner of retries: five attempts in three layers would have been 125 calls."""

    async def main(world: World) -> int:
        stage = set_stage(
            world, {"failures": {"transient": 1.0}, "breaker": False}, retry={"max_attempts": 5}
        )
        await open_loop(stage, [0.0], lambda gateway: gateway.complete(model="m", messages=USER))
        return stage.provider.calls

    assert virtual.run(main) == 5


def test_ten_thousand_callers_that_fail_at_once_come_back_spread_out(figure: Figure) -> None:
    """Full jitter over the first second: no tenth of it may get much more than a tenth of the load."""

    async def main(world: World) -> list[float]:
        stage = set_stage(
            world,
            {
                "slots": 10_000,
                "latency_s": 0.0,
                "script": [503],
                "script_by_request": True,
                "breaker": False,
                "budget": False,
            },
            retry={"max_attempts": 2, "first_wait_s": 1.0},
        )
        visits = await open_loop(
            stage, [0.0] * 10_000, lambda gateway: gateway.complete(model="m", messages=USER)
        )
        assert all(visit.reply for visit in visits)
        return [start for start in stage.provider.starts if start > 0.0]

    retries = virtual.run(main)

    bins = [0] * 10
    for start in retries:
        bins[min(9, int(start * 10))] += 1
    peak = max(bins) / (sum(bins) / len(bins))
    figure("10,000 callers failing at once", f"fullest 100 ms bin {peak:.2f} × the mean (≤ 1.3)")
    assert len(retries) == 10_000
    assert peak <= 1.3
