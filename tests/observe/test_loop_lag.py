"""How late the loop's timers are: measured on a real loop that something holds up, and forgotten after a minute."""

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from headgate.machine.clock import SystemClock
from headgate.observe.loop_lag import TICK_S, WINDOW_S, LoopLag
from headgate.planner import virtual
from headgate.planner.virtual import World

STALL_S = 0.6


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_code_that_blocks_the_loop_is_seen(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> float:
        lag = LoopLag(SystemClock())
        lag.start()
        await asyncio.sleep(0)
        time.sleep(STALL_S)  # noqa: ASYNC251 - what is measured
        async with asyncio.timeout(30):
            while not lag.worst_s:  # noqa: ASYNC110 - nothing is emitted
                await asyncio.sleep(0.01)
        await lag.aclose()
        return lag.worst_s

    with asyncio.Runner(loop_factory=new_loop) as runner:
        # The timer was due within a tick: the rest of the stall it was late.
        assert runner.run(main()) >= STALL_S - TICK_S - 0.01


def test_a_loop_that_is_never_held_up_has_no_lag() -> None:
    async def main(world: World) -> None:
        lag = LoopLag(world.clock)
        lag.start()
        await world.clock.sleep(10 * WINDOW_S)
        assert lag.worst_s == pytest.approx(0, abs=1e-9)
        await lag.aclose()

    virtual.run(main)


def test_the_worst_of_a_minute_is_kept_and_then_the_next_worst() -> None:
    async def main(world: World) -> None:
        lag = LoopLag(world.clock)
        for at, late_s in ((0, 0.1), (10, 0.9), (20, 0.2), (30, 0.5), (40, 0.3)):
            await world.clock.sleep(at - world.clock.now())
            lag.note(world.clock.now(), late_s)
        worst = {}
        for at in (41, 69, 70, 89, 90, 99, 100):
            await world.clock.sleep(at - world.clock.now())
            worst[at] = lag.worst_s
        assert worst == {41: 0.9, 69: 0.9, 70: 0.5, 89: 0.5, 90: 0.3, 99: 0.3, 100: 0.0}

    virtual.run(main)
