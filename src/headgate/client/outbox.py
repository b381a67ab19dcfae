"""The outbox: what is to be done is written down first, without any network, and sent when the gateway is there.

The rules are in `core/outbox.py`, the file in `outbox_file.py`, the sending in `flush.py`.
"""

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from headgate.client.asking import given, header_key
from headgate.client.asynchronous import AsyncClient
from headgate.client.bookmarks import PATH as BOOKMARKS
from headgate.client.bookmarks import bookmark_body
from headgate.client.flush import JOBS, Flush, Flushed
from headgate.client.outbox_file import Entry, OutboxFile
from headgate.core import outbox as rules
from headgate.core.call import check_text
from headgate.core.errors import InvalidRequest, StateConflict
from headgate.core.feeding import Pace
from headgate.core.json_text import encode_json
from headgate.core.outbox import EntryState
from headgate.core.ports.clock import Chance, Clock
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id

OPTIONS: Final = frozenset(
    {
        "model",
        "lane",
        "priority",
        "max_attempts",
        "run_at",
        "expires_after_s",
        "timeout_s",
        "dedup_key",
        "hold",
        "webhook",
        "metadata",
    }
)
"""What may be said about a job besides its task and input."""


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
        check_text("task", task)
        if unknown := options.keys() - OPTIONS:
            raise InvalidRequest(
                f"a job has no {min(unknown)!r}; there are {', '.join(sorted(OPTIONS))}", param=min(unknown)
            )
        return self._add(JOBS, {"task": task, "input": input, **given(**options)}, stream, idempotency_key)

    def add_bookmark(
        self, url: str, *, stream: str = "bookmarks", idempotency_key: str | None = None, **fields: Any
    ) -> Entry:
        """A bookmark to be saved; the fields of `client.bookmarks.save`."""
        return self._add(BOOKMARKS, bookmark_body(url, **fields), stream, idempotency_key)

    def add_bookmarks(self, saves: Iterable[Mapping[str, Any]], *, stream: str = "bookmarks") -> None:
        """Many at once, and in a fraction of the time: all are on the disk when this returns, or none is."""
        check_text("stream", stream)
        bodies = [encode_json(bookmark_body(**save), what="the entry") for save in saves]
        entries = [(self._new_id(), body) for body in bodies]
        self._file.add_all(entries, stream=stream, path=BOOKMARKS, now=self._now())

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
                return Flushed(busy=True, waiting=self._file.count(EntryState.WAITING))
            return await Flush(self._file, client.line, self._clock, self._chance, self._horizon_s).run(
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
        made = self._new_id() if key is None else header_key(key)
        return self._file.add(
            stream=stream, path=path, body=encode_json(body, what="the entry"), key=made, now=self._now()
        )

    def _now(self) -> float:
        return self._clock.utc().timestamp()
