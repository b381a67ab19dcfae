"""Query plans with 50,000 jobs waiting and as many finished: every hot statement goes by its index."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import postgres
import pytest
from stores.postgres_stage import NOW, after, new_id, opened

from headgate.core.job import JobState
from headgate.core.ports.claims import Want
from headgate.core.ports.jobs import JobFilter
from headgate.machine.clock import SystemClock
from headgate.stores.postgres import PostgresStore
from headgate.stores.postgres.base import SQL
from headgate.stores.postgres.columns import back_row, columns, final_row

ROWS = 50_000
BATCH = "case when n > 45000 then 'batch' || n % 10 end"
"""One job in ten belongs to one of ten batches: those of a batch are few, beside all others."""
FILL = """
insert into headgate.{table} (id, tenant, task, model, state, lane, priority, attempts, max_attempts, generation,
    crashes, deferrals, revivals, lease, hold, revivable, timeout_s, created_at, run_at, expires_at, input, batch_id {more})
select 'old-' || lpad(n::text, 9, '0'), 'tenant' || n % 50, 'chat', 'm' || n % 3, {state}, 'batch', 5, 0, 5, 1, 0, 0,
    0, 0, true, true, 600, {now}, {now}, {now} + 86400, '{{}}', {batch} {values}
from generate_series(1, {rows}) as n
"""
FILL_KEYS = f"""
insert into headgate.idempotency_keys (tenant, endpoint, key, request_hash, state, lease, created_at, expires_at)
select 'local', 'POST /jobs', n::text, '', 'done', 1, {NOW}, {NOW} + n from generate_series(1, {ROWS}) as n
"""


@pytest.fixture(scope="module")
def filled_url(postgres_server: postgres.Server) -> Iterator[str]:
    url = postgres_server.clear()
    asyncio.run(_fill(url))
    yield url
    postgres_server.clear()


async def _fill(url: str) -> None:
    async with opened(url):
        pass
    live = "case when n % 10 = 0 then 'scheduled' else 'ready' end"
    ended = "case when n % 100 = 0 then 'dead_letter' else 'completed' end"
    connection = await asyncpg.connect(url)
    for table, state, more, values in (
        ("jobs", live, ", due", f", {NOW} + n"),
        ("finished_jobs", ended, ", finished_at", f", {NOW} + n"),
    ):
        asked = {"table": table, "state": state, "more": more, "values": values}
        await connection.execute(FILL.format(**asked, now=NOW, rows=ROWS, batch=BATCH))
        await connection.execute(f"vacuum analyze headgate.{table}")
    await connection.execute(FILL_KEYS)
    await connection.execute("vacuum analyze headgate.idempotency_keys")
    await connection.close()


async def _plan(url: str, statement: str, *arguments: Any) -> list[dict[str, Any]]:
    """All nodes of the plan that asyncpg's prepared statement ends up with, and of the one made for these values."""
    connection = await asyncpg.connect(url)
    found: list[dict[str, Any]] = []
    for mode in ("force_generic_plan", "force_custom_plan"):
        await connection.execute(f"set plan_cache_mode = {mode}")
        async with connection.transaction():
            told = await connection.fetchval(f"explain (format json) {statement}", *arguments)
        found += _nodes(json.loads(told)[0]["Plan"])
    await connection.close()
    return found


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in _nodes(part))]


def _indexes(nodes: list[dict[str, Any]]) -> set[str]:
    return {node["Index Name"] for node in nodes if "Index Name" in node}


def _is_scan_of_all(node: dict[str, Any]) -> bool:
    return node["Node Type"] == "Seq Scan" and node["Relation Name"] in {"jobs", "finished_jobs"}


def check(url: str, statement: str, arguments: tuple[Any, ...], *indexes: str) -> None:
    nodes = asyncio.run(_plan(url, statement, *arguments))

    assert not any(map(_is_scan_of_all, nodes)), json.dumps(nodes, indent=1)[:4000]
    assert set(indexes) <= _indexes(nodes)


