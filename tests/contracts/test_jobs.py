"""Looking at jobs and cancelling them: pages, counts, states; and a cancel that is honest about what it did."""

from typing import Any

import pytest
from contracts.job_stage import (
    EVER,
    NOW,
    REJECTED,
    TRANSIENT,
    a_job,
    end,
    exhausted,
    found,
    join,
    picture,
    running,
    state_of,
    suspect,
    take,
    take_suspects,
)
from stores_under_test import on_each_store

from headgate.core.job import JobState, Settled
from headgate.core.job_rules import Cancelled, Completed, Crashed, Deferred, Outcome, Skipped
from headgate.core.ports.claims import Renewal
from headgate.core.ports.jobs import Backlog, CancelAnswer, JobFilter
from headgate.core.ports.store import Store

ENDS: list[tuple[Outcome, JobState]] = [
    (Completed(b"1"), JobState.COMPLETED),
    (Skipped("nothing new"), JobState.SKIPPED),
    (Cancelled(), JobState.CANCELLED),
    (REJECTED, JobState.DEAD_LETTER),
]


async def one_of_each(store: Store) -> dict[str, JobState]:
    """Live and finished jobs, mixed; oldest first, and so are their ids."""
    names = (f"{number:03}" for number in range(1000))
    expected: dict[str, JobState] = {}
    for _ in range(3):
        for outcome, state in ENDS:
            await end(store, await running(store, name := next(names)), outcome)
            expected[name] = state
        await store.accept([a_job(ready := next(names))], now=NOW)
        await store.accept([a_job(later := next(names), run_at=NOW + 50)], now=NOW)
        await running(store, runs := next(names))
        await suspect(store, alone := next(names))
        expected |= dict.fromkeys([ready, later], JobState.PENDING)
        expected |= {runs: JobState.RUNNING, alone: JobState.PENDING}
    return expected


async def pages(store: Store, which: JobFilter, limit: int) -> list[list[str]]:
    """Page by page, as a screen would, to the first empty one."""
    told: list[list[str]] = []
    after: str | None = None
    while page := await store.select(which, limit=limit, after=after):
        told.append([job.id for job in page])
        after = page[-1].id
        assert len(told) < 100, "the pages never end"
    return told


# ---- Looking -------------------------------------------------------------------------------------------------------


@on_each_store
async def test_a_job_that_is_not_there_is_none(store: Store) -> None:
    """Whatever the id looks like: people paste them."""
    for job_id in ("", "nobody", "'; drop table jobs; --", "j" * 100_000, "日本"):
        assert await store.find(job_id) is None


@on_each_store
async def test_another_tenants_job_looks_unknown(store: Store) -> None:
    """That a job exists is a secret too."""
    await store.accept([a_job("j", tenant="acme")], now=NOW)

    assert await store.find("j", tenant="other") is None
    assert await store.find("j", tenant="") is None
    assert await store.find("j", tenant="acme") == await store.find("j")


@on_each_store
async def test_pages_list_every_job_once_newest_first(store: Store) -> None:
    """Live and finished jobs live apart in the indexes; a page must not show the seam."""
    newest_first = [*reversed(await one_of_each(store))]

    told = await pages(store, JobFilter(), 5)

    assert [name for page in told for name in page] == newest_first
    assert [len(page) for page in told] == [5, 5, 5, 5, 4]


@pytest.mark.parametrize("state", JobState)
@on_each_store
async def test_a_page_of_one_state_lists_that_state(store: Store, state: JobState) -> None:
    """Also over several pages, and `pending` is all three ways of waiting."""
    expected = await one_of_each(store)

    told = await pages(store, JobFilter(state=state), 2)

    assert [name for page in told for name in page] == [
        name for name in reversed(expected) if expected[name] is state
    ]


@on_each_store
async def test_a_page_keeps_its_place_while_jobs_come_and_go(store: Store) -> None:
    """Paging goes by the last id, not by a count: new jobs must not push old ones into the next page twice."""
    await store.accept([a_job(f"1-old-{number}") for number in range(6)], now=NOW)
    first = [job.id for job in await store.select(JobFilter(), limit=3)]
    await store.accept([a_job(f"2-new-{number}") for number in range(4)], now=NOW)
    second = [job.id for job in await store.select(JobFilter(), limit=3, after=first[-1])]

    assert first + second == [f"1-old-{number}" for number in reversed(range(6))]


