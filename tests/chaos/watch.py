"""The store, as seen from outside: triggers that note who changed a claim, samples of its nodes, all of it at the end."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import apsw
import asyncpg  # type: ignore[import-untyped]
from chaos.books import Books, Change, Disturbance, Kind, Sample, StoredJob, StoredKey, text_of
from chaos.nodes import Node

from headgate.calls.stored import decode_reply

EVERY_S: Final = 0.2
LOOK_S: Final = 2.0
STARVED_S: Final = 0.5
"""So much waiting for a processor between two samples is a disturbance of its own: the machine is busy."""
_FIELDS: Final = "at, job, old_state, state, old_lease, lease, old_owner, owner, owner_known, cancel_at"
_JOB: Final = "id, state, crashes, lease, run_at, reason, metadata, input, result"
_KEY: Final = "key, state, owner, job_id, response_body"
_POSTGRES: Final = f"""
drop schema if exists chaos cascade;
create schema chaos;
create table chaos.changes (
    n bigserial, at float8, job text, old_state text, state text, old_lease bigint, lease bigint, old_owner text,
    owner text, owner_known boolean, cancel_at float8, port integer
);
create function chaos.note() returns trigger language plpgsql as $$
declare gone boolean := tg_op = 'DELETE';
begin
    if not gone and old.state = new.state and old.lease = new.lease and old.owner is not distinct from new.owner then
        return null;
    end if;
    insert into chaos.changes ({_FIELDS}, port) values (
        extract(epoch from clock_timestamp()), old.id, old.state, case when gone then 'gone' else new.state end,
        old.lease, case when gone then old.lease else new.lease end, old.owner,
        case when gone then null else new.owner end,
        exists (select from headgate.nodes where nodes.id = old.owner and to_jsonb(nodes) ->> 'gone' is null),
        old.cancel_at, inet_client_port());
    return null;
end $$;
create trigger chaos after update or delete on headgate.jobs for each row execute function chaos.note();
"""
_SQLITE: Final = f"""
create table chaos_changes (
    n integer primary key, at real, job text, old_state text, state text, old_lease integer, lease integer,
    old_owner text, owner text, owner_known integer, cancel_at real
);
create trigger chaos after update of state, lease, owner on jobs
when old.state is not new.state or old.lease is not new.lease or old.owner is not new.owner
begin
    insert into chaos_changes ({_FIELDS}) values (
        (julianday('now') - 2440587.5) * 86400, old.id, old.state, new.state, old.lease, new.lease, old.owner,
        new.owner, exists (select 1 from nodes where nodes.id = old.owner), old.cancel_at);
end;
"""


class Watched(Protocol):
    """What a watcher can do on either store."""

    async def install(self) -> None: ...
    async def sample(self) -> tuple[dict[str, str], dict[str, int], list[tuple[str, float]]]:
        """The rows of `nodes`, the connections of each process, its transactions that say nothing."""

    async def read(self, books: Books) -> None:
        """All jobs, keys and changes."""


class PostgresWatch:
    """Straight to the server, past every wire. Who a connection belongs to is known by its port."""

    def __init__(self, url: str, nodes: Sequence[Node]) -> None:
        self._url = url
        self._nodes = nodes

    async def install(self) -> None:
        await self._with(lambda connection: connection.execute(_POSTGRES))

    async def sample(self) -> tuple[dict[str, str], dict[str, int], list[tuple[str, float]]]:
        async def look(connection: Any) -> tuple[list[Any], list[Any]]:
            rows = await connection.fetch(
                "select id, nodes::text from headgate.nodes where to_jsonb(nodes) ->> 'gone' is null"
            )
            ours = await connection.fetch(
                "select client_port, state, extract(epoch from clock_timestamp() - state_change)::float8"
                " from pg_stat_activity where application_name = 'headgate' and client_port is not null"
            )
            return rows, ours

        async with asyncio.timeout(LOOK_S):
            rows, ours = await self._with(look)
        now = time.time()
        connections = Counter(self._process(port, now) for port, _, _ in ours)
        idle = [
            (self._process(port, now), idle_s) for port, state, idle_s in ours if "in trans" in (state or "")
        ]
        return dict(rows), dict(connections), idle

    async def read(self, books: Books) -> None:
        async def look(connection: Any) -> None:
            live = await connection.fetch(
                f"select {_JOB.replace('reason', 'null').replace('result', 'null')} from headgate.jobs"
            )
            over = await connection.fetch(f"select {_JOB} from headgate.finished_jobs")
            books.jobs = [_job(row) for row in (*live, *over)]
            books.keys = [
                _key(row) for row in await connection.fetch(f"select {_KEY} from headgate.idempotency_keys")
            ]
            changes = await connection.fetch(f"select {_FIELDS}, port from chaos.changes order by n")
            books.changes = [Change(*(*row[:-1], self._process(row[-1], row[0]))) for row in changes]

        await self._with(look)

    async def _with(self, use: Callable[[Any], Any]) -> Any:
        connection = await asyncpg.connect(self._url, timeout=LOOK_S)
        try:
            return await use(connection)
        finally:
            connection.terminate()

    def _process(self, port: int | None, at: float) -> str:
        """Who opened a connection from this port last, before that moment."""
        opened = [
            (when, node)
            for node in self._nodes
            for when, known in (node.wire.opened if node.wire else ())
            if known == port and when <= at
        ]
        if not opened:
            return "?"
        when, node = max(opened, key=lambda one: one[0])
        return node.process_at(when)


class SqliteWatch:
    """The same file, from a process of its own."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def install(self) -> None:
        self._query(_SQLITE, write=True)

    async def sample(self) -> tuple[dict[str, str], dict[str, int], list[tuple[str, float]]]:
        """Every process writes to the same file, so nothing is known of connections."""
        columns = [row[1] for row in self._query("pragma table_info(nodes)")]
        alive = "where gone is null" if "gone" in columns else ""
        return {row[0]: repr(row) for row in self._query(f"select * from nodes {alive}")}, {}, []

    async def read(self, books: Books) -> None:
        joined = _JOB.replace("input", "(select input from inputs where inputs.seq = jobs.seq)")
        books.jobs = [_job(row) for row in self._query(f"select {joined} from jobs")]
        books.keys = [_key(row) for row in self._query(f"select {_KEY} from idempotency_keys")]
        changes = self._query(f"select {_FIELDS} from chaos_changes order by n")
        books.changes = [Change(*(*row, None)) for row in changes]

    def _query(self, statement: str, *, write: bool = False) -> list[Any]:
        flags = apsw.SQLITE_OPEN_READWRITE
        with contextlib.closing(apsw.Connection(str(self._file), flags=flags)) as connection:
            connection.set_busy_timeout(10_000 if write else 1000)
            return list(connection.execute(statement))


