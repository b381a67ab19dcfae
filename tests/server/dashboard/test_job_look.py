"""Jobs are counted for the overview now and then; a database that is slow or away holds no page up."""

from collections.abc import Mapping
from typing import Any

from headgate.core.errors import StoreUnavailable
from headgate.observe.look import REST_FACTOR
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.server.dashboard.job_look import LONGEST_WAIT_S, LOOK_EVERY_S, JobLook


class _Jobs:
    """The seam to the store."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self.asked: list[str | None] = []
        self.takes_s = 0.0
        self.away = False

    async def count(self, *, tenant: str | None) -> Mapping[str, int]:
        self.asked.append(tenant)
        await self._clock.sleep(self.takes_s)
        if self.away:
            raise StoreUnavailable("it is away", retry_after_s=1.0)
        return {"pending": len(self.asked)}


def test_the_database_is_asked_once_in_a_while_for_each_tenant() -> None:
    async def main(world: World) -> None:
        jobs: Any = _Jobs(world)
        look = JobLook(jobs, world.clock)
        for _ in range(10):
            assert await look.counts(None) == {"pending": 1}
        assert await look.counts("a") == {"pending": 2}
        await world.clock.sleep(LOOK_EVERY_S)
        await look.counts(None)
        await world.clock.sleep(0.1)
        assert await look.counts(None) == {"pending": 3}
        assert jobs.asked == [None, "a", None]

    virtual.run(main)


def test_a_slow_count_holds_up_no_page_and_is_made_less_often() -> None:
    """A million jobs take a second to count: asked for every three, that alone would be a third of a core."""

    async def main(world: World) -> None:
        jobs: Any = _Jobs(world)
        jobs.takes_s = 2.0
        look = JobLook(jobs, world.clock)
        assert await look.counts(None) is None
        assert world.clock.now() <= LONGEST_WAIT_S
        await world.clock.sleep(2.0)
        for _ in range(2 * REST_FACTOR):
            asked_at = world.clock.now()
            assert await look.counts(None) == {"pending": 1}
            assert world.clock.now() == asked_at
            await world.clock.sleep(0.9)
        assert jobs.asked == [None]
        await world.clock.sleep(2.0 * REST_FACTOR)
        await look.counts(None)
        await world.clock.sleep(2.1)
        assert await look.counts(None) == {"pending": 2}

    virtual.run(main)


def test_numbers_of_a_database_that_is_away_are_not_shown() -> None:
    async def main(world: World) -> None:
        jobs: Any = _Jobs(world)
        look = JobLook(jobs, world.clock)
        assert await look.counts(None) == {"pending": 1}
        jobs.away = True
        await world.clock.sleep(LOOK_EVERY_S)
        await look.counts(None)
        await world.clock.sleep(0.1)
        assert await look.counts(None) is None
        jobs.away = False
        await world.clock.sleep(LOOK_EVERY_S)
        await look.counts(None)
        await world.clock.sleep(0.1)
        assert await look.counts(None) == {"pending": 3}

    virtual.run(main)
