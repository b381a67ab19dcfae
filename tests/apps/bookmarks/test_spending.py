"""Ceilings hold bookmarks until they are lifted, and say so; nothing is lost, nothing is spent beyond them."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apps.bookmarks.stage import ANSWER, fetching
from apps.bookmarks.test_processing import BAD, GOOD, opened, save, settled
from jobstage import JobStages, on_job_stages

import headgate
from headgate.apps.bookmarks import BookmarkOptions, build
from headgate.apps.bookmarks.desk import Desk
from headgate.apps.bookmarks.mount import new_bookmark_id
from headgate.apps.bookmarks.spending import COLLECTION, Spent, why_held

NOON = datetime(2026, 12, 31, 12, 0, tzinfo=UTC)
HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("spent", "held"),
    [
        (Spent(0.0, 0.0), None),
        (Spent(0.99, 29.99), None),
        (Spent(1.0, 5.0), (12 * HOUR_S, "daily ceiling of $1.00", "2027-01-01 00:00 UTC")),
        (Spent(0.0, 30.0), (12 * HOUR_S, "monthly ceiling of $30.00", "2027-01-01 00:00 UTC")),
        (Spent(2.0, 31.0), (12 * HOUR_S, "monthly ceiling of $30.00", "2027-01-01 00:00 UTC")),
    ],
)
def test_a_ceiling_holds_until_its_reset(spent: Spent, held: tuple[float, str, str] | None) -> None:
    told = why_held(spent, BookmarkOptions(), NOON)
    if held is None:
        assert told is None
    else:
        assert told is not None
        seconds, words = told
        assert seconds == held[0]
        assert held[1] in words
        assert held[2] in words


def test_the_first_of_the_month_is_the_month_s_reset_and_null_is_no_ceiling() -> None:
    told = why_held(Spent(0, 30), BookmarkOptions(), datetime(2028, 2, 10, tzinfo=UTC))
    assert told is not None
    assert told[0] == timedelta(days=20).total_seconds(), "2028 is a leap year"
    free = BookmarkOptions(daily_usd=None, monthly_usd=None)
    assert why_held(Spent(1e6, 1e6), free, NOON) is None


@on_job_stages
async def test_what_a_ceiling_holds_is_done_the_next_day_and_its_record_says_so(stages: JobStages) -> None:
    """The first design left such rows in `processing` for ever."""
    asked: list[str] = []
    options = BookmarkOptions(model="m", daily_usd=0.5, call_usd=0.25)
    stage, desk = await opened(stages, asked=asked, options=options)
    for number in range(2):
        await settled(stage, desk, await save(desk, f"https://a.example/{number}"))
    held = await save(desk, "https://a.example/held")
    await asyncio.sleep(60)
    told = await desk.get(held.id, tenant="local")
    assert (told.status, told.attempts, stage.provider.calls) == ("processing", 0, 2)
    assert "daily ceiling of $0.50 is reached" in str(told.error_message)
    now = stage.world.clock.utc()
    midnight = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
    assert told.waiting_until is not None
    assert abs((told.waiting_until - midnight).total_seconds()) < 1
    # Nobody works through the night: in virtual time an idle worker is what takes long.
    await stage.gateway.aclose(drain_s=0)
    await asyncio.sleep((midnight - stage.world.clock.utc()).total_seconds() - 1)
    second, desk = await opened(stages, asked=asked, options=options)
    assert (await desk.get(held.id, tenant="local")).status == "processing"
    done = await settled(second, desk, held)
    assert (done.status, second.provider.calls) == ("done", 1)
    assert stage.world.clock.utc() >= midnight
    assert len(asked) == 3, "the page was fetched before and is not fetched again"


@on_job_stages
async def test_a_raised_ceiling_releases_at_the_next_start_what_the_lower_one_held(stages: JobStages) -> None:
    low = BookmarkOptions(model="m", daily_usd=0.25, call_usd=0.25)
    stage, desk = await opened(stages, options=low)
    await settled(stage, desk, await save(desk, "https://a.example/1"))
    held = [await save(desk, f"https://a.example/held/{number}") for number in range(3)]
    await asyncio.sleep(60)
    assert [(await desk.get(one.id, tenant="local")).status for one in held] == ["processing"] * 3
    await stage.gateway.aclose(drain_s=0)
    same, desk = await opened(stages, options=low)
    await asyncio.sleep(60)
    told = [await desk.get(one.id, tenant="local") for one in held]
    assert ({one.status for one in told}, same.provider.calls) == ({"processing"}, 0)
    assert all("daily ceiling of $0.25 is reached" in str(one.error_message) for one in told)
    await same.gateway.aclose(drain_s=0)
    high = BookmarkOptions(model="m", daily_usd=1.25, call_usd=0.25)
    second, desk = await opened(stages, options=high)
    await asyncio.sleep(60)
    told = [await desk.get(one.id, tenant="local") for one in held]
    assert ({one.status for one in told}, second.provider.calls) == ({"done"}, 3)


@on_job_stages
async def test_a_held_bookmark_is_processed_again_only_where_its_ceiling_allows(stages: JobStages) -> None:
    low = BookmarkOptions(model="m", daily_usd=0.25, call_usd=0.25)
    stage, desk = await opened(stages, options=low)
    await settled(stage, desk, await save(desk, "https://a.example/1"))
    held = await save(desk, "https://a.example/held")
    await asyncio.sleep(60)
    with pytest.raises(
        headgate.StateConflict, match=r"the daily ceiling of \$0\.25 is reached; it goes on at"
    ):
        await desk.reprocess(held.id, by="me", key=None, tenant="local")
    # Another process knows a higher ceiling; the worker here is not started anew.
    app = build(BookmarkOptions(model="m", daily_usd=1, call_usd=0.25), fetch=fetching())
    other = await stages.open(GOOD, app=app, work=False)
    higher = Desk(other.gateway, new_bookmark_id, BookmarkOptions(model="m", daily_usd=1, call_usd=0.25))
    again = await higher.reprocess(held.id, by="me", key=None, tenant="local")
    assert (again.status, again.error_message, again.waiting_until) == ("processing", None, None)


@on_job_stages
async def test_a_bookmark_that_waits_for_its_next_attempt_is_tried_at_once(stages: JobStages) -> None:
    stage, desk = await opened(stages, script=["transient"])
    bookmark = await save(desk)
    await asyncio.sleep(30)
    assert (await desk.get(bookmark.id, tenant="local")).status == "retrying"
    again = await desk.reprocess(bookmark.id, by="me", key=None, tenant="local")
    assert (again.job_id, again.waiting_until) == (bookmark.job_id, None)
    await asyncio.sleep(30)
    done = await desk.get(bookmark.id, tenant="local")
    assert (done.status, done.attempts, stage.provider.calls) == ("done", 2, 2)


@on_job_stages
async def test_a_month_s_hold_does_not_expire(stages: JobStages) -> None:
    """Jobs expire after three days; a bookmark waits for as long as its ceiling holds it."""
    options = BookmarkOptions(model="m", daily_usd=None, monthly_usd=0.2, call_usd=0.25)
    stage, desk = await opened(stages, options=options)
    await settled(stage, desk, await save(desk, "https://a.example/1"))
    held = await save(desk, "https://a.example/2")
    await asyncio.sleep(60)
    told = await desk.get(held.id, tenant="local")
    assert told.waiting_until is not None
    assert "monthly ceiling" in str(told.error_message)
    assert (told.waiting_until.day, told.waiting_until.hour) == (1, 0)
    assert (await stage.gateway.jobs.get(str(told.job_id))).expires_at > told.waiting_until


@on_job_stages
async def test_many_at_once_do_not_break_through(stages: JobStages) -> None:
    """Each call reserves before it is made, so those side by side see each other."""
    options = BookmarkOptions(model="m", daily_usd=0.003, call_usd=0.001)
    stage, desk = await opened(stages, options=options, slots=16)
    for number in range(20):
        await save(desk, f"https://a.example/{number}")
    await asyncio.sleep(600)
    assert stage.provider.calls == 3


@on_job_stages
async def test_two_processes_count_together(stages: JobStages) -> None:
    options = BookmarkOptions(model="m", daily_usd=0.5, call_usd=0.3)

    async def one(url: str) -> Any:
        app = build(options, fetch=fetching())
        stage = await stages.open(GOOD, app=app)
        desk = Desk(stage.gateway, new_bookmark_id, options)
        bookmark = await save(desk, url)
        await asyncio.sleep(30)
        told = await desk.get(bookmark.id, tenant="local")
        await stage.gateway.aclose(drain_s=0)
        return told, stage.provider.calls

    assert [(await one(f"https://a.example/{number}"))[1] for number in range(3)] == [1, 1, 0]


@on_job_stages
async def test_a_call_over_midnight_is_added_to_the_day_it_began_on(stages: JobStages) -> None:
    """Its end must not write over what that day had cost before."""
    today = stages.world.clock.utc().replace(hour=0, minute=0, second=0, microsecond=0)
    midnight = today + timedelta(days=1)
    await asyncio.sleep((midnight - stages.world.clock.utc()).total_seconds() - 150)
    options = BookmarkOptions(model="m", call_usd=0.25)
    stage, desk = await opened(stages, options=options, slots=2, latency_s=100.0)
    await settled(stage, desk, await save(desk, "https://a.example/before"))
    over = await save(desk, "https://a.example/over")
    await asyncio.sleep(60)
    assert stages.world.clock.utc() > midnight
    await save(desk, "https://a.example/after")
    await settled(stage, desk, over)
    tallies = {record.id[:10]: record.body for record in await stage.gateway.records.list(COLLECTION)}
    assert tallies[today.date().isoformat()] == {"usd": pytest.approx(0.5), "calls": 2}


@on_job_stages
async def test_what_failed_costs_nothing_and_what_was_useless_is_paid_for(stages: JobStages) -> None:
    options = BookmarkOptions(model="m", call_usd=0.25)
    stage, desk = await opened(
        stages, options=options, outcome={"outcome": "ok", "content": "no JSON"}, script=["transient"]
    )
    bookmark = await save(desk)
    await asyncio.sleep(60)
    (tally,) = await stage.gateway.records.list(COLLECTION)
    assert tally.body == {"usd": pytest.approx(0.0), "calls": 1}
    await asyncio.sleep(200)
    (tally,) = await stage.gateway.records.list(COLLECTION)
    assert tally.body == {"usd": pytest.approx(0.75), "calls": 4}, (
        "the failed call, and three useless answers"
    )
    assert (await desk.get(bookmark.id, tenant="local")).status == "retrying"


@on_job_stages
async def test_every_regenerated_answer_counts(stages: JobStages) -> None:
    """Five paid answers for two bookmarks: two of them broke the contract, and one was blank."""
    options = BookmarkOptions(model="m", daily_usd=10, call_usd=0.40)
    answers = [BAD, BAD, ANSWER, "", ANSWER]
    stage, desk = await opened(stages, options=options, outcome={"outcome": "ok"}, answers=answers)
    for number in range(2):
        await settled(stage, desk, await save(desk, f"https://a.example/{number}"))
    (tally,) = await stage.gateway.records.list(COLLECTION)
    assert (stage.provider.calls, tally.body) == (5, {"usd": pytest.approx(2.00), "calls": 5})


@on_job_stages
async def test_a_known_price_counts_instead_of_the_assumed_one(stages: JobStages) -> None:
    stage, desk = await opened(stages, options=BookmarkOptions(model="m", call_usd=0.25))
    stage.gateway.routes.find("m").upstreams[0].price = lambda usage: 0.125
    await settled(stage, desk, await save(desk))
    (tally,) = await stage.gateway.records.list(COLLECTION)
    assert tally.body == {"usd": pytest.approx(0.125), "calls": 1}
