"""Feeds a task with many items: bounded, resumable, and calm when the gateway is full.

A place is filled again as soon as its job ends. The feeder owns its retries: each request is tried once, and the first
refusal stops all requests until the next pass.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from headgate.client.asking import given, in_path
from headgate.client.line import ONCE, Call, Line
from headgate.core.errors import DeadlineExceeded, InvalidRequest, ModelNotAllowed, Refused
from headgate.core.feeding import Pace
from headgate.core.job import Job, JobState
from headgate.core.json_text import encode_json

Item = TypeVar("Item")
Source: TypeAlias = Iterable[Item] | AsyncIterable[Item]
MAX_LOOKS: Final = 100
"""Looks in flight at a time: each one takes a connection. Workers take the oldest jobs first, and so do the looks."""
MAX_LOOK_S: Final = 30.0
"""How long the gateway may hold one look back until the job ends."""
_PATIENCE_S: Final = 10.0
"""How long a look may take beyond that."""
_PAUSE_S: Final = 1.0
"""From one look at a job to the next, at least: a gateway that is stopping answers at once."""
_COUNTED: Final[Mapping[JobState, str]] = {
    JobState.COMPLETED: "completed",
    JobState.SKIPPED: "skipped",
    JobState.DEAD_LETTER: "dead",
    JobState.CANCELLED: "cancelled",
}


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a feed has come."""

    taken: int = 0
    """Items that the gateway has, the finished ones included."""
    resumed: int = 0
    """Those that it had already, from an earlier run of the same name."""
    unfinished: int = 0
    completed: int = 0
    skipped: int = 0
    dead: int = 0
    cancelled: int = 0
    rejected: int = 0
    """Items that the gateway calls wrong."""
    refusals: int = 0
    """Passes that ended early: the gateway was full or out of reach."""
    next_pass_s: float = 0.0
    """Until the next pass. Free places are filled before that, unless this pass was refused."""


