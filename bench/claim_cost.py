"""Whether a claim stays cheap: 64 jobs and a look, with millions of rows around them and with a thousand.

The rows are filled in by SQL, of several models and tenants. PostgreSQL gets what autovacuum would have done
meanwhile; SQLite gets nothing, because nobody would have done anything.
"""

import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import apsw
from ground import CHAT_JSON, POSTGRES, Ground, noop

from headgate.core.job import Claim, NewJob
from headgate.core.job_rules import Completed, JobRules, settle
from headgate.core.ports.claims import Want
from headgate.core.ports.store import Store

ROWS: Final = int(os.environ.get("HEADGATE_BENCH_ROWS", "1_000_000"))
FEW: Final = 1000
MODELS: Final = 5
TENANTS: Final = 20
PLACES: Final = 64
LINES: Final = 16
CLAIMS: Final = 60
NODE: Final = "bench"
DAY_S: Final = 86_400.0
SHORT: Final = b'{"messages":[]}'
"""What finished and scheduled jobs were asked; nobody reads it here."""

_SQLITE: Final = """
insert into jobs (id, tenant, task, model, state, lane, priority, max_attempts, hold, revivable, timeout_s,
                  created_at, run_at, due, expires_at, finished_at, result)
with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < :count)
select :state || printf('%08d', n), 'tenant' || (n / 5 % 20), 'bench.noop', 'model' || (n % 5), :state, 'batch', 5, 5,
       1, 1, 600.0, :from_, :from_ + n * 0.001, :from_ + n * 0.001 + 300.0, :from_ + 3e7,
       case when :ended then :from_ + n * 0.001 end, case when :ended then '"ok"' end
from numbers
"""
_LIVE: Final = """
insert into headgate.jobs (id, tenant, task, model, state, lane, priority, max_attempts, hold, revivable, timeout_s,
                           created_at, run_at, due, expires_at, input)
select $2::text || lpad(n::text, 8, '0'), 'tenant' || (n / 5 % 20), 'bench.noop', 'model' || (n % 5), $2, 'batch', 5, 5,
       true, true, 600, $3::float8, $3 + n * 0.001, $3 + n * 0.001 + 300, $3 + 3e7, $4::bytea
from generate_series(1, $1::integer) as n
"""
_ENDED: Final = """
insert into headgate.finished_jobs (id, tenant, task, model, state, lane, priority, attempts, max_attempts, generation,
                                    crashes, deferrals, revivals, lease, hold, revivable, timeout_s, created_at,
                                    run_at, expires_at, finished_at, input, result)
select $2::text || lpad(n::text, 8, '0'), 'tenant' || (n / 5 % 20), 'bench.noop', 'model' || (n % 5), $2, 'batch', 5, 1,
       5, 1, 0, 0, 0, 1, true, true, 600, $3::float8, $3 + n * 0.001, $3 + 3e7, $3 + n * 0.001, $4::bytea,
       '"ok"'::bytea
from generate_series(1, $1::integer) as n
"""


async def costs_ms(few: Ground, many: Ground) -> tuple[tuple[float, float], tuple[float, float]]:
    """(claim, look) with few rows and with many: medians, measured in turns."""
    async with _store(few, FEW, around=0) as small, _store(many, ROWS, around=ROWS) as large:
        costs: tuple[list[tuple[float, float]], ...] = ([], [])
        for number in range(CLAIMS):
            for store, its_costs in zip((small, large), costs, strict=True):
                its_costs.append(await _cost_ms(store, number))
        few_costs, many_costs = (
            (
                statistics.median(claim for claim, _ in its_costs),
                statistics.median(look for _, look in its_costs),
            )
            for its_costs in costs
        )
        return few_costs, many_costs


