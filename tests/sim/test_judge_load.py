"""The newsletter judge's load: the first design planned 450 s for it and started its calls in bursts."""

import asyncio
from itertools import pairwise

from conftest import Figure
from stage import USER, set_stage

from headgate.planner import virtual
from headgate.planner.virtual import World


def test_120_calls_of_5_s_on_2_slots_with_2_5_s_spacing_take_no_longer_than_they_must(figure: Figure) -> None:
    """Nobody holds a slot while waiting for pacing, so spacing and service overlap."""

    async def main(world: World) -> tuple[float, list[float]]:
        stage = set_stage(
            world, {"slots": 2, "depth": 0, "interval_s": 2.5, "latency_s": 5.0}, timeouts={"total_s": 1000}
        )
        calls = [stage.gateway.complete(model="m", messages=USER, lane="batch") for _ in range(120)]
        await asyncio.gather(*calls)
        return stage.now, list(stage.provider.starts)

    finished_s, starts = virtual.run(main)

    gaps = [later - earlier for earlier, later in pairwise(starts)]
    figure(
        "judge: 120 calls of 5 s, 2 slots, 2.5 s apart",
        f"{finished_s:.1f} s (≤ 303), closest starts {min(gaps):.2f} s",
    )
    assert len(starts) == 120
    assert finished_s <= 303
    assert min(gaps) >= 2.5
