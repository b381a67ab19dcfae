"""Group commit: what goes together, who suffers for whom, who gives up."""

import asyncio

import pytest

from headgate.core.errors import KeyMismatch, StoreUnavailable
from headgate.stores.postgres import group as group_commit
from headgate.stores.postgres.group import Group


class Flushes:
    """A flush that doubles numbers. It waits for the gate, and fails for those it is told to."""

    def __init__(self, *, bad: set[int] | None = None, down: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.gate = asyncio.Event()
        self._bad = bad or set()
        self._down = down

    async def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await self.gate.wait()
        self.in_flight -= 1
        if self._down:
            raise StoreUnavailable("down")
        for item in items:
            if item in self._bad:
                raise KeyMismatch(str(item))
        return [2 * item for item in items]


def test_what_comes_during_a_flush_goes_together_in_the_next() -> None:
    """A lone item goes at once; a crowd shares commits, two at a time."""

    async def main() -> None:
        flushes = Flushes()
        group = Group(flushes)
        first = asyncio.ensure_future(group.put(0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [asyncio.ensure_future(group.put(number)) for number in range(1, 100)]
        await asyncio.sleep(0.01)
        flushes.gate.set()

        assert await asyncio.gather(first, *rest) == [2 * number for number in range(100)]
        assert flushes.batches == [[0], list(range(1, 100))]
        assert flushes.most_in_flight == 2

    asyncio.run(main())


def test_a_flush_carries_only_so_much_but_never_splits_an_item() -> None:
    async def main() -> None:
        flushes = Flushes()
        flushes.gate.set()
        group = Group(flushes, most=10, at_once=1)
        await asyncio.gather(
            *(group.put(number, weight) for number, weight in enumerate([4, 4, 4, 50, 10, 1]))
        )

        assert flushes.batches == [[0, 1], [2], [3], [4], [5]]

    asyncio.run(main())


def test_only_the_caller_who_erred_is_told_so() -> None:
    """One wrong key among hundreds of submissions must not fail the others."""

    async def main() -> None:
        flushes = Flushes(bad={3, 77})
        flushes.gate.set()
        group = Group(flushes)
        answers = await asyncio.gather(*(group.put(number) for number in range(100)), return_exceptions=True)

        assert [number for number, answer in enumerate(answers) if isinstance(answer, KeyMismatch)] == [3, 77]
        assert sum(isinstance(answer, int) for answer in answers) == 98
        # By halves: far fewer than a flush for each.
        assert len(flushes.batches) < 40

    asyncio.run(main())


def test_when_the_store_is_down_all_are_told_at_once_with_an_error_each() -> None:
    async def main() -> None:
        flushes = Flushes(down=True)
        flushes.gate.set()
        answers = await asyncio.gather(*(Group(flushes).put(1) for _ in range(1)), return_exceptions=True)
        group = Group(flushes)
        answers = await asyncio.gather(*(group.put(number) for number in range(50)), return_exceptions=True)

        assert all(isinstance(answer, StoreUnavailable) for answer in answers)
        assert len({id(answer) for answer in answers}) == 50
        assert len(flushes.batches) == 2

    asyncio.run(main())


def test_who_gave_up_before_being_sent_is_not_sent() -> None:
    async def main() -> None:
        flushes = Flushes()
        group = Group(flushes, at_once=1)
        first = asyncio.ensure_future(group.put(0))
        await asyncio.sleep(0.01)
        second, third = asyncio.ensure_future(group.put(1)), asyncio.ensure_future(group.put(2))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        flushes.gate.set()

        assert (await first, await third) == (0, 4)
        assert flushes.batches == [[0], [2]]

    asyncio.run(main())


def test_closing_lets_out_what_waits() -> None:
    async def main() -> None:
        flushes = Flushes()
        group = Group(flushes, at_once=1)
        asked = [asyncio.ensure_future(group.put(number)) for number in range(5)]
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.01, flushes.gate.set)
        await group.aclose()

        assert [future.result() for future in asked] == [0, 2, 4, 6, 8]

    asyncio.run(main())


def test_a_flush_that_is_cancelled_strands_nobody() -> None:
    """A loop that shuts down cancels its tasks; whoever waits for one of them must wake up."""

    async def main() -> None:
        group = Group(Flushes(), at_once=1)
        asked = [asyncio.ensure_future(group.put(number)) for number in range(3)]
        await asyncio.sleep(0.01)
        late = asyncio.ensure_future(group.put(9))
        await asyncio.sleep(0)
        for task in tuple(group._tasks):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.gather(*asked)
        await asyncio.wait([late], timeout=1)

        assert late.cancelled()

    asyncio.run(main())


def test_who_has_waited_long_for_a_flush_that_failed_hears_of_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that hangs fails each flush after seconds: those in line must not wait for one flush after another."""
    monkeypatch.setattr(group_commit, "PATIENCE_S", 0.05)

    async def main() -> None:
        flushes = Flushes(down=True)
        group = Group(flushes, most=1, at_once=1)
        early = [asyncio.ensure_future(group.put(number)) for number in range(5)]
        await asyncio.sleep(0.1)
        late = asyncio.ensure_future(group.put(5))
        await asyncio.sleep(0)
        flushes.gate.set()

        answers = await asyncio.gather(*early, late, return_exceptions=True)
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)
        assert flushes.batches == [[0], [5]], "who came late may still be lucky"

    asyncio.run(main())