@pytest.mark.parametrize("state", [None, JobState.PENDING, JobState.DEAD_LETTER], ids=str)
@on_each_store
async def test_a_page_keeps_its_place_when_the_job_it_goes_on_after_is_gone(
    store: Store, state: JobState | None
) -> None:
    """Pruned between two pages: a reader must neither begin again at the top nor miss anything."""
    for number in range(6):
        if state is JobState.DEAD_LETTER:
            await exhausted(store, f"{number}")
        else:
            await store.accept([a_job(f"{number}")], now=NOW)

    assert [job.id for job in await store.select(JobFilter(state=state), limit=2, after="3-pruned")] == [
        "3",
        "2",
    ]
    assert await store.select(JobFilter(state=state), limit=2, after="") == []


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ({"tenant": "acme"}, ["b"]),
        ({"tenant": "nobody"}, []),
        ({"task": "translate"}, ["c"]),
        ({"model": "m"}, ["e", "d"]),
        ({"reason": "exhausted"}, ["e"]),
        ({"reason": "permanent"}, ["d"]),
        ({"error_class": "transient"}, ["e"]),
        ({"error_class": "transient", "model": "m", "state": JobState.DEAD_LETTER}, ["e"]),
        ({"error_class": "transient", "state": JobState.PENDING}, []),
        ({"since": NOW + 100}, ["e"]),
        ({"until": NOW + 100}, ["d", "c", "b", "a"]),
        ({"since": NOW + 1, "until": NOW + 100}, ["d"]),
        ({"since": NOW, "until": NOW}, []),
    ],
    ids=str,
)
@on_each_store
async def test_a_filter_finds_its_jobs_and_no_others(
    store: Store, which: dict[str, Any], expected: list[str]
) -> None:
    """Filters add up; times look at the end of a finished job and at the beginning of a live one."""
    await store.accept([a_job("a"), a_job("b", tenant="acme"), a_job("c", task="translate")], now=NOW)
    await end(store, await running(store, "d", model="m"), REJECTED, now=NOW + 50)
    claim = await running(store, "e", model="m", max_attempts=1)
    await end(store, claim, TRANSIENT, now=NOW + 100)

    assert [job.id for job in await store.select(JobFilter(**which), limit=10)] == expected
    assert await store.count_matching(JobFilter(**which)) == len(expected)


@on_each_store
async def test_a_listed_job_is_the_job_without_its_bulk(store: Store) -> None:
    """A page of a thousand jobs must not carry a thousand inputs; everything else is as `find` says."""
    await store.accept([a_job("j", metadata=b'{"a":1}', model="m")], now=NOW)
    await join(store)
    (claim,) = await take(store, "m")
    await store.save_progress("j", claim.lease, progress=b"50")
    await end(store, claim, Completed(b'"long"'))

    (listed,) = await store.select(JobFilter(), limit=1)
    whole = await found(store, "j")

    assert (listed.input, listed.result, listed.history) == (None, None, ())
    bulk = {"input", "result", "history"}
    for name in set(whole.__struct_fields__) - bulk:
        assert getattr(listed, name) == getattr(whole, name), name


@on_each_store
async def test_a_page_of_none_is_empty(store: Store) -> None:
    """A limit of nothing is nothing, not all."""
    await store.accept([a_job()], now=NOW)

    assert await store.select(JobFilter(), limit=0) == []


@on_each_store
async def test_states_tells_of_those_that_exist(store: Store) -> None:
    """One look for everybody who waits: unknown ids are left out, doubled ones told once."""
    expected = await one_of_each(store)

    assert await store.states([*expected, "nobody", *expected]) == expected
    assert await store.states([]) == {}
    assert await store.states(["nobody"]) == {}


@on_each_store
async def test_states_of_ten_thousand_ids_is_one_look(store: Store) -> None:
    """Everybody who waits is asked for at once: no bound on the number of parameters may show."""
    jobs = [a_job() for _ in range(300)]
    await store.accept(jobs, now=NOW)
    ids = [job.id for job in jobs] + [f"nobody-{number}" for number in range(10_000)]

    assert await store.states(ids) == {job.id: JobState.PENDING for job in jobs}


@on_each_store
async def test_counts_name_every_state_and_miss_no_job(store: Store) -> None:
    """Screens show all states, also those that no job is in."""
    assert await store.count() == dict.fromkeys(map(str, JobState), 0)
    expected = await one_of_each(store)
    await store.accept([a_job(tenant="acme")], now=NOW)

    counts = {str(state): list(expected.values()).count(state) for state in JobState}
    assert await store.count(tenant="local") == counts
    assert await store.count() == {**counts, "pending": counts["pending"] + 1}
    assert (await store.count(tenant="acme"))["pending"] == 1
    assert await store.count(tenant="nobody") == dict.fromkeys(map(str, JobState), 0)


