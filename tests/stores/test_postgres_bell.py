"""NOTIFY: other processes wake up, not too often, and a lost listener comes back by itself."""

import asyncio
import gc

import pytest
from stores.postgres_stage import NOW, a_job, opened, run_sql, until

from headgate.core.job import Accepted
from headgate.core.ports.store import StoreHealth
from headgate.stores.postgres import PostgresStore, bell

LISTENERS = "from pg_stat_activity where query ilike '%listen%' and application_name = 'headgate'"


class Rings:
    def __init__(self, store: PostgresStore) -> None:
        self.count = 0
        store.on_ready(self._ring)

    def _ring(self) -> None:
        self.count += 1


def test_a_job_that_comes_in_here_wakes_the_store_there(postgres_url: str) -> None:
    """And here it rings once, at once: its own NOTIFY is no news."""

    async def main() -> None:
        async with opened(postgres_url) as here, opened(postgres_url) as there:
            at_home, abroad = Rings(here), Rings(there)
            await here.accept([a_job()], now=NOW)
            assert at_home.count == 1
            await until(lambda: abroad.count == 1)
            await asyncio.sleep(0.1)
            assert (at_home.count, abroad.count) == (1, 1)

    asyncio.run(main())


def test_a_thousand_jobs_are_a_few_rings_and_the_last_is_heard(postgres_url: str) -> None:
    """A ring for each would cost every other node a look for each."""

    async def main() -> None:
        async with opened(postgres_url) as here, opened(postgres_url) as there:
            abroad = Rings(there)
            started = asyncio.get_running_loop().time()
            for _ in range(100):
                await asyncio.gather(*(here.accept([a_job()], now=NOW) for _ in range(10)))
            before = abroad.count
            await here.accept([a_job()], now=NOW)
            await until(lambda: abroad.count > before)
            took_s = asyncio.get_running_loop().time() - started
            assert abroad.count <= took_s / bell.LEAST_GAP_S + 2

    asyncio.run(main())


def test_a_lost_listener_comes_back_and_rings_for_what_it_missed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell, "FIRST_WAIT_S", 0.05)

    async def main() -> None:
        async with opened(postgres_url) as here, opened(postgres_url) as there:
            abroad = Rings(there)
            await run_sql(postgres_url, f"select pg_terminate_backend(pid) {LISTENERS}")
            await until(lambda: abroad.count == 1)
            await here.accept([a_job()], now=NOW)
            await until(lambda: abroad.count == 2)
            assert there.health is StoreHealth.OK

    asyncio.run(main())


def test_a_store_that_cannot_listen_works_all_the_same(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pooler in between, or no connection left for it: polling does the work."""

    async def main() -> None:
        async def refuse(_self: object) -> None:
            raise ConnectionRefusedError("no connection for listeners")

        monkeypatch.setattr("headgate.stores.postgres.database.Database.connect", refuse)
        job = a_job()
        async with opened(postgres_url) as store:
            rings = Rings(store)
            assert await store.accept([job], now=NOW) == [Accepted(job.id)]
            assert rings.count == 1
            assert store.health is StoreHealth.OK

    asyncio.run(main())
    assert "cannot listen for new jobs" in caplog.text


def test_listening_can_be_left_out(postgres_url: str) -> None:
    """Its rings still reach those who listen."""

    async def main() -> None:
        async with opened(postgres_url) as there, opened(f"{postgres_url}?listen=off") as here:
            assert len(await run_sql(postgres_url, f"select pid {LISTENERS}")) == 1
            abroad = Rings(there)
            await here.accept([a_job()], now=NOW)
            await until(lambda: abroad.count == 1)

    asyncio.run(main())


def test_a_store_that_closes_while_it_is_about_to_listen_leaves_no_connection(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment of its coming back: what it opened, it closes. (A connection left open is a warning, and a failure.)"""
    monkeypatch.setattr(bell, "FIRST_WAIT_S", 0.0)

    async def main() -> None:
        for step in range(12):
            async with opened(postgres_url):
                await run_sql(postgres_url, f"select pg_terminate_backend(pid) {LISTENERS}")
                await asyncio.sleep(step * 0.001)
        gc.collect()

    asyncio.run(main())
    gc.collect()
