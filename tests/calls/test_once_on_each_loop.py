"""Callers that share one call under a key, on each loop: a timer that rings a moment early makes no second call."""

import asyncio
from pathlib import Path

from loops import Run, World
from stage import USER, Stage

from headgate import wiring
from headgate.core.errors import DeadlineExceeded, KeyInProgress

PAIRS = 300


def test_who_shares_a_call_under_a_key_and_is_as_late_as_the_first_makes_no_call_of_its_own(
    run: Run, tmp_path: Path
) -> None:
    """The deadline of the first may ring a moment before its time; the other then had nearly nothing left."""

    async def main(world: World) -> None:
        upstream = {"provider": "simulated", "slots": PAIRS, "script": ["stall"] * 1000}
        settings = wiring.read_settings(
            {"data_dir": str(tmp_path), "models": {"m": {"upstreams": [upstream]}}}, env={}
        )
        gateway = wiring.build(settings, clock=world.clock, chance=world.chance)
        stage = Stage(world, gateway)
        apart = 0

        async def ask_twice(number: int) -> None:
            nonlocal apart
            await world.clock.sleep(number * 0.003)
            began_at = world.clock.now()
            asked = [
                asyncio.create_task(
                    gateway.complete(model="m", messages=USER, idempotency_key=str(number), deadline_s=0.3)
                )
                for _ in range(2)
            ]
            await asyncio.sleep(0)
            # A busy machine may let time pass between the two: then the second may have a call of its own.
            apart += world.clock.now() - began_at > 0.001
            results = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(result, DeadlineExceeded | KeyInProgress) for result in results)

        await asyncio.gather(*map(ask_twice, range(PAIRS)))
        assert stage.provider.calls <= PAIRS + apart
        assert stage.all_free
        await gateway.aclose()

    run(main)
