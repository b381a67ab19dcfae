"""A summary on its way as server-sent events: text as it comes, a sign of life while none does, the whole at the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from headgate.apps.articles.shapes import Summarized

Say = Callable[[str], Awaitable[None]]
HEARTBEAT_S: Final = 10.0
_HEARTBEAT: Final = b": still at it\n\n"
_MOST_WAITING: Final = 64


class Delivery:
    """Runs `produce` beside its reader; what it says goes out as it is said."""

    def __init__(self, produce: Callable[[Say], Awaitable[Summarized]]) -> None:
        self._waiting: asyncio.Queue[str | Summarized | Exception] = asyncio.Queue(_MOST_WAITING)
        self._moved = asyncio.Event()
        self._failed_silently: Exception | None = None
        """Before it had said anything."""
        self._task = asyncio.create_task(self._run(produce), name="article summary")

    async def begin(self, granted: Callable[[], bool]) -> None:
        """Return when the answer may begin: there is text, or the slot is held. Before that, raise what it raised."""
        try:
            while not (self._moved.is_set() or granted()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._moved.wait()
        except BaseException:
            await self.close()
            raise
        if self._failed_silently is not None:
            raise self._failed_silently

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    said = await self._waiting.get()
            except TimeoutError:
                yield _HEARTBEAT
                continue
            if isinstance(said, Exception):
                raise said
            if isinstance(said, Summarized):
                yield b"event: done\ndata: %b\n\n" % msgspec.json.encode(said)
                return
            yield b"data: %b\n\n" % msgspec.json.encode(said)

    async def close(self) -> None:
        """Whoever left takes the work along: its call is cancelled and its slot is free."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self, produce: Callable[[Say], Awaitable[Summarized]]) -> None:
        try:
            last: Summarized | Exception = await produce(self._say)
        except Exception as error:  # noqa: BLE001 - whoever reads hears of it
            last = error
            if not self._moved.is_set():
                self._failed_silently = error
        await self._waiting.put(last)
        self._moved.set()

    async def _say(self, text: str) -> None:
        await self._waiting.put(text)
        self._moved.set()
