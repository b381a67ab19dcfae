"""`Client`: the same client for scripts without an event loop. One facade; every method is the asynchronous one's."""

from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from headgate.client.asynchronous import AsyncClient
from headgate.client.batches import Batches
from headgate.client.bookmarks import Bookmarks
from headgate.client.dead_letters import DeadLetters
from headgate.client.flush import Flushed
from headgate.client.outbox import Outbox
from headgate.machine.portal import Closable, Portal

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")


class _Facade(Generic[Part]):
    """A part of the client, seen from outside of its loop."""

    def __init__(self, portal: Portal[AsyncClient], part: Callable[[AsyncClient], Part]) -> None:
        self._portal = portal
        self._part = part


def _waits(
    method: Callable[Concatenate[Part, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Facade[Part], P], T]:
    def wait(self: _Facade[Part], /, *args: P.args, **kwargs: P.kwargs) -> T:
        portal = self._portal
        return portal.run(method(self._part(portal.opened), *args, **kwargs))

    wait.__doc__ = method.__doc__
    return wait


def _walks(
    method: Callable[Concatenate[Part, P], Closable[T]],
) -> Callable[Concatenate[_Facade[Part], P], Iterator[T]]:
    def walk(self: _Facade[Part], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        portal = self._portal
        items = method(self._part(portal.opened), *args, **kwargs)
        return portal.iterate(items)

    walk.__doc__ = method.__doc__
    return walk


class BlockingDeadLetters(_Facade[DeadLetters]):
    """As `AsyncClient.dead_letters`, without await."""

    list = _walks(DeadLetters.list)
    get = _waits(DeadLetters.get)
    replay = _waits(DeadLetters.replay)
    discard = _waits(DeadLetters.discard)
    count = _waits(DeadLetters.count)
    replay_all = _waits(DeadLetters.replay_all)
    discard_all = _waits(DeadLetters.discard_all)


class BlockingBatches(_Facade[Batches]):
    """As `AsyncClient.batches`, without await."""

    create = _waits(Batches.create)
    upload = _waits(Batches.upload)
    get = _waits(Batches.get)
    list = _walks(Batches.list)
    cancel = _waits(Batches.cancel)
    retry = _waits(Batches.retry)
    wait = _waits(Batches.wait)
    output = _walks(Batches.output)


class BlockingBookmarks(_Facade[Bookmarks]):
    """As `AsyncClient.bookmarks`, without await."""

    save = _waits(Bookmarks.save)
    list = _walks(Bookmarks.list)
    get = _waits(Bookmarks.get)
    reprocess = _waits(Bookmarks.reprocess)
    delete = _waits(Bookmarks.delete)


class Client(_Facade[AsyncClient]):
    """`with Client() as client: client.chat("Hi", model="summary")`. Takes what `AsyncClient` takes.

    May be shared by threads, not by processes. Leaving the block, or Ctrl-C in a call, cancels what is still in flight.
    """

    def __init__(self, url: str | None = None, **options: Any) -> None:
        super().__init__(Portal(lambda: AsyncClient(url, **options), name="client"), lambda client: client)
        self.dead_letters = BlockingDeadLetters(self._portal, lambda client: client.dead_letters)
        self.batches = BlockingBatches(self._portal, lambda client: client.batches)
        self.bookmarks = BlockingBookmarks(self._portal, lambda client: client.bookmarks)

    def __enter__(self) -> Self:
        self._portal.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.__exit__(kind, error, trace)

    chat = _waits(AsyncClient.chat)
    embed = _waits(AsyncClient.embed)
    submit = _waits(AsyncClient.submit)
    submit_many = _waits(AsyncClient.submit_many)
    job = _waits(AsyncClient.job)
    wait = _waits(AsyncClient.wait)
    cancel = _waits(AsyncClient.cancel)
    jobs = _walks(AsyncClient.jobs)
    feed = _waits(AsyncClient.feed)
    call = _waits(AsyncClient.call)
    models = _waits(AsyncClient.models)
    pause_model = _waits(AsyncClient.pause_model)
    resume_model = _waits(AsyncClient.resume_model)
    status = _waits(AsyncClient.status)
    alerts = _waits(AsyncClient.alerts)
    request = _waits(AsyncClient.request)
    requests = _walks(AsyncClient.requests)
    stream = _walks(AsyncClient.stream)

    def run(
        self,
        work: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """An async function of the client, without await: `client.run(summarize, "a1", text)`."""
        return self._portal.run(work(self._portal.opened, *args, **kwargs))

    def flush(self, outbox: Outbox) -> Flushed:
        """As `Outbox.flush`, without await."""
        return self._portal.run(outbox.flush(self._portal.opened))
