"""Following the database's clock: exact there and back, calm between measurements."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from contracts.job_stage import an_access_key
from stores.postgres_stage import AheadClock, a_job, after, opened

from headgate.core.failures import Failure, FailureKind
from headgate.core.job import Entry, JobState
from headgate.core.job_rules import Failed
from headgate.core.ports.claims import Want
from headgate.core.ports.jobs import JobFilter
from headgate.stores.postgres.times import DatabaseTime

WHEN = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)


def measured(skew_s: float, round_trip_s: float = 0.001, *, follow: bool = True) -> DatabaseTime:
    times = DatabaseTime(follow=follow)
    times.measure(WHEN, WHEN.timestamp() + round_trip_s / 2 + skew_s, WHEN + timedelta(seconds=round_trip_s))
    return times


@pytest.mark.parametrize("skew_s", [0.0, 3.7, -250.123456, 1e6])
def test_a_time_comes_back_exactly_as_it_went(skew_s: float) -> None:
    """A job that goes in and out a hundred times must not drift."""
    times = measured(skew_s)

    for moment in (0.1, 1_700_000_000.123456, 1_799_999_999.999999):
        assert times.here(times.there(moment)) == pytest.approx(moment, abs=1e-9 if moment < 1 else 0)
    assert times.skew_s == pytest.approx(skew_s, abs=0.001)


def test_a_measurement_that_proves_nothing_changes_nothing() -> None:
    """On one machine there is no difference, however slowly it answers."""
    assert measured(0.004, round_trip_s=0.02).skew_s == 0.0
    assert measured(0.5, follow=False).skew_s == 0.0
    times = measured(5.0)
    times.measure(WHEN, WHEN.timestamp() + 5.3, WHEN + timedelta(seconds=1.0))
    assert times.skew_s == pytest.approx(5.0, abs=0.001)
    times.measure(WHEN, WHEN.timestamp() + 5.3, WHEN + timedelta(seconds=0.01))
    assert times.skew_s == pytest.approx(5.3, abs=0.01)


def test_history_is_told_in_the_databases_time() -> None:
    times = measured(100.0)
    line = times.line(Entry(outcome="failed", at=1000.0, started_at=900.0))

    assert '"at":1100.0' in line
    assert '"started_at":1000.0' in line
    assert times.line(None) == ""


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
            assert job.created_at.timestamp() == pytest.approx(its_now, abs=1e-6)
            assert job.history[0].at.timestamp() == pytest.approx(its_now, abs=5)
            since = JobFilter(since=its_now - 60, until=its_now + 60, state=JobState.PENDING)
            assert [job.id for job in await ahead.select(since, limit=9)] == ["j"]

    asyncio.run(main())


def test_without_following_the_clock_times_stay_as_they_are(postgres_url: str) -> None:
    """Virtual time has nothing to do with the database's."""

    async def main() -> None:
        async with opened(postgres_url, clock=AheadClock(1e8), follow_clock=False) as store:
            await store.renew("n")
            assert store._times.skew_s == 0.0

    asyncio.run(main())


def test_a_clock_that_was_set_just_now_buries_nobody(postgres_url: str) -> None:
    """An hour forward since the last look: for a moment everybody's lease seems to have run out, every job expired."""

    async def main() -> None:
        clock = AheadClock(0.0)
        async with opened(postgres_url, clock=clock) as store:
            now = clock.utc().timestamp()
            await store.accept([a_job(id="j", run_at=now, expires_at=now + 600)], now=now)
            clock.set(3600.0)
            assert not await store.expire(now=clock.utc().timestamp(), limit=9)

    asyncio.run(main())


def test_a_key_expires_at_the_same_moment_for_everybody(postgres_url: str) -> None:
    """Made by a node whose clock is an hour ahead: the others see its times on their own clocks."""

    async def main() -> None:
        wrong = AheadClock(3600.0)
        kept = an_access_key(created_at=wrong.utc(), expires_at=wrong.utc() + timedelta(seconds=60))
        async with opened(postgres_url, clock=wrong) as ahead, opened(postgres_url) as right:
            await ahead.add_access_key(kept)
            [there], [here] = await ahead.access_keys(), await right.access_keys()

        assert there.key.expires_at == kept.key.expires_at
        assert here.key.expires_at is not None
        assert kept.key.expires_at is not None
        assert (kept.key.expires_at - here.key.expires_at).total_seconds() == pytest.approx(3600, abs=0.5)

    asyncio.run(main())
