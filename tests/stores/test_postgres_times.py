"""All nodes go by the database's clock, also one whose own is wrong or is set while it runs."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from contracts.job_stage import an_access_key
from stores.postgres_stage import AheadClock, a_job, after, opened

from headgate import Context, task, wiring
from headgate.core.failures import Failure, FailureKind
from headgate.core.job import JobState
from headgate.core.job_rules import Failed
from headgate.core.ports.claims import Want
from headgate.core.ports.jobs import JobFilter
from headgate.stores.postgres import PostgresStore


@task("nothing")
async def nothing(_ctx: Context, _given: object) -> None:
    """It is never run."""


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -600.0])
def test_a_node_goes_by_the_databases_clock(postgres_url: str, ahead_s: float) -> None:
    """Whatever its own shows: a time that a client names, and a time that a client reads, are the same for all nodes."""

    async def main() -> None:
        clock = AheadClock(ahead_s)
        async with opened(postgres_url, clock=clock) as store:
            database = (await store._database.read("select extract(epoch from clock_timestamp())::float8"))[
                0
            ][0]
            assert clock.utc().timestamp() == pytest.approx(database, abs=1.0)
            assert store.clock_ahead_s == pytest.approx(-ahead_s, abs=1.0)

    asyncio.run(main())


def test_a_clock_that_is_set_while_it_runs_moves_nothing(postgres_url: str) -> None:
    """Once a node has seen the database's clock, its own wall clock takes no part any more."""

    async def main() -> None:
        clock = AheadClock(60.0)
        async with opened(postgres_url, clock=clock) as store:
            before = clock.utc()
            clock.set(7200.0)
            assert abs((clock.utc() - before).total_seconds()) < 5
            await store.join("n")
            await store.renew("n")
            assert abs((clock.utc() - before).total_seconds()) < 5

    asyncio.run(main())


def test_a_measurement_that_proves_nothing_changes_nothing() -> None:
    """On one machine there is no difference, however slowly the database answers."""
    clock = AheadClock(0.0)
    store = PostgresStore("postgresql://localhost/none", clock=clock, new_id=str)
    asked_at = clock.utc() - timedelta(seconds=0.5)
    store._follow(asked_at, clock.utc().timestamp() - 0.1)
    assert store.clock_ahead_s == 0.0

    store._follow(clock.utc(), clock.utc().timestamp() + 5)
    assert store.clock_ahead_s == pytest.approx(5, abs=0.1)


def test_a_node_with_a_wrong_clock_works_in_the_databases_time(postgres_url: str) -> None:
    """Its jobs are not due an hour late for the others, and it sees its own times where it put them."""

    async def main() -> None:
        wrong = AheadClock(3600.0)
        async with opened(postgres_url) as right, opened(postgres_url, clock=wrong) as ahead:
            now = right._clock.utc().timestamp()
            its_now = wrong.utc().timestamp()
            await ahead.join("ahead")
            await ahead.accept([a_job(id="j", run_at=its_now, expires_at=its_now + 600)], now=its_now)
            (claim,) = await right.claim([Want("m", 9)], node="n", suspects=0, now=now)
            assert claim.run_at == pytest.approx(now, abs=5)
            failed = Failed(Failure(kind=FailureKind.TRANSIENT))
            await right.settle([after(claim, failed, now=now)], now=now)
            job = await ahead.find("j")
            assert job is not None
            assert job.created_at.timestamp() == its_now
            assert job.created_at.timestamp() == pytest.approx(now, abs=5)
            assert job.history[0].at.timestamp() == pytest.approx(now, abs=5)
            since = JobFilter(since=now - 60, until=now + 60, state=JobState.PENDING)
            assert [job.id for job in await ahead.select(since, limit=9)] == ["j"]

    asyncio.run(main())


def test_without_following_the_clock_times_stay_as_they_are(postgres_url: str) -> None:
    """Virtual time has nothing to do with the database's."""

    async def main() -> None:
        async with opened(postgres_url, clock=AheadClock(1e8), follow_clock=False) as store:
            await store.renew("n")
            assert store.clock_ahead_s == 0.0

    asyncio.run(main())


def test_a_clock_that_was_set_just_now_expires_no_job(postgres_url: str) -> None:
    """An hour forward since the last measurement."""

    async def main() -> None:
        clock = AheadClock(0.0)
        async with opened(postgres_url, clock=clock) as store:
            now = clock.utc().timestamp()
            await store.accept([a_job(id="j", run_at=now, expires_at=now + 600)], now=now)
            clock.set(3600.0)
            assert not await store.expire(now=clock.utc().timestamp(), limit=9)

    asyncio.run(main())


def test_a_key_expires_at_the_same_moment_for_everybody(postgres_url: str) -> None:
    """Made by a node whose clock is an hour ahead, and read by one whose clock is right."""

    async def main() -> None:
        wrong = AheadClock(3600.0)
        async with opened(postgres_url, clock=wrong) as ahead, opened(postgres_url) as right:
            kept = an_access_key(created_at=wrong.utc(), expires_at=wrong.utc() + timedelta(seconds=60))
            await ahead.add_access_key(kept)
            [there], [here] = await ahead.access_keys(), await right.access_keys()

        assert there.key.expires_at == kept.key.expires_at
        assert here.key.expires_at == kept.key.expires_at

    asyncio.run(main())


@pytest.mark.parametrize("ahead_s", [600.0, -600.0])
def test_a_run_at_is_the_callers_time_not_the_gateways(
    postgres_url: str, ahead_s: float, tmp_path: Path
) -> None:
    """A caller whose clock is right names a moment; the gateway it talks to is ten minutes off."""

    async def main() -> None:
        settings = wiring.read_settings({"data_dir": str(tmp_path), "database": postgres_url}, env={})
        gateway = wiring.build(settings, clock=AheadClock(ahead_s), tasks=[nothing])
        right_now = datetime.now(UTC)
        soon = right_now + timedelta(seconds=60)
        try:
            job = await (await gateway.jobs.submit(nothing, run_at=soon)).job()
            listed = await gateway.jobs.list()
        finally:
            await gateway.aclose()

        assert job.run_at == soon
        assert abs((job.created_at - right_now).total_seconds()) < 30
        assert [one.created_at for one in listed] == [job.created_at]

    asyncio.run(main())
