"""PostgreSQL behind a real PgBouncer: what it needs in the URL, and that a silent node blocks no other."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pooler as poolers
import postgres
import pytest
from stores.postgres_stage import NOW, a_job, opened, run_sql
from wire import Wire

from headgate.core.errors import SettingsError, StoreUnavailable
from headgate.core.job import Accepted
from headgate.core.ports.claims import Want
from headgate.stores.postgres import PostgresStore, database

ROOT = Path(__file__).parents[2]
ADVICE = r"\?statement_cache_size=0"


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_start_without_the_parameter_ends_with_2_and_names_it(
    pgbouncer: str, postgres_server: postgres.Server, tmp_path: Path, mode: str
) -> None:
    with poolers.running(pgbouncer, postgres_server.clear(), pool_mode=mode) as pooler:
        ended = subprocess.run(
            [sys.executable, "-m", "headgate", "work", "--burst"],
            cwd=tmp_path,
            env={**os.environ, "DATABASE_URL": pooler.plain_url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 2, ended.stderr
    assert "?statement_cache_size=0" in ended.stderr
    assert "try again" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_pooler_that_ignores_our_settings_is_noticed_by_its_prepared_statements(
    pgbouncer: str, postgres_server: postgres.Server
) -> None:
    """`ignore_startup_parameters` hides the reason at the start; the first clash names it."""
    ignored = "tcp_keepalives_idle,tcp_keepalives_interval,tcp_keepalives_count,tcp_user_timeout"

    async def main(url: str) -> None:
        async with opened(url) as store:
            # One round may go well: it needs a connection that another client has prepared its statement on.
            for _ in range(100):
                await asyncio.gather(*(store.count() for _ in range(50)))

    with (
        poolers.running(
            pgbouncer,
            postgres_server.clear(),
            ignore_startup_parameters=f"extra_float_digits,{ignored}",
        ) as pooler,
        pytest.raises((StoreUnavailable, SettingsError), match=ADVICE) as refusal,
    ):
        asyncio.run(main(pooler.plain_url))
    assert not getattr(refusal.value, "waiting_helps", False)


WANTED = [Want("m", 3)]
VERBS: dict[str, tuple[bytes, Callable[[PostgresStore], Awaitable[object]]]] = {
    "renew": (b"update headgate.nodes", lambda store: store.renew("silent")),
    "claim": (b"skip locked", lambda store: store.claim(WANTED, node="silent", suspects=0, now=NOW)),
}
IDLE = "select pid from pg_stat_activity where state = 'idle in transaction'"


@pytest.mark.parametrize("verb", VERBS)
def test_a_node_that_falls_silent_amid_a_statement_holds_its_locks_for_seconds_only(
    pooler: poolers.Pooler, postgres_url: str, verb: str
) -> None:
    """Behind a pooler a single statement is a transaction of several trips. The network may end between any two of them."""
    at, ask = VERBS[verb]

    async def main() -> None:
        async with (
            opened(pooler.url) as store,
            Wire(pooler.plain_url) as wire,
            opened(f"{wire.url}?statement_cache_size=0") as silent,
        ):
            await silent.join("silent")
            await store.accept([a_job() for _ in range(3)], now=NOW)
            silence = wire.stall_at(at)
            asking = asyncio.ensure_future(ask(silent))
            async with asyncio.timeout(20):
                await silence.done.wait()
                assert await run_sql(postgres_url, IDLE), "it was to fall silent amid a transaction"
                while await run_sql(postgres_url, IDLE):  # noqa: ASYNC110 - another process ends it
                    await asyncio.sleep(0.1)
            assert len(await store.claim(WANTED, node="n", suspects=0, now=NOW)) == 3
            await store.leave("silent")
            asking.cancel()
            wire.heal()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(main())


def test_the_documented_settings_are_known_to_pgbouncer(
    pgbouncer: str, postgres_server: postgres.Server
) -> None:
    page = (ROOT / "docs" / "howto" / "postgresql.md").read_text()
    told = re.findall(r"^(\w+) = (\w+)$", page.partition("```ini")[2].partition("```")[0], re.MULTILINE)
    assert told

    async def main(url: str) -> None:
        async with opened(url) as store:
            assert await store.accept([a_job(id="j")], now=NOW) == [Accepted("j")]

    with poolers.running(pgbouncer, postgres_server.clear(), **dict(told)) as pooler:
        asyncio.run(main(pooler.url))
        assert "unknown" not in pooler.log


def test_an_outage_is_logged_with_its_cause(
    pooler: poolers.Pooler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A timeout has no words of its own."""
    monkeypatch.setattr(database, "COMMAND_S", 0.3)
    monkeypatch.setattr(database, "ANSWER_S", 0.5)

    async def main() -> None:
        async with Wire(pooler.plain_url) as wire, opened(f"{wire.url}?statement_cache_size=0") as store:
            wire.stall()
            with pytest.raises(StoreUnavailable):
                await store.renew("n")
            wire.heal()

    asyncio.run(main())
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "does not work: it does not answer in time" in record.getMessage()
