"""Group commit: what comes while a flush is on its way goes together in the next one.

A lone item goes at once. When a flush fails for one item's sake, its halves go apart until that item stands alone:
nobody suffers for another's mistake. When the store itself fails, all hear of it, and so do those who have waited for
that flush for long: round after round of patience would add up.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from headgate.core.errors import StoreUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST_TOGETHER: Final = 500
FLUSHES: Final = 2
PATIENCE_S: Final = 5.0


class _Waiting(NamedTuple, Generic[Item, Answer]):
    item: Item
    weight: int
    future: "asyncio.Future[Answer]"
    since: float


class Group(Generic[Item, Answer]):
    """Merges concurrent items into flushes, a few of them in flight at a time."""

    def __init__(
        self,
        flush: Callable[[list[Item]], Awaitable[Sequence[Answer]]],
        *,
        most: int = MOST_TOGETHER,
        at_once: int = FLUSHES,
    ) -> None:
        self._flush = flush
        self._most = most
        self._at_once = at_once
        self._busy = 0
        self._waiting: deque[_Waiting[Item, Answer]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, item: Item, weight: int = 1) -> Answer:
        """Returns when the flush that carried the item is through. `weight` counts towards a flush's size."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append(_Waiting(item, weight, future, loop.time()))
        if self._busy < self._at_once:
            self._busy += 1
            task = loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def aclose(self) -> None:
        """What waits goes out first."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def _work(self) -> None:
        try:
            while batch := self._next_batch():
                await self._carry(batch)
        except asyncio.CancelledError:
            # The loop is shutting down: whoever still waits would wait for ever.
            while self._waiting:
                self._waiting.popleft().future.cancel()
            raise
        finally:
            self._busy -= 1

    def _next_batch(self) -> list[_Waiting[Item, Answer]]:
        batch: list[_Waiting[Item, Answer]] = []
        weight = 0
        while self._waiting and (not batch or weight + self._waiting[0].weight <= self._most):
            waiting = self._waiting.popleft()
            # Whoever gave up before it was sent is not sent.
            if not waiting.future.done():
                batch.append(waiting)
                weight += waiting.weight
        return batch

    async def _carry(self, batch: list[_Waiting[Item, Answer]]) -> None:
        try:
            answers = await self._flush([waiting.item for waiting in batch])
        except asyncio.CancelledError:
            for waiting in batch:
                waiting.future.cancel()
            raise
        except StoreUnavailable as error:
            for waiting in (*batch, *self._patient()):
                _fail(waiting.future, _another(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            await self._split(batch, error)
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.future.done():
                    waiting.future.set_result(answer)

    def _patient(self) -> list[_Waiting[Item, Answer]]:
        """Those who need not be sent any more. They came in order."""
        latest = asyncio.get_running_loop().time() - PATIENCE_S
        patient = []
        while self._waiting and self._waiting[0].since <= latest:
            patient.append(self._waiting.popleft())
        return patient

    async def _split(self, batch: list[_Waiting[Item, Answer]], error: Exception) -> None:
        if len(batch) == 1:
            _fail(batch[0].future, error)
            return
        half = len(batch) // 2
        await self._carry(batch[:half])
        await self._carry(batch[half:])


def _fail(future: "asyncio.Future[Answer]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _another(error: StoreUnavailable) -> StoreUnavailable:
    """Each caller gets an exception of its own: a shared one would collect everybody's tracebacks."""
    another = StoreUnavailable(str(error), retry_after_s=error.retry_after_s)
    another.__cause__ = error.__cause__
    return another
