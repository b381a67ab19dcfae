"""The gateway for scripts without an event loop: the same calls, on a loop in a thread of its own."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from headgate.calls.status import QueueStatus
from headgate.core.answer import Chunk, Reply
from headgate.core.call import Message, Request
from headgate.core.errors import HeadgateError
from headgate.core.job import Job, JobState
from headgate.gateway import Gateway
from headgate.machine.portal import Portal
from headgate.runner.jobs import JobHandle
from headgate.runner.tasks import Task

T = TypeVar("T")


class BlockingGateway:
    """`with headgate.open_blocking() as gateway: gateway.complete(model=…, messages=…)`.

    May be shared by threads, not by processes. Leaving the block, or Ctrl-C in a call, cancels what is still
    in flight. `stream` is a plain iterator; slots cannot be held and events not heard from here.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Gateway]]) -> None:
        self._portal = Portal(opening, name="gateway")
        self.jobs = BlockingJobs(self)

    def __enter__(self) -> Self:
        self._portal.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.__exit__(kind, error, trace)

    def run(self, ask: Callable[[Gateway], Coroutine[Any, Any, T]]) -> T:
        """Anything the gateway can do: `gateway.run(lambda g: g.dead_letters.list(limit=10))`."""
        return self._portal.run(ask(self._portal.opened))

    def complete(self, *, model: str, messages: Sequence[Message], **options: Any) -> Reply:
        """As `Gateway.complete`."""
        return self.run(lambda gateway: gateway.complete(model=model, messages=messages, **options))

    def complete_many(
        self, requests: Iterable[Request | Mapping[str, Any]], **options: Any
    ) -> list[Reply | HeadgateError]:
        """As `Gateway.complete_many`."""
        return self.run(lambda gateway: gateway.complete_many(requests, **options))

    def embed(self, *, model: str, input: str | Sequence[str], **options: Any) -> Reply:  # noqa: A002
        """As `Gateway.embed`."""
        return self.run(lambda gateway: gateway.embed(model=model, input=input, **options))

    def stream(self, *, model: str, messages: Sequence[Message], **options: Any) -> Iterator[Chunk]:
        """As `Gateway.stream`: an iterator of chunks, closed when it is read to the end or dropped."""
        return self._portal.iterate(self._portal.opened.stream(model=model, messages=messages, **options))

    def status(self) -> QueueStatus:
        """As `Gateway.status`."""
        return self.run(_status)


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


async def _status(gateway: Gateway) -> QueueStatus:
    return gateway.status()
