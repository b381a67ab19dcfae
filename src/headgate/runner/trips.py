"""Settlements on their way to the store: what ends while one trip is under way goes together on the next."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from headgate.core.errors import StoreUnavailable
from headgate.core.job import Settled, Settlement
from headgate.core.ports.store import Store

MOST_TOGETHER: Final = 500
Answer: TypeAlias = Settled | Exception
Hear: TypeAlias = Callable[[Answer], None]
Waiting: TypeAlias = tuple[Settlement, Hear]


class Trips:
    """One trip at a time carries many; each settlement's sender hears of its own, and must not raise."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._waiting: list[Waiting] = []
        self._going: asyncio.Task[None] | None = None

    def put(self, settlement: Settlement, hear: Hear) -> None:
        self._waiting.append((settlement, hear))
        if self._going is None or self._going.done():
            self._going = asyncio.create_task(self._go(), name="headgate settling")

    async def send(self, settlement: Settlement) -> Answer:
        """For one who waits."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.put(settlement, lambda answer: None if future.done() else future.set_result(answer))
        return await future

    async def _go(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            try:
                answers = await self._store.settle([settlement for settlement, _ in batch], now=self._now())
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                await self._split(batch, error)
                continue
            for (_, hear), answer in zip(batch, answers, strict=True):
                hear(answer)

    async def _split(self, batch: list[Waiting], error: Exception) -> None:
        """When the store is away, all hear of it. Any other error is one settlement's own: find which."""
        for settlement, hear in batch:
            if isinstance(error, StoreUnavailable) or len(batch) == 1:
                hear(error)
                continue
            try:
                (answer,) = await self._store.settle([settlement], now=self._now())
            except Exception as its_own:  # noqa: BLE001 - as above
                hear(its_own)
            else:
                hear(answer)
