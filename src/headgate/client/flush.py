"""One flush of an outbox: the rules meet the file and the gateway."""

import asyncio
from typing import Final

import msgspec

from headgate.client.errors import GatewayUnreachable
from headgate.client.line import ONCE, Call, Line
from headgate.client.outbox_file import Entry, OutboxFile
from headgate.core import outbox as rules
from headgate.core.errors import (
    DeadlineExceeded,
    HeadgateError,
    InvalidRequest,
    KeyInProgress,
    ModelNotAllowed,
    NotAllowed,
    QuotaExceeded,
    Refused,
    SettingsError,
    StateConflict,
    StoreUnavailable,
    Unauthorized,
)
from headgate.core.job import Job
from headgate.core.outbox import EntryState, Failed, NotNow, Outcome, Standing, Taken
from headgate.core.ports.clock import Chance, Clock
from headgate.core.retry import RetryPolicy

JOBS: Final = "/v1/jobs"
STREAMS_AT_ONCE: Final = 8
_AGAIN: Final = RetryPolicy.web()
_OPERATORS: Final = (Unauthorized, NotAllowed, SettingsError)
"""Not the entry's fault: a wrong key must not fill the outbox with failures."""
_PERHAPS_STORED: Final = (StoreUnavailable, KeyInProgress, GatewayUnreachable)


class _Bookmark(msgspec.Struct):
    id: str
    url: str


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a flush."""

    sent: int = 0
    failed: int = 0
    failed_earlier: int = 0
    """By flushes before this one; they still need a person."""
    waiting: int = 0
    busy: bool = False
    """Another process is sending from this file; nothing was done."""
    trouble: str | None = None
    """Why it stopped before all was sent."""
    retry_after_s: float = 0.0


class Flush:
    """One flush of one file."""

    def __init__(self, file: OutboxFile, line: Line, clock: Clock, chance: Chance, horizon_s: float) -> None:
        self._file = file
        self._line = line
        self._clock = clock
        self._chance = chance
        self._horizon_s = horizon_s
        self._sent = self._failed = 0
        self._trouble: HeadgateError | None = None
        self._fatal: HeadgateError | None = None
        """What ends the flush with an error: a wrong access key, a disk that is full."""

    async def run(self, *, prune_before: float) -> Flushed:
        self._line.stay_on_one_loop()
        await asyncio.to_thread(self._file.prune, before=prune_before)
        places = asyncio.Semaphore(STREAMS_AT_ONCE)

        async def empty(stream: str) -> None:
            async with places:
                try:
                    await self._empty(stream)
                except HeadgateError as error:
                    self._fatal = error

        async with asyncio.TaskGroup() as group:
            for stream in await asyncio.to_thread(self._file.streams):
                group.create_task(empty(stream))
        if self._fatal is not None:
            raise self._fatal
        return Flushed(
            sent=self._sent,
            failed=self._failed,
            failed_earlier=max(0, await self._count(EntryState.FAILED) - self._failed),
            waiting=await self._count(EntryState.WAITING),
            trouble=None if self._trouble is None else str(self._trouble),
            retry_after_s=getattr(self._trouble, "retry_after_s", 0.0),
        )

    async def _empty(self, stream: str) -> None:
        """Send a stream's entries in their order, until it is empty or the gateway has had enough."""
        while self._trouble is None and self._fatal is None:
            entry = await asyncio.to_thread(self._file.next, stream)
            if entry is None:
                return
            standing = await self._carry(entry)
            if standing.state is EntryState.WAITING and standing.failures:
                # A failure that counts: the next try is worth more a little later.
                await self._clock.sleep(_AGAIN.backoff_s(standing.failures, self._chance()))

    async def _carry(self, entry: Entry) -> Standing:
        """One try. Whatever kills us in here, what is on the disk is enough to go on."""
        begun = rules.begin(entry.standing, now=self._now(), horizon_s=self._horizon_s)
        on_its_way = await self._write(entry, begun)
        if on_its_way is None:
            return begun  # Discarded under our eyes.
        if begun.state is EntryState.FAILED:
            self._failed += 1
            return begun
        after = rules.conclude(entry.standing, begun, await self._send(entry))
        await self._write(on_its_way, after)
        self._sent += after.state is EntryState.SENT
        self._failed += after.state is EntryState.FAILED
        return after

    async def _send(self, entry: Entry) -> Outcome:
        call = Call(method="POST", path=entry.path, body=bytes(entry.body), key=entry.key)
        try:
            answer = await self._line.ask(call, retry=ONCE)
            kind: type[Job | _Bookmark] = Job if entry.path == JOBS else _Bookmark
            return Taken(answer.read(kind).id)
        except HeadgateError as error:
            outcome = outcome_of(error)
            if isinstance(outcome, NotNow) and isinstance(error, _OPERATORS):
                self._fatal = error
            elif isinstance(outcome, NotNow):
                self._trouble = error
            return outcome

    async def _write(self, entry: Entry, standing: Standing) -> Entry | None:
        if standing == entry.standing:
            return entry
        return await asyncio.to_thread(self._file.write, entry, standing, now=self._now())

    async def _count(self, state: EntryState) -> int:
        return await asyncio.to_thread(self._file.count, state)

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def outcome_of(error: HeadgateError) -> Outcome:
    """What an error says about the entry: whether it counts, and whether the gateway may have it all the same."""
    if isinstance(error, ModelNotAllowed):
        return Failed(f"{error.code}: {error}", nothing_stored=True)
    if isinstance(error, GatewayUnreachable):
        return NotNow(nothing_stored=not error.sent)
    if isinstance(error, Refused):
        return NotNow(nothing_stored=not isinstance(error, _PERHAPS_STORED))
    if isinstance(error, DeadlineExceeded):
        return NotNow(nothing_stored=False)
    if isinstance(error, (*_OPERATORS, QuotaExceeded)):
        return NotNow(nothing_stored=True)
    refused = isinstance(error, InvalidRequest | StateConflict)
    return Failed(f"{error.code}: {error}", nothing_stored=refused)