@on_each_store
async def test_the_backlog_is_what_lives_and_what_lies_there(store: Store) -> None:
    """Alerts look at it all day: everybody's, and nothing of those that are over."""
    empty = Backlog(
        pending=0, running=0, oldest_run_at=None, dead_letters=0, oldest_dead_at=None, newly_dead=0
    )
    assert await store.backlog(dead_since=NOW) == empty
    await one_of_each(store)
    await store.accept([a_job(tenant="acme", run_at=NOW - 70)], now=NOW)

    told = await store.backlog(dead_since=NOW)
    assert (told.pending, told.running, told.dead_letters, told.newly_dead) == (10, 3, 3, 3)
    assert (told.oldest_run_at, told.oldest_dead_at) == (NOW - 70, NOW)
    assert (await store.backlog(dead_since=NOW + 1)).newly_dead == 0


@on_each_store
async def test_every_trip_to_the_database_is_timed(store: Store) -> None:
    """A slow disk shows here before anybody complains."""
    trips: list[float] = []
    stop = store.on_trip(trips.append)
    await store.accept([a_job()], now=NOW)
    await store.count()
    assert len(trips) >= 2
    assert all(0 < took_s < 60 for took_s in trips)
    stop()
    trips.clear()
    await store.count()
    assert trips == []


@on_each_store
async def test_waiting_by_tenant_counts_all_three_ways_of_waiting(store: Store) -> None:
    """The bound on a tenant's backlog is kept by this number; running and finished jobs are no backlog."""
    assert await store.waiting_by_tenant() == {}
    await one_of_each(store)
    await store.accept([a_job(tenant="acme"), a_job(tenant="acme", run_at=NOW + 1)], now=NOW)

    assert await store.waiting_by_tenant() == {"local": 9, "acme": 2}


# ---- Cancelling ------------------------------------------------------------------------------------------------------


@on_each_store
async def test_a_job_that_waits_is_cancelled_at_once(store: Store) -> None:
    """Scheduled, ready or under suspicion: nobody has it, so nobody need be asked."""
    await store.accept([a_job("ready"), a_job("later", run_at=NOW + 50)], now=NOW)
    await suspect(store, "suspect")
    for name in ("ready", "later", "suspect"):
        answer = await store.cancel(name, now=NOW + 1, why="not needed")
        job = await found(store, name)

        assert answer == CancelAnswer(JobState.CANCELLED, accepted=True)
        assert (job.state, job.reason) == (JobState.CANCELLED, "not needed")
        assert job.finished_at is not None
        assert job.finished_at.timestamp() == NOW + 1
        assert (job.history[-1].outcome, job.history[-1].message) == ("cancelled", "not needed")
    await store.ready(now=EVER)
    assert await take(store) == []
    assert await take_suspects(store) == []


@on_each_store
async def test_a_running_job_is_only_marked_and_its_node_hears_of_it(store: Store) -> None:
    """The worker may be in the middle of a write: it stops by itself, at a good moment."""
    claim = await running(store, "j")
    await running(store, "other")

    assert await store.cancel("j", now=NOW + 1) == CancelAnswer(JobState.RUNNING, accepted=True)
    assert await state_of(store, "j") is JobState.RUNNING
    renewal = await store.renew("n1")
    assert renewal == Renewal(alive=True, cancelled=(("j", claim.lease),))


@on_each_store
async def test_only_the_node_that_has_the_job_is_told(store: Store) -> None:
    """Another node's worker with the same job id in its hands would be a lost one anyway."""
    await running(store, "j", node="n1")
    await join(store, "n2")
    await store.cancel("j", now=NOW)

    assert (await store.renew("n2")).cancelled == ()


@on_each_store
async def test_a_cancel_may_be_repeated_and_keeps_its_first_time(store: Store) -> None:
    """`uncancelled` counts from the first request: asking again and again must not put off the end."""
    claim = await running(store, "j")
    await store.cancel("j", now=NOW + 10)

    assert await store.cancel("j", now=NOW + 90) == CancelAnswer(JobState.RUNNING, accepted=True)
    assert await store.uncancelled(before=NOW + 11, limit=10) == [claim]


@pytest.mark.parametrize(("outcome", "state"), ENDS, ids=[str(state) for _, state in ENDS])
@on_each_store
async def test_a_finished_job_stays_as_it_ended(store: Store, outcome: Outcome, state: JobState) -> None:
    """A cancel that comes too late says so; one that repeats itself is welcome."""
    await end(store, await running(store, "j"), outcome)
    before = await picture(store)

    answer = await store.cancel("j", now=NOW + 5)

    assert answer == CancelAnswer(state, accepted=state is JobState.CANCELLED)
    assert await picture(store) == before


