"""An event loop in a thread of its own, for callers who have none: opened, asked from any thread, closed."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from headgate.core.errors import Draining

T = TypeVar("T")
Item_co = TypeVar("Item_co", covariant=True)
Opened = TypeVar("Opened")


class Closable(Protocol[Item_co]):
    """An asynchronous iterator that holds something until it is closed."""

    def __aiter__(self) -> AsyncIterator[Item_co]: ...

    async def __anext__(self) -> Item_co: ...

    async def aclose(self) -> None: ...


class Portal(Generic[Opened]):
    """Holds open what `opening` gives, inside its loop, while the `with` block lasts.

    May be shared by threads, not by processes. Leaving the block, or Ctrl-C in a call, cancels what is still
    in flight.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Opened]], *, name: str) -> None:
        self._opening = opening
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: Opened | None = None
        self._closing: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._failures: list[Exception] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._process = os.getpid()

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="headgate", daemon=True
        )
        self._thread.start()
        ready.wait()
        if self._failures:
            self._thread.join()
            raise self._failures[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._closing is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        if self._failures and error is None:
            raise self._failures[0]

    @property
    def opened(self) -> Opened:
        """What is held open. Use it inside of `run` only."""
        if self._opened is None:
            raise RuntimeError("use this inside its `with` block")
        return self._opened

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this in the loop and wait for it."""
        if self._loop is None or os.getpid() != self._process or threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "use this inside its `with` block, in the process that opened it, and not from within its own calls"
            )
        future = asyncio.run_coroutine_threadsafe(self._known(work), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Draining(f"the {self._name} was closed during the call", retry_after_s=1.0) from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: "Closable[T]") -> Iterator[T]:
        """The same items without await; closed when they are read to their end, or dropped."""
        try:
            while (item := self.run(_next(items))) is not None:
                yield item
        finally:
            if self._loop is not None:
                self.run(items.aclose())

    async def _known(self, work: Coroutine[Any, Any, T]) -> T:
        """Calls are known, so that closing ends them; a worker's jobs are not calls, and end in their own way."""
        call = asyncio.current_task()
        assert call is not None  # noqa: S101 - a coroutine of a loop always has one
        self._calls.add(call)
        try:
            return await work
        finally:
            self._calls.discard(call)

    async def _cancel_calls(self) -> None:
        calls = tuple(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _serve(self, ready: threading.Event) -> None:
        self._closing = asyncio.Event()
        try:
            async with self._opening() as opened:
                self._loop, self._opened = asyncio.get_running_loop(), opened
                ready.set()
                await self._closing.wait()
                self._loop = self._opened = None
                await self._cancel_calls()
        except Exception as error:  # noqa: BLE001 - carried to the thread that opens or closes this
            self._failures.append(error)
        finally:
            ready.set()


async def _next(items: Closable[T]) -> T | None:
    return await anext(items, None)
