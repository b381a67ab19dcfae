"""Jobs are counted for the overview now and then; a database that is slow or away holds no page up."""

import asyncio
from collections.abc import Mapping
from typing import Any

from headgate.core.errors import StoreUnavailable
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.server.dashboard.job_look import LONGEST_LOOK_S, LOOK_EVERY_S, JobLook


class _Jobs:
    """The seam to the store."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.trouble: str | None = None

    async def count(self, *, tenant: str | None) -> Mapping[str, int]:
        self.asked.append(tenant)
        if self.trouble == "away":
            raise StoreUnavailable("it is away", retry_after_s=1.0)
        if self.trouble == "slow":
            await asyncio.sleep(3600)
        return {"pending": len(self.asked)}


def test_the_database_is_asked_once_in_a_while_for_each_tenant() -> None:
    async def main(world: World) -> None:
        jobs: Any = _Jobs()
        look = JobLook(jobs, world.clock)
        for _ in range(10):
            assert await look.counts(None) == {"pending": 1}
        assert await look.counts("a") == {"pending": 2}
        await world.clock.sleep(LOOK_EVERY_S)
        assert await look.counts(None) == {"pending": 3}
        assert jobs.asked == [None, "a", None]

    virtual.run(main)


def test_a_database_that_is_slow_or_away_is_not_waited_for_and_its_old_numbers_are_not_shown() -> None:
    async def main(world: World) -> None:
        jobs: Any = _Jobs()
        look = JobLook(jobs, world.clock)
        await look.counts(None)
        for trouble in ("slow", "away"):
            jobs.trouble = trouble
            await world.clock.sleep(LOOK_EVERY_S)
            asked_at = world.clock.now()
            assert await look.counts(None) is None
            assert world.clock.now() - asked_at <= LONGEST_LOOK_S

    virtual.run(main)
