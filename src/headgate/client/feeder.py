"""Feeds a task with many items: bounded, resumable, and calm when the gateway is full.

A pass looks at what is unfinished and fills the free places. The feeder owns its retries: each request is tried once,
and what is refused waits for the next pass.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from headgate.client.asking import given, in_path
from headgate.client.line import ONCE, Call, Line
from headgate.core.errors import DeadlineExceeded, InvalidRequest, ModelNotAllowed, Refused
from headgate.core.feeding import Pace
from headgate.core.job import Job, JobState
from headgate.core.json_text import encode_json

Item = TypeVar("Item")
Source: TypeAlias = Iterable[Item] | AsyncIterable[Item]
LOOKS_AT_ONCE: Final = 16
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
        """The item that was refused last: the first of the next pass."""
        self._over = False

    async def feed(
        self,
        items: Source[Item],
        *,
        on_progress: Callable[[Progress], object] | None = None,
        on_end: Callable[[Item, Job], object] | None = None,
        on_rejected: Callable[[Item, Exception], object] | None = None,
    ) -> Progress:
        """Until every item has ended. `on_end` hears of each, also of those that an earlier run has done."""
        source = _walk(items)
        self._on_end = on_end
        self._on_rejected = on_rejected
        while True:
            wait_s = await self._pass(source)
            over = self._over and not self._unfinished
            unfinished = sum(map(len, self._unfinished.values()))
            self._count(unfinished=unfinished, next_pass_s=0.0 if over else wait_s)
            if on_progress is not None:
                on_progress(self._progress)
            if over:
                return self._progress
            await self._line.clock.sleep(wait_s)

    async def _pass(self, source: AsyncIterator[Item]) -> float:
        """Returns how long to wait for the next one."""
        try:
            await self._look()
            await self._fill(source)
        except (Refused, DeadlineExceeded) as error:
            self._pace = self._pace.refused()
            self._count(refusals=self._progress.refusals + 1)
            return self._pace.wait_s(getattr(error, "retry_after_s", 0.0))
        return self._pace.wait_s()

    async def _look(self) -> None:
        """See which of the unfinished have ended."""
        turns = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def look(job_id: str) -> Job:
            async with turns:
                call = Call(method="GET", path=f"/v1/jobs/{in_path(job_id)}")
                return (await self._line.ask(call, retry=ONCE)).read(Job)

        found = await asyncio.gather(*map(look, self._unfinished), return_exceptions=True)
        for job in found:
            if isinstance(job, Job) and job.state.final:
                for item in self._unfinished.pop(job.id):
                    self._end(item, job)
        troubles = [job for job in found if isinstance(job, BaseException)]
        if troubles:
            raise troubles[0]

    async def _fill(self, source: AsyncIterator[Item]) -> None:
        while len(self._unfinished) < self._in_flight:
            if not self._held:
                try:
                    self._held.append(await anext(source))
                except StopAsyncIteration:
                    self._over = True
                    return
            await self._submit(self._held[0])
            self._held.clear()

    async def _submit(self, item: Item) -> None:
        content = item if self._input is None else self._input(item)
        key = self._key(item)
        try:
            answer = await self._line.ask(self._call(content, key), retry=ONCE)
        except (InvalidRequest, ModelNotAllowed) as error:
            if getattr(error, "param", None) == "task":
                raise  # No item will fare better.
            self._count(rejected=self._progress.rejected + 1)
            if self._on_rejected is not None:
                self._on_rejected(item, error)
            return
        self._pace = self._pace.succeeded()
        again = answer.headers.get("idempotent-replayed") == "true"
        self._count(taken=self._progress.taken + 1, resumed=self._progress.resumed + again)
        job = answer.read(Job)
        if job.state.final:
            self._end(item, job)
        else:
            self._unfinished.setdefault(job.id, []).append(item)

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


async def _walk(items: Source[Item]) -> AsyncIterator[Item]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
