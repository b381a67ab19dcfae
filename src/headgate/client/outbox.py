"""The outbox: what is to be done is written down first, without any network, and sent when the gateway is there.

The rules are in `core/outbox.py`, the file in `outbox_file.py`. Here they meet the gateway.
"""

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from headgate.client.asking import given
from headgate.client.asynchronous import AsyncClient
from headgate.client.bookmarks import PATH as BOOKMARKS
from headgate.client.bookmarks import bookmark_body
from headgate.client.errors import GatewayUnreachable
from headgate.client.line import ONCE, Call
from headgate.client.outbox_file import Entry, OutboxFile
from headgate.core import outbox as rules
from headgate.core.errors import (
    DeadlineExceeded,
    HeadgateError,
    InvalidRequest,
    KeyInProgress,
    NotAllowed,
    Refused,
    SettingsError,
    StateConflict,
    StoreUnavailable,
    Unauthorized,
)
from headgate.core.feeding import Pace
from headgate.core.idempotency import check_key
from headgate.core.messages import check_text
from headgate.core.outbox import EntryState, Failed, NotNow, Outcome, Standing, Taken
from headgate.core.ports.clock import Chance, Clock
from headgate.core.retry import RetryPolicy
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id

__all__ = ["Entry", "EntryState", "Flushed", "Outbox"]
STREAMS_AT_ONCE: Final = 8
_AGAIN: Final = RetryPolicy.web()
_OPERATORS: Final = (Unauthorized, NotAllowed, SettingsError)
"""Not the entry's fault: a wrong key must not fill the outbox with failures."""
_PERHAPS_STORED: Final = (StoreUnavailable, KeyInProgress, GatewayUnreachable)


