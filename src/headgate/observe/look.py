"""The last look at what takes a while to see, such as how many jobs a database holds. Nobody waits for the next one."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from headgate.core.errors import HeadgateError

LONGEST_LOOK_S: Final = 30.0
REST_FACTOR: Final = 30
LONGEST_REST_S: Final = 300.0
"""What takes long is looked at less often: it rests thirty times as long as it took, up to this."""
T = TypeVar("T")


class Look(Generic[T]):
    """What was seen, and how old it is. Whoever asks for it begins another look when it is time."""

    def __init__(self, ask: Callable[[], Awaitable[T]], now: Callable[[], float], every_s: float) -> None:
        self._ask = ask
        self._now = now
        self._every_s = every_s
        self._seen: T | None = None
        self._seen_at = -math.inf
        self._next_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self.failed = False
        """Whether the last look was in vain, and what is seen is older."""

    @property
    def age_s(self) -> float:
        return self._now() - self._seen_at

    def last(self) -> T | None:
        if self._task is None and self._now() >= self._next_at:
            self._task = asyncio.get_running_loop().create_task(self._look(), name="headgate job look")
        return self._seen

    async def first(self, within_s: float) -> T | None:
        """The same, but the very first look is waited for, so long at most."""
        if self.last() is None and self._task is not None:
            await asyncio.wait({self._task}, timeout=within_s)
        return self._seen

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _look(self) -> None:
        began_at = self._now()
        try:
            async with asyncio.timeout(LONGEST_LOOK_S):
                self._seen = await self._ask()
            self._seen_at = self._now()
            self.failed = False
        except (HeadgateError, TimeoutError):
            self.failed = True
        finally:
            took_s = self._now() - began_at
            self._next_at = self._now() + max(self._every_s, min(took_s * REST_FACTOR, LONGEST_REST_S))
            self._task = None