@pytest.mark.parametrize(
    ("name", "arguments", "indexes"),
    [
        ("claim", (["tenant3", "tenant4"], ["m1", "m1"], [32, 32], "n", NOW, 1), ("jobs_ready",)),
        ("claim", (["tenant3"], [""], [1], "n", NOW, 1), ("jobs_ready",)),
        ("claim_suspects", ("n", NOW, 1, 1), ("jobs_suspect", "jobs_pkey")),
        ("look", ("", [], [], 1000), ("jobs_ready", "jobs_scheduled", "jobs_suspect")),
        ("look", ("tenant7", ["tenant7"], ["m1"], 1000), ("jobs_ready", "jobs_scheduled", "jobs_suspect")),
        ("promote", (NOW + 1, 1000), ("jobs_scheduled", "jobs_pkey")),
        ("give_back", ("n", [1, 2]), ("jobs_owned",)),
        ("renew_node", ("n",), ("jobs_owned",)),
        ("bury_nodes", (["n"], None), ("jobs_owned",)),
        ("forget_nodes", (), ("jobs_owned",)),
        ("lost", (100,), ("jobs_owned",)),
        ("uncancelled", (NOW, 100), ("jobs_owned",)),
        ("expire", (NOW, 100, ""), ("jobs_expiring", "jobs_pkey")),
        ("revivable", (NOW, 100), ("finished_jobs_reviving",)),
        ("revive_jobs", (["old-1"], NOW, NOW, NOW, ""), ("finished_jobs_pkey",)),
        ("prune_jobs", (NOW + 9, 100), ("finished_jobs_at", "finished_jobs_pkey")),
        ("find_job", ("old-1", None), ("jobs_pkey", "finished_jobs_pkey")),
        ("states_of", (["old-1", "old-2"],), ("jobs_pkey", "finished_jobs_pkey")),
        ("cancel_pending", ("old-1", NOW, "why", ""), ("jobs_pkey",)),
        ("lock_dead", (["old-1"], None, False), ()),
        ("replay_jobs", (["old-1"], [""], NOW, NOW, None, None), ("finished_jobs_pkey",)),
        ("discard_jobs", (["old-1"], None, NOW, ""), ()),
        ("save_progress", ("old-1", 1, b"1"), ("jobs_pkey",)),
        ("find_twins", ([1], ["t"], ["chat"], ["d"]), ("jobs_dedup",)),
        ("purge_keys", (NOW, 100), ("idempotency_keys_expires",)),
        ("held_keys", ("n",), ("idempotency_keys_owner",)),
    ],
)
def test_a_statement_goes_by_its_index(
    filled_url: str, name: str, arguments: tuple[Any, ...], indexes: tuple[str, ...]
) -> None:
    """A scan of the whole table would be quick in every test and the end of a real queue."""
    check(filled_url, getattr(SQL, name), arguments, *indexes)


@pytest.mark.parametrize(
    ("name", "arguments", "indexes"),
    [
        ("batch_counts", (), ("jobs_batch", "finished_jobs_batch")),
        ("batch_jobs", ("old-000045007", 100), ("jobs_batch", "finished_jobs_batch")),
        ("cancel_pending_of_batch", (100, NOW, ""), ("jobs_batch", "jobs_pkey")),
        ("cancel_running_of_batch", (100, NOW), ("jobs_pkey",)),
    ],
)
def test_a_batch_is_found_among_all_others(
    filled_url: str, name: str, arguments: tuple[Any, ...], indexes: tuple[str, ...]
) -> None:
    """Its jobs are counted and paged again and again while it is at work, whatever else there is."""
    statement = getattr(SQL, name).replace("{patience}", "skip locked")

    check(filled_url, statement, ("tenant7", "batch7", *arguments), *indexes)


def test_settlements_go_by_the_primary_key(filled_url: str) -> None:
    """Whatever the statistics say about running jobs: usually there were none when they were made."""

    async def claims() -> list[Any]:
        async with opened(filled_url) as store:
            return list(
                await store.claim(
                    [Want("m2", 5, f"tenant{number}") for number in range(50)], node="n", suspects=0, now=NOW
                )
            )

    settlements = [after(claim) for claim in asyncio.run(claims())]
    final = columns(final_row(number, one, NOW) for number, one in enumerate(settlements))
    back = columns(back_row(number, one, NOW) for number, one in enumerate(settlements))

    assert len(settlements) == 225
    check(filled_url, SQL.settle_final, tuple(final), "jobs_pkey")
    check(filled_url, SQL.settle_back, tuple(back), "jobs_pkey")


@pytest.mark.parametrize(
    ("which", "indexes"),
    [
        (JobFilter(), ("jobs_pkey", "finished_jobs_pkey")),
        (JobFilter(tenant="tenant7"), ("jobs_pkey", "finished_jobs_pkey")),
        (JobFilter(since=NOW, until=NOW + 1e6), ("jobs_pkey", "finished_jobs_pkey")),
        (JobFilter(state=JobState.PENDING), ("jobs_pkey",)),
        (JobFilter(state=JobState.RUNNING), ("jobs_owned",)),
        (JobFilter(state=JobState.COMPLETED), ("finished_jobs_pkey",)),
        (JobFilter(state=JobState.DEAD_LETTER), ("finished_jobs_rare",)),
        (JobFilter(state=JobState.CANCELLED, tenant="tenant7"), ("finished_jobs_rare",)),
    ],
    ids=str,
)
def test_a_page_reads_no_more_than_it_shows(
    filled_url: str, which: JobFilter, indexes: tuple[str, ...]
) -> None:
    """Newest first, from both tables: each by its own index, no sorting of a whole history."""
    store = PostgresStore(filled_url, clock=SystemClock(), new_id=new_id)
    statement, arguments = store._page(which, 50, "old-000040000")

    check(filled_url, statement, tuple(arguments), *indexes)
