"""The gateway for scripts without an event loop: the same calls, on a loop in a thread of its own."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from headgate.core.errors import Draining, HeadgateError
from headgate.core.messages import Chunk, Message, Reply, Request
from headgate.dispatch.status import QueueStatus
from headgate.dispatch.streams import ReplyStream
from headgate.gateway import Gateway

T = TypeVar("T")


class BlockingGateway:
    """`with headgate.open_blocking() as gateway: gateway.complete(model=…, messages=…)`.

    May be shared by threads, not by processes. Leaving the block, or Ctrl-C in a call, cancels what is still
    in flight. `stream` is a plain iterator; slots cannot be held and events not heard from here.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Gateway]]) -> None:
        self._opening = opening
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gateway: Gateway | None = None
        self._closing: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._failures: list[Exception] = []
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

    def complete(self, *, model: str, messages: Sequence[Message], **options: Any) -> Reply:
        """As `Gateway.complete`."""
        return self._run(self._open.complete(model=model, messages=messages, **options))

    def complete_many(
        self, requests: Iterable[Request | Mapping[str, Any]], **options: Any
    ) -> list[Reply | HeadgateError]:
        """As `Gateway.complete_many`."""
        return self._run(self._open.complete_many(requests, **options))

    def stream(self, *, model: str, messages: Sequence[Message], **options: Any) -> Iterator[Chunk]:
        """As `Gateway.stream`: an iterator of chunks, closed when it is read to the end or dropped."""
        stream: ReplyStream = self._open.stream(model=model, messages=messages, **options)
        try:
            while (chunk := self._run(_next(stream))) is not None:
                yield chunk
        finally:
            if self._loop is not None:
                self._run(stream.aclose())

    def status(self) -> QueueStatus:
        """As `Gateway.status`."""
        return self._run(_returned(self._open.status))

    @property
    def _open(self) -> Gateway:
        if self._gateway is None:
            raise RuntimeError("use this inside its `with` block")
        return self._gateway

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or os.getpid() != self._process or threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "use this inside its `with` block, in the process that opened it, and not from within its own calls"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Draining("the gateway was closed during the call", retry_after_s=1.0) from None
        except BaseException:
            future.cancel()
            raise

    async def _serve(self, ready: threading.Event) -> None:
        self._closing = asyncio.Event()
        try:
            async with self._opening() as gateway:
                self._loop, self._gateway = asyncio.get_running_loop(), gateway
                ready.set()
                await self._closing.wait()
                self._loop = self._gateway = None
                await _cancel_others()
        except Exception as error:  # noqa: BLE001 - carried to the thread that opens or closes this
            self._failures.append(error)
        finally:
            ready.set()


async def _next(stream: ReplyStream) -> Chunk | None:
    return await anext(stream, None)


async def _returned(value: Callable[[], T]) -> T:
    return value()


async def _cancel_others() -> None:
    me = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not me]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
