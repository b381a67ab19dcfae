"""Time and chance, as they are handed in. Real ones live at the edge; virtual ones in the planner."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

Chance = Callable[[], float]
"""Draws from [0, 1)."""


class Clock(Protocol):
    """The only source of time. `now` is monotonic seconds and means nothing outside this process."""

    def now(self) -> float: ...

    def since_boot(self) -> float:
        """Monotonic seconds that go on while the machine is suspended: leases go by them."""
        ...

    def utc(self) -> datetime: ...

    def follow(self, epoch_s: float) -> None:
        """Make `utc` go by another clock, which shows this time now."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def outside(self) -> AbstractContextManager[None]:
        """Mark work outside the event loop (disk, network): virtual time stands still meanwhile."""
        ...
