"""The outbox on the disk: one SQLite file that several processes share. Reads and writes; decides nothing."""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from headgate.core.errors import KeyMismatch, SettingsError
from headgate.core.outbox import EntryState, Standing
from headgate.machine.sqlite.opening import open_shared
from headgate.machine.sqlite.place import Place
from headgate.machine.sqlite.troubles import FilesRemoved

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

APPLICATION_ID: Final = 0x68674F42
"""`hgOB`: whose file it is."""
SCHEMA: Final = 1
_CREATE: Final = f"""
create table entries (
  id integer primary key autoincrement,  -- the order within a stream
  stream text not null,
  path text not null,
  body blob not null,                    -- sent as it is, each time
  key text not null unique,
  created_at real not null,
  changed_at real not null,
  version integer not null default 0,    -- of the columns below; each change raises it
  state text not null check (state in ('waiting', 'sent', 'failed')),
  failures integer not null default 0,
  doubt_since real,
  reason text,
  server_id text
) strict;
create index entries_waiting on entries (stream, id) where state = 'waiting';
pragma application_id = {APPLICATION_ID};
pragma user_version = {SCHEMA};
"""
_ADD: Final = """
insert into entries (stream, path, body, key, state, created_at, changed_at)
values (:stream, :path, :body, :key, 'waiting', :now, :now) on conflict (key) do nothing
"""
_STREAMS: Final = "select stream from entries where state = 'waiting' group by stream order by min(id)"
_NEXT: Final = "select * from entries where state = 'waiting' and stream = ? order by id limit 1"
_KEYED: Final = "select * from entries where key = ?"
_FIND: Final = "select * from entries where id = ?"
_LIST: Final = """
select * from entries
where (:state is null or state = :state) and (:stream is null or stream = :stream) order by id
"""
_WRITE: Final = """
update entries set state = :state, failures = :failures, doubt_since = :doubt_since, reason = :reason,
  server_id = :server_id, changed_at = :now, version = version + 1
where id = :id and version = :version returning *
"""
_DISCARD: Final = "delete from entries where id = ? and state <> 'sent' returning *"
_PRUNE: Final = "delete from entries where state = 'sent' and changed_at < ?"
_COUNT: Final = "select count(*) from entries where state = ?"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to be sent, and how it stands. Times are epoch seconds."""

    id: int
    stream: str
    path: str
    body: msgspec.Raw
    key: str
    created_at: float
    changed_at: float
    version: int
    standing: Standing

    @property
    def state(self) -> EntryState:
        return self.standing.state


class OutboxFile:
    """Every change is one transaction, on the disk when its method returns."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._place = Place(Path(path))
        self._turn = threading.Lock()
        with self._told():
            self._place.make()
            self._database = open_shared(self._place.path)
            self._prepare()

    @property
    def path(self) -> Path:
        return self._place.path

    def close(self) -> None:
        """A write that a cancelled flush has begun in its thread is waited for."""
        with self._turn:
            self._place.close(self._database)

    def add(self, *, stream: str, path: str, body: bytes, key: str, now: float) -> Entry:
        """The same again under the same key is the same entry."""
        fields = {"stream": stream, "path": path, "body": body, "key": key, "now": now}
        self._rows(_ADD, fields)
        (entry,) = self._entries(_KEYED, (key,))
        if (entry.stream, entry.path, bytes(entry.body)) != (stream, path, body):
            raise KeyMismatch(key)
        return entry

    def add_all(self, entries: Iterable[tuple[str, bytes]], *, stream: str, path: str, now: float) -> None:
        """All of them or none: (new key, body) each."""
        rows = [
            {"stream": stream, "path": path, "body": body, "key": key, "now": now} for key, body in entries
        ]
        with self._told(), self._turn:
            self._check()
            with self._database:
                self._database.executemany(_ADD, rows)

    def streams(self) -> list[str]:
        """Those with something to send, the one that waits longest first."""
        return [stream for (stream,) in self._rows(_STREAMS)]

    def next(self, stream: str) -> Entry | None:
        return next(iter(self._entries(_NEXT, (stream,))), None)

    def find(self, entry_id: int) -> Entry | None:
        return next(iter(self._entries(_FIND, (entry_id,))), None)

    def list(self, *, state: EntryState | None, stream: str | None) -> Sequence[Entry]:
        return self._entries(_LIST, {"state": state and str(state), "stream": stream})

    def write(self, entry: Entry, standing: Standing, *, now: float) -> Entry | None:
        """None when somebody has changed or removed the entry since it was read."""
        fields = {**msgspec.structs.asdict(standing), "state": str(standing.state)}
        asked = {**fields, "id": entry.id, "version": entry.version, "now": now}
        return next(iter(self._entries(_WRITE, asked)), None)

    def discard(self, entry_id: int) -> Entry | None:
        return next(iter(self._entries(_DISCARD, (entry_id,))), None)

    def prune(self, *, before: float) -> None:
        self._rows(_PRUNE, (before,))

    def count(self, state: EntryState) -> int:
        return int(self._rows(_COUNT, (str(state),))[0][0])

    @contextlib.contextmanager
    def only_sender(self) -> Iterator[bool]:
        """Whether we are the only one who sends from this file. The lock goes with its process, however that ends."""
        if fcntl is None:  # pragma: no cover - Windows
            raise SettingsError("an outbox needs file locks, and this system has none that we know")
        lock = os.open(f"{self._place.path}.sending", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(lock)

    def _prepare(self) -> None:
        """Two processes may open a new file at once."""
        database = self._database
        database.execute("begin immediate")
        try:
            if database.execute("select 1 from sqlite_master").get is None:
                database.execute(_CREATE)
            found = database.pragma("application_id"), database.pragma("user_version")
        finally:
            database.execute("commit")
        if found != (APPLICATION_ID, SCHEMA):
            raise SettingsError(
                f"{self._place.path} is no outbox that this headgate knows; name another file"
            )

    def _entries(self, statement: str, bindings: Any) -> Sequence[Entry]:
        return [_entry(*row) for row in self._rows(statement, bindings)]

    def _rows(self, statement: str, bindings: Any = ()) -> Sequence[Any]:
        with self._told(), self._turn:
            self._check()
            return self._database.execute(statement, bindings).fetchall()

    def _check(self) -> None:
        try:
            self._place.check(self._database)
        except FilesRemoved:
            self._place.save(self._database)
            raise

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, OSError) as error:
            raise self._place.translated(error) from error


def _entry(*row: Any) -> Entry:
    entry_id, stream, path, body, key, created_at, changed_at, version, state, *rest = row
    failures, doubt_since, reason, server_id = rest
    return Entry(
        id=entry_id,
        stream=stream,
        path=path,
        body=msgspec.Raw(body),
        key=key,
        created_at=created_at,
        changed_at=changed_at,
        version=version,
        standing=Standing(
            state=EntryState(state),
            failures=failures,
            doubt_since=doubt_since,
            reason=reason,
            server_id=server_id,
        ),
    )
