"""Retries never storm: what an upstream gets to bear while it fails, and what callers get meanwhile."""

from collections.abc import Sequence

import pytest
from conftest import Figure
from stage import USER, Stage, Visit, open_loop, set_stage

from headgate.planner import virtual
from headgate.planner.virtual import World

PER_S = 50
FIRST_S = 60
THEN_S = 600


async def _load(stage: Stage, seconds: float) -> list[Visit]:
    start = stage.now
    arrivals = [start + index / PER_S for index in range(int(seconds * PER_S))]
    return await open_loop(stage, arrivals, lambda gateway: gateway.complete(model="m", messages=USER))


def _amplification(calls: int, visits: Sequence[Visit]) -> float:
    return calls / len(visits)


@pytest.mark.parametrize("breaker", [False, True], ids=["breaker off", "breaker on"])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
def test_retries_add_little_whatever_share_of_calls_fails(
    share: float, breaker: bool, figure: Figure
) -> None:
    """Three attempts without a budget would be 3.0 at a full outage; the bucket makes that about 1.01."""

    async def main(world: World) -> tuple[float, float, float]:
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
        then = await _load(stage, THEN_S)
        served = sum(visit.reply is not None for visit in first + then) / len(first + then)
        return (
            _amplification(first_calls, first),
            _amplification(stage.provider.calls - first_calls, then),
            served,
        )

    first, then, served = virtual.run(main, seed=int(share * 10))

    switch = "on " if breaker else "off"
    figure(
        f"amplification, p = {share:.1f}, breaker {switch}",
        f"first 60 s {first:.3f}, next 600 s {then:.3f}, served {served:.2%}",
    )
    assert first <= (1.12 if share >= 0.5 else 1.30)
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
