"""The ring of events: everything once, in order; what is gone is counted; nobody who reads is waited for."""

import asyncio
from datetime import UTC, datetime

import pytest

from headgate.core.events import Event, LimitChanged, StrayAnswer
from headgate.observe.ring import EventRing

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def stray(number: int) -> StrayAnswer:
    return StrayAnswer(request_id=f"r-{number}")


def ring_of(count: int, most: int = 10) -> EventRing:
    ring = EventRing(lambda: AT, most)
    for number in range(1, count + 1):
        ring(stray(number))
    return ring


def everything(_event: Event) -> bool:
    return True


def numbers(ring: EventRing, after: int, most: int = 100) -> list[int]:
    return [one.number for one in ring.read(after, everything, most).found]


def test_a_reader_gets_what_came_after_its_place_in_order() -> None:
    ring = ring_of(7)

    reading = ring.read(4, everything, 100)

    assert [(one.number, one.at, one.event) for one in reading.found] == [
        (number, AT, stray(number)) for number in (5, 6, 7)
    ]
    assert (reading.lost, reading.upto) == (0, 7)
    assert numbers(ring, 7) == []


def test_what_the_ring_has_forgotten_is_counted() -> None:
    """25 came, 10 are kept: who had heard 3 has missed those from 4 to 15."""
    ring = ring_of(25)

    reading = ring.read(3, everything, 100)

    assert reading.lost == 12
    assert [one.number for one in reading.found] == list(range(16, 26))
    assert (ring.first, ring.last) == (16, 25)


def test_a_bounded_reading_goes_on_where_it_stopped() -> None:
    ring = ring_of(9)
    seen, upto = list[int](), 0
    while upto < ring.last:
        reading = ring.read(upto, everything, 4)
        assert len(reading.found) <= 4
        seen += [one.number for one in reading.found]
        upto = reading.upto

    assert seen == list(range(1, 10))


def test_what_is_not_wanted_moves_the_place_all_the_same() -> None:
    """Otherwise a reader of rare events would fall behind, and hear of a gap where it has missed nothing."""
    ring = ring_of(8)
    ring(LimitChanged(upstream="u", limit="limited to 2 calls in flight"))
    ring(stray(10))

    reading = ring.read(0, lambda event: isinstance(event, LimitChanged), 100)

    assert ([one.number for one in reading.found], reading.upto) == ([9], 10)


@pytest.mark.parametrize("news", ["event", "close"])
def test_who_waits_is_woken_by_news_and_by_the_end(news: str) -> None:
    async def scene() -> None:
        ring = ring_of(3)
        waiting = [asyncio.ensure_future(ring.wait(3, within_s=60)) for _ in range(2)]
        await asyncio.sleep(0)
        ring(stray(4)) if news == "event" else ring.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*waiting)
            await ring.wait(3, within_s=60)  # At once.

    asyncio.run(scene())


def test_who_waits_in_vain_comes_back_in_time() -> None:
    async def scene() -> None:
        async with asyncio.timeout(5):
            await ring_of(3).wait(3, within_s=0.01)

    asyncio.run(scene())