class _PassRefused(Exception):
    """A request was refused, so this pass is over. Errors of the caller's own functions and source are none of these."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("the gateway is full or out of reach")
        self.retry_after_s = retry_after_s


class _Taken(NamedTuple):
    """The gateway has the item."""

    job: Job
    again: bool
    """It had it already."""


class Feeder(Generic[Item]):
    """One run over one source."""

    def __init__(
        self,
        line: Line,
        *,
        task: str,
        run: str,
        key: Callable[[Item], str],
        input: Callable[[Item], Any] | None,  # noqa: A002 - its name everywhere
        options: Mapping[str, Any],
        in_flight: int,
        every_s: float,
    ) -> None:
        if in_flight < 1:
            raise InvalidRequest("in_flight must be at least 1", param="in_flight")
        if not run:
            raise InvalidRequest("run must be a name: it is part of every item's key", param="run")
        self._line = line
        self._task = task
        self._run = run
        self._key = key
        self._input = input
        self._options = given(**options)
        self._in_flight = in_flight
        self._pace = Pace(every_s)
        self._progress = Progress()
        self._unfinished: dict[str, list[Item]] = {}
        """By job: items with the same key share one."""
        self._held: list[Item] = []
        """The items that were refused last: the first of the next pass."""
        self._over = False

    async def feed(
        self,
        items: Source[Item],
        *,
        on_progress: Callable[[Progress], object] | None = None,
        on_end: Callable[[Item, Job], object] | None = None,
        on_rejected: Callable[[Item, Exception], object] | None = None,
    ) -> Progress:
        """Return when every item has ended. `on_end` gets each of them, also those that an earlier run has done."""
        source = _walk(items)
        # An asynchronous source may take its time for each item; what it has given must not wait for the next one.
        self._max_together = 1 if isinstance(items, AsyncIterable) else self._in_flight
        self._on_progress = on_progress
        self._on_end = on_end
        self._on_rejected = on_rejected
        while True:
            try:
                async with Looks(self._line, self._pace.every_s, min(self._in_flight, MAX_LOOKS)) as looks:
                    await self._work(source, looks)
            except _PassRefused as refusal:
                self._pace = self._pace.refused()
                self._count(refusals=self._progress.refusals + 1)
                wait_s = self._pace.wait_s(refusal.retry_after_s)
                self._report(wait_s)
                await self._line.clock.sleep(wait_s)
            else:
                self._report(0.0)
                return self._progress

    async def _work(self, source: AsyncIterator[Item], looks: "Looks") -> None:
        """Keep all places full until every item has ended. Raises `_PassRefused` at the first refusal."""
        await self._catch_up(looks)
        await self._fill(source, looks)
        self._pace = self._pace.succeeded()
        while not self._all_ended:
            self._report(self._pace.wait_s())
            await self._keep_full(source, looks, self._pace.wait_s())

    async def _catch_up(self, looks: "Looks") -> None:
        """After a refusal: see which jobs have ended meanwhile. The first look goes alone: it may be refused as well."""
        ids = list(self._unfinished)
        for together in (ids[:1], ids[1:]):
            for job_id in together:
                looks.follow(job_id, 0.0)
            for _ in together:
                self._note(await looks.next())

    async def _keep_full(self, source: AsyncIterator[Item], looks: "Looks", seconds: float) -> None:
        """Fill each place as soon as its job ends, until all have ended or the time is up."""
        until = self._line.clock.now() + seconds
        while not self._all_ended and (left_s := until - self._line.clock.now()) > 0:
            for job in await looks.seen(left_s):
                self._note(job)
            await self._fill(source, looks)

    @property
    def _all_ended(self) -> bool:
        return self._over and not self._unfinished and not self._held

    async def _fill(self, source: AsyncIterator[Item], looks: "Looks") -> None:
        """Submit items until all places are taken. Raises the first refusal, and keeps what was refused."""
        while items := await self._take(source):
            answers = await asyncio.gather(*map(self._submit, items), return_exceptions=True)
            refused: list[Item] = []
            refusals: list[_PassRefused] = []
            for item, answer in zip(items, answers, strict=True):
                match answer:
                    case _Taken():
                        self._note_taken(item, answer, looks)
                    case _PassRefused():
                        refused.append(item)
                        refusals.append(answer)
                    case InvalidRequest() | ModelNotAllowed() if getattr(answer, "param", None) != "task":
                        self._count(rejected=self._progress.rejected + 1)
                        if self._on_rejected is not None:
                            self._on_rejected(item, answer)
                    case _:
                        raise answer  # The other items would end in the same way.
            if refusals:
                self._held = refused + self._held
                raise refusals[0]

    async def _take(self, source: AsyncIterator[Item]) -> Sequence[Item]:
        """As many items as may be sent together now, those that were refused before all others."""
        free = self._in_flight - len(self._unfinished)
        count = min(free, self._pace.together, self._max_together)
        items, self._held = self._held[:count], self._held[count:]
        while not self._over and len(items) < count:
            try:
                items.append(await anext(source))
            except StopAsyncIteration:
                self._over = True
        return items

    async def _submit(self, item: Item) -> "_Taken":
        content = item if self._input is None else self._input(item)
        call = self._call(content, self._key(item))
        with _passing_refusals():
            answer = await self._line.ask(call, retry=ONCE)
            return _Taken(answer.read(Job), again=answer.headers.get("idempotent-replayed") == "true")

    def _note_taken(self, item: Item, taken: "_Taken", looks: "Looks") -> None:
        job = taken.job
        self._pace = self._pace.succeeded()
        self._count(taken=self._progress.taken + 1, resumed=self._progress.resumed + taken.again)
        if job.state.final:
            self._end(item, job)
            return
        if job.id not in self._unfinished:
            looks.follow(job.id)
        self._unfinished.setdefault(job.id, []).append(item)

    def _note(self, job: Job) -> None:
        """What a look has found. A job may be seen twice."""
        if job.state.final:
            for item in self._unfinished.pop(job.id, ()):
                self._end(item, job)

    def _end(self, item: Item, job: Job) -> None:
        name = _COUNTED[job.state]
        self._count(**{name: getattr(self._progress, name) + 1})
        if self._on_end is not None:
            self._on_end(item, job)

    def _call(self, content: Any, key: str) -> Call:
        body = encode_json({"task": self._task, "input": content, **self._options}, what="the job")
        return Call(method="POST", path="/v1/jobs", body=body, key=self._key_of(key))

    def _key_of(self, key: str) -> str:
        """The same for the same item of the same run, in every process."""
        try:
            return hashlib.sha256(f"{self._run}\0{key}".encode()).hexdigest()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the key {key[:100]!r} is no text: {error}", param="key") from error

    def _count(self, **fields: float) -> None:
        self._progress = msgspec.structs.replace(self._progress, **fields)

    def _report(self, next_pass_s: float) -> None:
        self._count(unfinished=sum(map(len, self._unfinished.values())), next_pass_s=next_pass_s)
        if self._on_progress is not None:
            self._on_progress(self._progress)


class Looks:
    """Follows jobs to their end. Each look is a request that the gateway answers when the job ends, or after a while."""

    def __init__(self, line: Line, every_s: float, at_once: int) -> None:
        self._line = line
        self._wait_s = min(every_s, MAX_LOOK_S)
        self._at_once = at_once
        self._due: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self._seen: asyncio.Queue[Job | Exception] = asyncio.Queue()
        self._lookers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._lookers = [asyncio.create_task(self._keep_looking()) for _ in range(self._at_once)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for looker in self._lookers:
            looker.cancel()
        await asyncio.gather(*self._lookers, return_exceptions=True)

    def follow(self, job_id: str, wait_s: float | None = None) -> None:
        """Look at a job until it has ended. `wait_s` is how long the first look may wait for that."""
        self._due.put_nowait((job_id, self._wait_s if wait_s is None else wait_s))

    async def next(self) -> Job:
        """A job as it was just seen, ended or not. Raises what the look raised."""
        return _job(await self._seen.get())

    async def seen(self, within_s: float) -> Sequence[Job]:
        """All that were seen since the last call, at least one, unless there is none within this time."""
        seen: list[Job | Exception] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                seen.append(await self._seen.get())
        while not self._seen.empty():
            seen.append(self._seen.get_nowait())
        return [_job(one) for one in seen]

    async def _look(self, job_id: str, wait_s: float) -> Job:
        call = Call(method="GET", path=f"/v1/jobs/{in_path(job_id)}?wait={wait_s:g}")
        with _passing_refusals():
            answer = await self._line.ask(call, retry=ONCE, timeout_s=wait_s + _PATIENCE_S)
            return answer.read(Job)

    async def _keep_looking(self) -> None:
        clock = self._line.clock
        while True:
            job_id, wait_s = await self._due.get()
            began_at = clock.now()
            try:
                job = await self._look(job_id, wait_s)
            except Exception as error:  # noqa: BLE001 - raised again where the looks are read
                self._seen.put_nowait(error)
                return
            if not job.state.final:
                await clock.sleep(max(0.0, min(_PAUSE_S, wait_s) - (clock.now() - began_at)))
                self.follow(job_id)
            self._seen.put_nowait(job)


@contextlib.contextmanager
def _passing_refusals() -> Iterator[None]:
    try:
        yield
    except (Refused, DeadlineExceeded) as error:
        raise _PassRefused(getattr(error, "retry_after_s", 0.0)) from error


def _job(seen: Job | Exception) -> Job:
    if isinstance(seen, Exception):
        raise seen
    return seen


async def _walk(items: Source[Item]) -> AsyncIterator[Item]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