class _Stored(msgspec.Struct):
    id: str


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a flush."""

    sent: int = 0
    failed: int = 0
    waiting: int = 0
    busy: bool = False
    """Another process is sending from this file; nothing was done."""
    trouble: str | None = None
    """Why it stopped before all was sent."""
    retry_after_s: float = 0.0


class Outbox:
    """`Outbox("outbox.db").add("summarise", article)`, and `await outbox.flush(client)` whenever there may be a gateway.

    Entries of one stream are sent in their order, one at a time; streams do not wait for each other.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        horizon_h: float = rules.HORIZON_H,
        keep_days: float = 7.0,
        clock: Clock | None = None,
        chance: Chance = random.random,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self._file = OutboxFile(path)
        self._horizon_s = horizon_h * 3600
        self._keep_s = keep_days * 86_400
        self._clock = clock or SystemClock()
        self._chance = chance
        self._new_id = new_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    # ---- Without a network -------------------------------------------------------------------------------

    def add(
        self,
        task: str,
        input: Any = None,  # noqa: A002 - its name everywhere
        *,
        stream: str = "default",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Entry:
        """A job to be submitted. It is on the disk when this returns, with the key it will have for ever."""
        return self._add(
            "/v1/jobs", {"task": task, "input": input, **given(**options)}, stream, idempotency_key
        )

    def add_bookmark(
        self, url: str, *, stream: str = "bookmarks", idempotency_key: str | None = None, **fields: Any
    ) -> Entry:
        """A bookmark to be saved; the fields of `client.bookmarks.save`."""
        return self._add(BOOKMARKS, bookmark_body(url, **fields), stream, idempotency_key)

    def get(self, entry_id: int) -> Entry:
        entry = self._file.find(entry_id)
        if entry is None:
            raise InvalidRequest(f"there is no entry {entry_id} in {self._file.path}", param="id")
        return entry

    def list(self, *, state: EntryState | str | None = None, stream: str | None = None) -> Sequence[Entry]:
        """In the order in which they were added."""
        return self._file.list(state=None if state is None else EntryState(state), stream=stream)

    def retry(self, entry_id: int) -> Entry:
        """A failed entry waits again, in its old place and under its old key."""
        entry = self.get(entry_id)
        again = None
        if entry.state is EntryState.FAILED:
            again = self._file.write(entry, rules.again(entry.standing), now=self._now())
        if again is None:
            raise StateConflict(f"entry {entry_id} is {entry.state}: only a failed one can be sent again")
        return again

    def discard(self, entry_id: int) -> Entry:
        """Never send it (again). One with `doubt_since` may have reached the gateway all the same."""
        gone = self._file.discard(entry_id)
        if gone is None:
            raise StateConflict(f"entry {entry_id} is {self.get(entry_id).state}: the gateway has it")
        return gone

    # ---- With one ----------------------------------------------------------------------------------------

    async def flush(self, client: AsyncClient) -> Flushed:
        """Send what waits, as far as it goes. A gateway that is full or away ends it early, and costs no entry anything."""
        with self._file.only_sender() as alone:
            if not alone:
                return Flushed(busy=True, waiting=self._file.count_waiting())
            return await _Flush(self._file, client, self._clock, self._chance, self._horizon_s).run(
                prune_before=self._now() - self._keep_s
            )

    async def run(self, client: AsyncClient, *, every_s: float = 10.0) -> None:
        """Flush again and again, ever more rarely while the gateway is full or away. Ends when cancelled."""
        pace = Pace(every_s)
        while True:
            flushed = await self.flush(client)
            pace = pace.succeeded() if flushed.trouble is None else pace.refused()
            await self._clock.sleep(pace.wait_s(flushed.retry_after_s))

    def _add(self, path: str, body: dict[str, Any], stream: str, key: str | None) -> Entry:
        check_text("stream", stream)
        made = self._new_id() if key is None else check_key(key)
        return self._file.add(
            stream=stream, path=path, body=msgspec.json.encode(body), key=made, now=self._now()
        )

    def _now(self) -> float:
        return self._clock.utc().timestamp()


class _Flush:
    """One flush of one file."""

    def __init__(
        self, file: OutboxFile, client: AsyncClient, clock: Clock, chance: Chance, horizon_s: float
    ) -> None:
        self._file = file
        self._client = client
        self._clock = clock
        self._chance = chance
        self._horizon_s = horizon_s
        self._sent = self._failed = 0
        self._trouble: HeadgateError | None = None
        self._fatal: HeadgateError | None = None
        """What ends the flush with an error: a wrong access key, a disk that is full."""

    async def run(self, *, prune_before: float) -> Flushed:
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
            waiting=await asyncio.to_thread(self._file.count_waiting),
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
        if begun != entry.standing and await self._write(entry, begun) is None:
            return begun  # Discarded under our eyes.
        if begun.state is EntryState.FAILED:
            self._failed += 1
            return begun
        outcome = await self._send(entry)
        after = rules.conclude(entry.standing, begun, outcome)
        await self._write(entry, after)
        self._sent += after.state is EntryState.SENT
        self._failed += after.state is EntryState.FAILED
        return after

    async def _send(self, entry: Entry) -> Outcome:
        call = Call(method="POST", path=entry.path, body=bytes(entry.body), key=entry.key)
        try:
            answer = await self._client.line.ask(call, retry=ONCE)
            return Taken(answer.read(_Stored).id)
        except HeadgateError as error:
            outcome = outcome_of(error)
            if isinstance(error, _OPERATORS):
                self._fatal = error
            elif isinstance(outcome, NotNow):
                self._trouble = error
            return outcome

    async def _write(self, entry: Entry, standing: Standing) -> Entry | None:
        return await asyncio.to_thread(self._file.write, entry, standing, now=self._now())

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def outcome_of(error: HeadgateError) -> Outcome:
    """What an error says about the entry: whether it counts, and whether the gateway may have it all the same."""
    if isinstance(error, GatewayUnreachable):
        return NotNow(nothing_stored=not error.sent)
    if isinstance(error, Refused):
        return NotNow(nothing_stored=not isinstance(error, _PERHAPS_STORED))
    if isinstance(error, DeadlineExceeded):
        return NotNow(nothing_stored=False)
    if isinstance(error, _OPERATORS):
        return NotNow(nothing_stored=True)
    refused = isinstance(error, InvalidRequest | StateConflict)
    return Failed(f"{error.code}: {error}", nothing_stored=refused)
