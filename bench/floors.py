"""What the databases can do bare, on the same disk in the same minute: no checks, no fences, no history, no waiting.

Rows of the same size, the same number in one commit, every commit on the disk before the next.
"""

import asyncio
import contextlib
import itertools
import statistics
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

import apsw
from ground import CHAT_JSON, POSTGRES, Ground

CONNECTIONS: Final = 2
_SQLITE: Final = """
create table jobs (seq integer primary key, id text not null unique, state integer not null default 0,
                   lease integer not null default 0, due real not null, result text) strict;
create index ready on jobs (due) where state = 0;
create table inputs (seq integer primary key, input blob not null) strict;
"""
_POSTGRES: Final = """
create schema peer;
create table peer.jobs (id text primary key, state smallint not null default 0, lease bigint not null default 0,
                        due double precision not null, input bytea not null, result bytea) with (fillfactor = 70);
create index ready on peer.jobs (due) where state = 0;
"""
_INSERT: Final = """
insert into peer.jobs (id, due, input) select unnest($1::text[]), unnest($2::float8[]), unnest($3::bytea[])
"""
_CLAIM: Final = """
update jobs set state = 1, lease = lease + 1
where seq in (select seq from jobs where state = 0 order by due limit ?)
returning id, lease, (select input from inputs where inputs.seq = jobs.seq)
"""


async def accepts_per_s(ground: Ground, *, together: int, seconds: float) -> float:
    """So many rows in every commit."""
    if ground.kind == POSTGRES:
        return await _postgres_accepts(ground, together, seconds)
    with _bare_file(ground) as connection:
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            _insert(connection, together)
            count += together
        return count / (time.perf_counter() - start)


async def commit_ms(ground: Ground, *, count: int) -> float:
    """One row, one commit: the median."""
    took: list[float] = []
    if ground.kind == POSTGRES:
        async with ground.connection() as connection:
            await connection.execute(_POSTGRES)
            for _ in range(count):
                rows = _rows(1)
                start = time.perf_counter()
                await connection.execute(_INSERT, *rows)
                took.append(time.perf_counter() - start)
    else:
        with _bare_file(ground) as connection:
            for _ in range(count):
                start = time.perf_counter()
                _insert(connection, 1)
                took.append(time.perf_counter() - start)
    return statistics.median(took) * 1000


async def drain_per_s(ground: Ground, *, jobs: int, together: int) -> float:
    """SQLite: take so many, write their results, until nothing is left."""
    with _bare_file(ground) as connection:
        for _ in range(jobs // 500):
            _insert(connection, 500)
        start = time.perf_counter()
        while True:
            with connection:
                rows = connection.execute(_CLAIM, (together,)).fetchall()
            if not rows:
                return jobs / (time.perf_counter() - start)
            with connection:
                done = [('"ok"', job_id, lease) for job_id, lease, _ in rows]
                connection.executemany(
                    "update jobs set state = 2, result = ? where id = ? and lease = ? and state = 1", done
                )


@contextlib.contextmanager
def _bare_file(ground: Ground) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(f"{ground.folder}/bare.db")
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.pragma("wal_autocheckpoint", 4000)
    connection.transaction_mode = "IMMEDIATE"
    connection.execute(_SQLITE)
    try:
        yield connection
    finally:
        connection.close()


def _insert(connection: apsw.Connection, count: int) -> None:
    with connection:
        for job_id, due, body in zip(*_rows(count), strict=True):
            connection.execute("insert into jobs (id, due) values (?, ?)", (job_id, due))
            connection.execute("insert into inputs values (?, ?)", (connection.last_insert_rowid(), body))


async def _postgres_accepts(ground: Ground, together: int, seconds: float) -> float:
    """On two connections at a time: while one commit is on its way to the disk, the next is filled."""
    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(ground.connection()) for _ in range(CONNECTIONS)]
        await connections[0].execute(_POSTGRES)
        start = time.perf_counter()
        share = together if together > 50 else together // CONNECTIONS
        counts = await asyncio.gather(*(_copy(each, share, start + seconds) for each in connections))
        return sum(counts) / (time.perf_counter() - start)


async def _copy(connection: Any, together: int, until: float) -> int:
    for flush in itertools.count(1):
        rows = list(zip(*_rows(together), strict=True))
        await connection.copy_records_to_table(
            "jobs", schema_name="peer", columns=("id", "due", "input"), records=rows
        )
        if time.perf_counter() >= until:
            return flush * together
    raise AssertionError("unreachable")


def _rows(count: int) -> tuple[list[str], list[float], list[bytes]]:
    now = time.time()
    return [f"job_{uuid.uuid4().hex}" for _ in range(count)], [now] * count, [CHAT_JSON] * count
