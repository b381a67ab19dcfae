"""The gateway for scripts without an event loop: the same calls, on a loop in a thread of its own."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from headgate.core.embeddings import EmbeddingReply
from headgate.core.errors import Draining, HeadgateError
from headgate.core.job import Job, JobState
from headgate.core.messages import Chunk, Message, Reply, Request
from headgate.dispatch.status import QueueStatus
from headgate.dispatch.streams import ReplyStream
from headgate.gateway import Gateway
from headgate.runner.jobs import JobHandle
from headgate.runner.tasks import Task

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
        self._calls: set[asyncio.Task[Any]] = set()
        self.jobs = BlockingJobs(self)
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

    def run(self, ask: Callable[[Gateway], Coroutine[Any, Any, T]]) -> T:
        """Anything the gateway can do: `gateway.run(lambda g: g.dead_letters.list(limit=10))`."""
        return self._run(ask(self._open))

    def complete(self, *, model: str, messages: Sequence[Message], **options: Any) -> Reply:
        """As `Gateway.complete`."""
        return self._run(self._open.complete(model=model, messages=messages, **options))

    def complete_many(
        self, requests: Iterable[Request | Mapping[str, Any]], **options: Any
    ) -> list[Reply | HeadgateError]:
        """As `Gateway.complete_many`."""
        return self._run(self._open.complete_many(requests, **options))

    def embed(self, *, model: str, input: str | Sequence[str], **options: Any) -> EmbeddingReply:  # noqa: A002
        """As `Gateway.embed`."""
        return self._run(self._open.embed(model=model, input=input, **options))

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
        future = asyncio.run_coroutine_threadsafe(self._known(work), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Draining("the gateway was closed during the call", retry_after_s=1.0) from None
        except BaseException:
            future.cancel()
            raise

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
            async with self._opening() as gateway:
                self._loop, self._gateway = asyncio.get_running_loop(), gateway
                ready.set()
                await self._closing.wait()
                self._loop = self._gateway = None
                await self._cancel_calls()
        except Exception as error:  # noqa: BLE001 - carried to the thread that opens or closes this
            self._failures.append(error)
        finally:
            ready.set()


class BlockingJobs:
    """As `Gateway.jobs`, without await."""

    def __init__(self, gateway: BlockingGateway) -> None:
        self._gateway = gateway

    def submit(self, task: "str | Task[Any, Any]", input: Any = None, **options: Any) -> "BlockingJobHandle":  # noqa: A002
        handle = self._gateway.run(lambda gateway: gateway.jobs.submit(task, input, **options))
        return BlockingJobHandle(self._gateway, handle)

    def get(self, job_id: str, **options: Any) -> Job:
        return self._gateway.run(lambda gateway: gateway.jobs.get(job_id, **options))

    def list(self, **options: Any) -> Sequence[Job]:
        return self._gateway.run(lambda gateway: gateway.jobs.list(**options))

    def cancel(self, job_id: str, **options: Any) -> JobState:
        return self._gateway.run(lambda gateway: gateway.jobs.cancel(job_id, **options))


class BlockingJobHandle:
    """As `JobHandle`, without await."""

    def __init__(self, gateway: BlockingGateway, handle: JobHandle) -> None:
        self.id = handle.id
        self.created = handle.created
        self._gateway = gateway
        self._handle = handle

    def job(self) -> Job:
        return self._gateway.run(lambda _: self._handle.job())

    def wait(self, timeout: float | None = None) -> Job:
        return self._gateway.run(lambda _: self._handle.wait(timeout))

    def result(self, timeout: float | None = None) -> Any:
        return self._gateway.run(lambda _: self._handle.result(timeout))

    def cancel(self) -> JobState:
        return self._gateway.run(lambda _: self._handle.cancel())


async def _next(stream: ReplyStream) -> Chunk | None:
    return await anext(stream, None)


async def _returned(value: Callable[[], T]) -> T:
    return value()