@on_each_store
async def test_nobody_cancels_what_is_not_theirs(store: Store) -> None:
    """Another tenant's job looks unknown, running or not, and stays untouched."""
    await store.accept([a_job("pending", tenant="acme")], now=NOW)
    await running(store, "running", tenant="acme")
    await exhausted(store, "dead", tenant="acme")
    before = await picture(store)

    for name in ("pending", "running", "dead", "nobody"):
        assert await store.cancel(name, now=NOW, tenant="other") is None
    assert await store.cancel("nobody", now=NOW) is None
    assert await picture(store) == before
    assert await store.cancel("pending", now=NOW, tenant="acme") is not None


@pytest.mark.parametrize(
    "outcome", [TRANSIENT, Crashed(), Deferred(0.0, "drain"), Deferred(60.0, "held")], ids=str
)
@on_each_store
async def test_a_job_asked_to_stop_does_not_wait_for_another_try(store: Store, outcome: Outcome) -> None:
    """The worker was told, died, or was shut down: the job goes to where it was asked to go."""
    claim = await running(store, "j")
    await store.cancel("j", now=NOW + 1)

    assert await end(store, claim, outcome, now=NOW + 2) is Settled.CANCELLED
    job = await found(store, "j")

    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled")
    assert job.finished_at is not None
    assert job.finished_at.timestamp() == NOW + 2
    assert job.history[-1].outcome == "cancelled"
    await store.ready(now=EVER)
    assert await take(store, claim.model) == []


@on_each_store
async def test_work_that_was_done_all_the_same_counts(store: Store) -> None:
    """The result came before the worker heard of the cancel: it is paid for, so it is kept."""
    claim = await running(store, "j")
    await store.cancel("j", now=NOW)

    assert await end(store, claim, Completed(b"1")) is Settled.APPLIED
    assert await state_of(store, "j") is JobState.COMPLETED


@on_each_store
async def test_a_cancel_of_one_run_does_not_reach_the_next(store: Store) -> None:
    """A dead letter that is replayed starts afresh: an old wish to stop is no longer in force."""
    claim = await running(store, "j", max_attempts=1)
    await store.cancel("j", now=NOW)
    await end(store, claim, REJECTED)
    await store.replay(["j"], by="me", now=NOW, expires_after_s=100)
    (again,) = await take(store, claim.model)

    assert (await store.renew("n1")).cancelled == ()
    assert await end(store, again, Deferred(0.0, "drain")) is Settled.APPLIED
    assert await state_of(store, "j") is JobState.PENDING


# ---- Due before their time ---------------------------------------------------------------------------------


@on_each_store
async def test_a_job_that_waits_for_its_time_can_be_made_due(store: Store) -> None:
    await join(store)
    await store.accept([a_job("later", run_at=NOW + 500), a_job("now")], now=NOW)

    assert not await store.make_due("later", now=NOW + 1, tenant="another")
    assert await store.make_due("later", now=NOW + 1, tenant="local")
    assert not await store.make_due("later", now=NOW + 1, tenant="local"), "it does not wait any more"
    assert not await store.make_due("nobody", now=NOW + 1, tenant="local")

    claims = await take(store, now=NOW + 1)
    assert [claim.id for claim in claims] == ["now", "later"], "it stands behind those who were due before"
    assert (await found(store, "later")).run_at.timestamp() == NOW + 1


@on_each_store
async def test_a_suspect_that_is_made_due_still_runs_alone(store: Store) -> None:
    await suspect(store, "s")
    (again,) = await take_suspects(store)
    await end(store, again, Deferred(500.0, "held"))

    assert await store.make_due("s", now=NOW, tenant="local")

    assert await take(store, "model of s") == []
    assert [one.id for one in await take_suspects(store)] == ["s"]


@on_each_store
async def test_only_deferred_jobs_of_these_tasks_are_made_due_together(store: Store) -> None:
    """A failed one waits for its next attempt, and one that was submitted for later has its time."""
    for name, task, outcome in (
        ("held", "a", Deferred(500.0, "held")),
        ("failed", "a", TRANSIENT),
        ("other", "b", Deferred(500.0, "held")),
    ):
        await end(store, await running(store, name, task=task), outcome)
    await store.accept([a_job("later", task="a", run_at=NOW + 500)], now=NOW)

    assert await store.make_deferred_due(["a", "c"], now=NOW) == 1

    claims = [await take(store, f"model of {name}") for name in ("held", "failed", "other")]
    assert [[claim.id for claim in taken] for taken in claims] == [["held"], [], []]
    assert await take(store) == []