def _job(row: Sequence[Any]) -> StoredJob:
    job_id, state, crashes, lease, run_at, reason, metadata, asked, result = row
    prompt = json.loads(asked)["messages"][-1]["content"]
    text = text_of(result.encode() if isinstance(result, str) else result) if result else None
    name = json.loads(metadata)["name"] if metadata else ""
    return StoredJob(job_id, state, crashes, lease, run_at, reason, name, prompt, text)


def _key(row: Sequence[Any]) -> StoredKey:
    key, state, owner, job_id, body = row
    text = text_of(decode_reply(body).body) if body else None
    return StoredKey(key, state, owner, job_id, text)


# ---- Samples, all the while ------------------------------------------------------------------------------


class Sampler:
    """Notes what the store says of the nodes, and how long the machine keeps processes waiting, until it is stopped."""

    def __init__(
        self, watched: Watched, nodes: Sequence[Node], folders: Sequence[Path], books: Books
    ) -> None:
        self._watched = watched
        self._nodes = nodes
        self._folders = folders
        self._books = books
        self._waited: dict[int, float] = {}

    async def run(self) -> None:
        expected = time.time()
        while True:
            late_s = time.time() - expected
            if late_s > STARVED_S:
                # This process is the network of all the others.
                self._starved(None, late_s)
            self._look_for_starved()
            with contextlib.suppress(
                OSError,
                TimeoutError,
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,
                apsw.Error,
            ):
                nodes, connections, idle = await self._watched.sample()
                sample = Sample(time.time(), nodes, self._owners(), connections, idle)
                self._books.samples.append(sample)
            expected = time.time() + EVERY_S
            await asyncio.sleep(EVERY_S)

    def _owners(self) -> Mapping[str, str]:
        """Who holds the lock file of each node id."""
        pids = {
            child.pid: f"{node.name}#{n}" for node in self._nodes for n, child in enumerate(node.children, 1)
        }
        found = {}
        for lock in (lock for folder in self._folders for lock in (folder / "nodes").glob("*.lock")):
            with contextlib.suppress(OSError, ValueError):
                found[lock.stem] = pids.get(int(lock.read_text()), "?")
        return found

    def _look_for_starved(self) -> None:
        """How long each process was ready to run and had no processor, by the kernel's own count."""
        for node in self._nodes:
            if not node.children or node.changing.locked():
                continue
            with contextlib.suppress(OSError):
                waited = int(Path(f"/proc/{node.child.pid}/schedstat").read_text().split()[1]) / 1e9
                more_s = waited - self._waited.get(node.child.pid, waited)
                self._waited[node.child.pid] = waited
                if more_s > STARVED_S:
                    self._starved(node.name, more_s)

    def _starved(self, node: str | None, seconds: float) -> None:
        """One disturbance for as long as it lasts."""
        now = time.time()
        began = now - seconds - EVERY_S
        for one in reversed(self._books.disturbances):
            if one.kind is Kind.STARVED and one.node == node and one.touches(began - EVERY_S, now):
                one.ended = now
                return
        self._books.disturbances.append(Disturbance(Kind.STARVED, node, began, now))
