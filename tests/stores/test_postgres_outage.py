"""Outages: told within seconds, survived without help, and nothing that was answered is lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import postgres
import pytest
from stores.postgres_stage import NOW, a_job, after, all_ids, opened, run_sql, until
from wire import Wire

from headgate.core.errors import InvalidRequest, StoreUnavailable
from headgate.core.ports.claims import Want
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import StoreHealth
from headgate.stores.postgres import PostgresStore, database

T = TypeVar("T")


class Load:
    """Producers and workers that go on through trouble, and remember what they were answered."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._running = True
        self.accepted: list[str] = []
        self.refused = 0
        self.longest_s = 0.0

    async def produce(self) -> None:
        while self._running:
            job = a_job()
            if await self._ask(self._store.accept([job], now=NOW)):
                self.accepted.append(job.id)

    async def work(self) -> None:
        while self._running:
            claims = await self._ask(self._store.claim([Want("m", 20)], node="n", suspects=0, now=NOW))
            settlements = [after(claim) for claim in claims]
            while settlements and not await self._ask(self._store.settle(settlements, now=NOW)):
                pass

    async def _ask(self, verb: Awaitable[list[T]]) -> list[T]:
        started = time.monotonic()
        try:
            answer = await verb
        except StoreUnavailable:
            self.refused += 1
            await asyncio.sleep(0.02)
            return []
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - started)
        return answer

    def stop(self) -> None:
        self._running = False


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_restart_under_load_loses_nothing_that_was_answered(
    postgres_server: postgres.Server, postgres_url: str, how: str
) -> None:
    """Callers hear `StoreUnavailable`, soon; the store comes back by itself when the server does."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            told: list[StoreHealth] = []
            store.on_health(lambda health, _why: told.append(health))
            load = Load(store)
            tasks = [asyncio.ensure_future(load.produce()) for _ in range(10)]
            tasks += [asyncio.ensure_future(load.work()) for _ in range(2)]
            for _ in range(2):
                before = len(load.accepted)
                await until(lambda seen=before: len(load.accepted) > seen + 200)  # type: ignore[misc]
                await asyncio.to_thread(postgres_server.stop if how == "restart" else postgres_server.kill)
                await until(lambda: store.health is StoreHealth.DOWN)
                await asyncio.to_thread(postgres_server.start)
                await until(lambda: store.health is StoreHealth.OK)
            load.stop()
            await asyncio.wait_for(asyncio.gather(*tasks), 20)

            assert load.refused > 0
            assert load.longest_s < 15
            assert set(load.accepted) <= set(await all_ids(store))
            assert told[:2] == [StoreHealth.DOWN, StoreHealth.OK]

    asyncio.run(main())


def test_a_read_survives_a_connection_that_died_unnoticed(postgres_url: str) -> None:
    """Reading twice is reading once: the caller need not hear of it."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            gone = "application_name = 'headgate' and pid <> pg_backend_pid()"
            for _ in range(20):
                await asyncio.gather(*(store.count() for _ in range(6)))
                await run_sql(
                    postgres_url, f"select pg_terminate_backend(pid) from pg_stat_activity where {gone}"
                )
                await store.count()
            assert store.health is StoreHealth.OK

    asyncio.run(main())


def test_a_server_that_falls_silent_is_no_hang(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reset, no refusal, nothing: only a timeout tells."""
    for name in ("ANSWER_S", "COMMAND_S", "ACQUIRE_S", "CONNECT_S", "CLOSE_S"):
        monkeypatch.setattr(database, name, 0.3)

    async def main() -> None:
        async with Wire(postgres_url) as wire, opened(f"{wire.url}?listen=off") as store:
            wire.stall()
            started = time.monotonic()
            asked = [store.accept([a_job()], now=NOW), *(store.count() for _ in range(20))]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(answer, StoreUnavailable) for answer in answers), answers
            assert time.monotonic() - started < 10
            assert store.health is StoreHealth.DOWN

    asyncio.run(main())


VERBS: dict[str, Callable[[PostgresStore], Awaitable[object]]] = {
    "accept": lambda store: store.accept([a_job()], now=NOW),
    "accept with a dedup key": lambda store: store.accept([a_job(dedup_key="d")], now=NOW),
    "cancel": lambda store: store.cancel("job", now=NOW),
    "discard": lambda store: store.discard(["job"], by="me", now=NOW),
    "list": lambda store: store.select(JobFilter(), limit=10),
    "renew": lambda store: store.renew("n"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_reads_and_writes_alike_are_given_up_in_time(
    postgres_server: postgres.Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A server that is stopped takes connections in and says nothing, not even that it gave a statement up."""
    monkeypatch.setattr(database, "COMMAND_S", 0.4)
    monkeypatch.setattr(database, "ANSWER_S", 0.6)

    async def main() -> None:
        async with opened(f"{postgres_url}?listen=off") as store:
            with postgres_server.frozen():
                started = time.monotonic()
                with pytest.raises(StoreUnavailable, match="does not answer in time"):
                    await asyncio.wait_for(VERBS[verb](store), 10)
                assert time.monotonic() - started < 0.6 + 0.5
            await store.count()

    asyncio.run(main())


def test_no_connection_left_is_an_outage_with_its_reason(postgres_url: str) -> None:
    """The pool grows when it is needed; the server may not have that many."""

    async def main() -> None:
        async with opened(postgres_url):
            pass
        grants = "grant usage on schema headgate to few", "grant all on all tables in schema headgate to few"
        await run_sql(postgres_url, "create role few login connection limit 1", *grants, "select 1")
        async with opened(f"{postgres_url.replace('postgres@', 'few@')}?listen=off") as store:
            answers = await asyncio.gather(*(store.count() for _ in range(10)), return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, BaseException)]
            assert refused
            assert all(isinstance(answer, StoreUnavailable) for answer in refused)
            assert all("no connection left" in str(answer) for answer in refused)
            await store.count()
            assert store.health is StoreHealth.OK
        await run_sql(postgres_url, "drop owned by few", "drop role few", "select 1")

    asyncio.run(main())


def test_busy_connections_are_no_outage(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many long reads at once: who cannot wait is told so, and the connections that work go on working."""
    monkeypatch.setattr(database, "ACQUIRE_S", 0.2)

    async def main() -> None:
        async with opened(f"{postgres_url}?listen=off") as store:
            long = [asyncio.create_task(store._database.command("select pg_sleep(1)")) for _ in range(6)]
            await asyncio.sleep(0.1)
            with pytest.raises(StoreUnavailable, match="all 6 connections have been busy"):
                await store.count()
            assert store.health is StoreHealth.OK
            await asyncio.gather(*long)
            await store.count()

    asyncio.run(main())


def test_what_no_database_can_hold_is_the_callers_mistake(postgres_url: str) -> None:
    """Not an outage: nobody else hears of it, and waiting would not help."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            good = [a_job() for _ in range(20)]
            answers = await asyncio.gather(
                *(store.accept([job], now=NOW) for job in good),
                store.accept([a_job(task="nul\0")], now=NOW),
                return_exceptions=True,
            )
            assert isinstance(answers.pop(), InvalidRequest)
            assert not any(isinstance(answer, BaseException) for answer in answers)
            assert store.health is StoreHealth.OK

    asyncio.run(main())
