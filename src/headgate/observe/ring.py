"""The last events, numbered, for whoever follows them. A call pays for an append; all else is paid for by readers.

Nothing waits for a reader: one that comes too late for some events hears how many they were.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from headgate.core.events import Event

MOST_KEPT: Final = 10_000


class Numbered(NamedTuple):
    """One event with its number and the moment it was heard."""

    number: int
    at: datetime
    event: Event


class Reading(NamedTuple):
    """What came after a number."""

    lost: int
    """Events that are gone, wanted or not."""
    found: list[Numbered]
    upto: int
    """The last number that was looked at: go on from there."""


class EventRing:
    """`gateway.listen(ring)`, then `read` and `wait` in turn, all in the gateway's loop."""

    def __init__(self, utc: Callable[[], datetime], most: int = MOST_KEPT) -> None:
        self._utc = utc
        self._kept: deque[tuple[datetime, Event]] = deque(maxlen=most)
        self._bell: asyncio.Event | None = None
        self.last = 0
        """The number of the latest event; the first is 1."""
        self.closed = False

    @property
    def first(self) -> int:
        """The number of the oldest event that is kept, or of the next if none is."""
        return self.last - len(self._kept) + 1

    def __call__(self, event: Event) -> None:
        self._kept.append((self._utc(), event))
        self.last += 1
        if self._bell is not None:
            self._ring()

    def read(self, after: int, wanted: Callable[[Event], bool], most: int) -> Reading:
        """What is wanted of the events after this one, so many at most."""
        lost = max(0, self.first - 1 - after)
        start = after + lost
        # From the young end: who keeps up wants a few of thousands.
        fresh = list(islice(reversed(self._kept), self.last - start))
        found: list[Numbered] = []
        for number, (at, event) in enumerate(reversed(fresh), start + 1):
            if wanted(event):
                found.append(Numbered(number, at, event))
                if len(found) == most:
                    return Reading(lost, found, number)
        return Reading(lost, found, self.last)

    async def wait(self, after: int, *, within_s: float) -> None:
        """Until there is news after this one, or nothing more will come; so long at most."""
        if self.last <= after and not self.closed:
            if self._bell is None:
                self._bell = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._bell.wait()

    def close(self) -> None:
        """Readers are told that nothing more comes."""
        self.closed = True
        if self._bell is not None:
            self._ring()

    def _ring(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.set()