async def _cost_ms(store: Store, number: int) -> tuple[float, float]:
    now = time.time()
    # A worker's places are dealt to the lines: a few of each.
    lines = [divmod(number + place, MODELS) for place in range(LINES)]
    wants = [Want(f"model{model}", PLACES // LINES, f"tenant{tenant % TENANTS}") for tenant, model in lines]
    start = time.perf_counter()
    await store.ready(now=now)
    looked = time.perf_counter()
    claims = await store.claim(wants, node=NODE, suspects=0, now=now)
    claimed = time.perf_counter()
    if len(claims) != PLACES:
        raise AssertionError(f"{len(claims)} jobs were claimed, not {PLACES}")
    await _replace(store, claims, number, now)
    return (claimed - looked) * 1000, (looked - start) * 1000


async def _replace(store: Store, claims: list[Claim], number: int, now: float) -> None:
    """They end, and as many come after them."""
    done, rules = Completed(b'"ok"'), JobRules()
    await store.settle([settle(one, done, rules=rules, now=now, chance=0.5) for one in claims], now=now)
    anew = [
        NewJob(
            id=f"zz_anew{number:06}{place:06}",
            task=noop.name,
            input=CHAT_JSON,
            run_at=now,
            expires_at=now + DAY_S,
            tenant=one.tenant,
            model=one.model,
        )
        for place, one in enumerate(claims)
    ]
    await store.accept(anew, now=now)


@contextlib.asynccontextmanager
async def _store(ground: Ground, waiting: int, *, around: int) -> AsyncIterator[Store]:
    """With so many that wait, and as many scheduled and finished ones around them."""
    store = ground.store()
    await store.open()
    try:
        if ground.kind == POSTGRES:
            await _fill_postgres(ground, waiting, around)
        else:
            _fill_sqlite(ground, waiting, around)
        await store.join(NODE)
        yield store
    finally:
        await store.aclose()


def _plan(waiting: int, around: int) -> list[tuple[str, int, float, bytes]]:
    """(state, how many, from when on, what they were asked)."""
    now = time.time()
    everything = [
        ("ready", waiting, now - DAY_S, CHAT_JSON),
        ("scheduled", around, now + 30 * DAY_S, SHORT),
        ("completed", around, now - 2 * DAY_S, SHORT),
    ]
    return [part for part in everything if part[1]]


def _fill_sqlite(ground: Ground, waiting: int, around: int) -> None:
    connection = apsw.Connection(ground.file)
    connection.pragma("synchronous", "off")
    connection.pragma("cache_size", -400_000)
    with connection, _without_indexes(connection):
        for state, count, start, body in _plan(waiting, around):
            last = connection.execute("select coalesce(max(seq), 0) from jobs").get
            asked = {"state": state, "count": count, "from_": start, "ended": state == "completed"}
            connection.execute(_SQLITE, asked)
            connection.execute("insert into inputs select seq, ? from jobs where seq > ?", (body, last))
    connection.pragma("wal_checkpoint", "truncate")
    connection.close()


@contextlib.contextmanager
def _without_indexes(connection: apsw.Connection) -> Iterator[None]:
    """They are built faster afterwards."""
    named = (
        "select name, sql from sqlite_master where type = 'index' and tbl_name = 'jobs' and sql is not null"
    )
    indexes = connection.execute(named).fetchall()
    for name, _ in indexes:
        connection.execute(f"drop index {name}")
    yield
    for _, definition in indexes:
        connection.execute(str(definition))


async def _fill_postgres(ground: Ground, waiting: int, around: int) -> None:
    async with ground.connection() as connection:
        await connection.execute("set synchronous_commit = off; set maintenance_work_mem = '512MB'")
        async with _without_their_indexes(connection):
            for state, count, start, body in _plan(waiting, around):
                await connection.execute(_ENDED if state == "completed" else _LIVE, count, state, start, body)
        await connection.execute("vacuum analyze headgate.jobs")
        await connection.execute("vacuum analyze headgate.finished_jobs")
        await connection.execute("checkpoint")


@contextlib.asynccontextmanager
async def _without_their_indexes(connection: Any) -> AsyncIterator[None]:
    named = """
        select indexrelid::regclass::text, pg_get_indexdef(indexrelid)
        from pg_index join pg_class on pg_class.oid = indrelid
        where relnamespace = 'headgate'::regnamespace and relname in ('jobs', 'finished_jobs') and not indisprimary
    """
    indexes = await connection.fetch(named)
    for name, _ in indexes:
        await connection.execute(f"drop index {name}")
    yield
    for _, definition in indexes:
        await connection.execute(definition)
