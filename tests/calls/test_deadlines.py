"""One timer for all deadlines behaves as one timer for each: on time, for the right task, and never against others' will."""

import asyncio
import contextlib
from typing import Any

import pytest

from headgate.calls.deadlines import Deadlines
from headgate.planner import virtual
from headgate.planner.virtual import World


async def wait_until(deadlines: Deadlines, at: float, seconds: float) -> str:
    deadline = deadlines.enter(at)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if deadline.missed():
            return "late"
        raise
    finally:
        deadline.leave()
    return "done"


def test_each_is_stopped_at_its_own_time_and_nobody_else_is() -> None:
    async def main(world: World) -> None:
        deadlines = Deadlines()
        ends: dict[float, tuple[str, Any]] = {}

        async def run(at: float, seconds: float) -> None:
            ends[at] = (await wait_until(deadlines, at, seconds), world.clock.now())

        await asyncio.gather(
            *(run(at, seconds) for at, seconds in ((50, 60), (5, 60), (20, 10), (7, 60), (6, 60)))
        )
        assert ends == {
            5: ("late", pytest.approx(5)),
            6: ("late", pytest.approx(6)),
            7: ("late", pytest.approx(7)),
            20: ("done", pytest.approx(10)),
            50: ("late", pytest.approx(50)),
        }

    virtual.run(main)


def test_a_shorter_one_that_comes_later_is_not_overlooked() -> None:
    async def main(world: World) -> None:
        deadlines = Deadlines()
        long = asyncio.create_task(wait_until(deadlines, 100, 1))
        await asyncio.sleep(0)
        assert await wait_until(deadlines, 3, 50) == "late"
        assert world.clock.now() == pytest.approx(3)
        assert await long == "done"
        # The timer of those who are gone rings for nobody, and the next is set again.
        assert await wait_until(deadlines, 110, 500) == "late"
        assert world.clock.now() == pytest.approx(110)

    virtual.run(main)


def test_one_that_is_over_before_it_begins_stops_at_the_first_wait() -> None:
    async def main(world: World) -> None:
        await world.clock.sleep(10)
        assert await wait_until(Deadlines(), 5, 1) == "late"
        assert world.clock.now() == pytest.approx(10)

    virtual.run(main)


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    """Also at the very moment of the deadline: a caller that leaves must not be told that it was late."""

    async def main(world: World) -> None:
        deadlines = Deadlines()
        for at in (50, 5):
            task = asyncio.create_task(wait_until(deadlines, at, 100))
            await asyncio.sleep(5)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled() or task.result() == "late"
        task = asyncio.create_task(wait_until(deadlines, 1000, 100))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    virtual.run(main)


def test_who_swallows_the_cancellation_is_not_left_half_cancelled() -> None:
    """A provider may turn it into an error of its own; the caller's task must be sound afterwards."""

    async def main(world: World) -> None:
        deadlines = Deadlines()

        async def run() -> int:
            deadline = deadlines.enter(world.clock.now() + 1)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(5)
            deadline.leave()
            task = asyncio.current_task()
            assert task is not None
            return task.cancelling()

        assert await asyncio.create_task(run()) == 0

    virtual.run(main)


def test_a_call_belongs_to_a_task() -> None:
    with pytest.raises(RuntimeError):
        Deadlines().enter(1.0)
