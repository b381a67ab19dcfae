"""Trips to the store: what ends meanwhile goes together, and nobody suffers for another's mistake."""

import asyncio
from collections.abc import Sequence

from headgate.core.errors import StoreUnavailable
from headgate.core.job import JobState, Settled, Settlement
from headgate.runner.trips import MOST_TOGETHER, Answer, Trips

NOW = 1_700_000_000.0


class Desk:
    """A store that takes settlements in, and writes down who came together."""

    def __init__(self) -> None:
        self.trips: list[list[str]] = []
        self.away = False
        self.unreadable = ""
        self.open = asyncio.Event()
        self.open.set()

    async def settle(self, settlements: Sequence[Settlement], *, now: float) -> list[Settled]:
        self.trips.append([one.id for one in settlements])
        await self.open.wait()
        if self.away:
            raise StoreUnavailable("away")
        if any(one.id == self.unreadable for one in settlements):
            raise ValueError("what does it say?")
        return [Settled.APPLIED for _ in settlements]


def a_settlement(job_id: str) -> Settlement:
    return Settlement(
        id=job_id,
        lease=1,
        state=JobState.COMPLETED,
        attempts=1,
        crashes=0,
        deferrals=0,
        run_at=NOW,
        due=NOW,
        finished_at=NOW,
    )


def trips_to(desk: Desk) -> Trips:
    return Trips(desk, lambda: NOW)  # type: ignore[arg-type]  # the one verb that it needs


async def send_all(trips: Trips, names: Sequence[str]) -> dict[str, Answer]:
    answers = await asyncio.gather(*(trips.send(a_settlement(name)) for name in names))
    return dict(zip(names, answers, strict=True))


def test_what_ends_during_a_trip_goes_together_on_the_next() -> None:
    async def main() -> None:
        desk = Desk()
        desk.open.clear()
        trips = trips_to(desk)
        first = asyncio.create_task(send_all(trips, ["a"]))
        await asyncio.sleep(0.001)
        others = asyncio.create_task(send_all(trips, ["b", "c", "d"]))
        await asyncio.sleep(0.001)
        desk.open.set()

        assert set((await first).values()) == {Settled.APPLIED}
        assert set((await others).values()) == {Settled.APPLIED}
        assert desk.trips == [["a"], ["b", "c", "d"]]

    asyncio.run(main())


def test_a_trip_carries_only_so_many() -> None:
    async def main() -> None:
        desk = Desk()
        names = [str(number) for number in range(MOST_TOGETHER + 1)]

        assert len(await send_all(trips_to(desk), names)) == len(names)
        assert [len(trip) for trip in desk.trips] == [MOST_TOGETHER, 1]

    asyncio.run(main())


def test_when_the_store_is_away_all_hear_of_it_after_one_try() -> None:
    async def main() -> None:
        desk = Desk()
        desk.away = True
        answers = await send_all(trips_to(desk), ["a", "b"])

        assert all(isinstance(answer, StoreUnavailable) for answer in answers.values())
        assert desk.trips == [["a", "b"]]

    asyncio.run(main())


def test_one_that_cannot_be_written_hears_so_and_the_others_are_written() -> None:
    async def main() -> None:
        desk = Desk()
        desk.unreadable = "b"
        answers = await send_all(trips_to(desk), ["a", "b", "c"])

        assert isinstance(answers.pop("b"), ValueError)
        assert answers == {"a": Settled.APPLIED, "c": Settled.APPLIED}

    asyncio.run(main())
