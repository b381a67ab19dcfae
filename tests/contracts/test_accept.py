"""Taking jobs in: all of a list or nothing, once per key, once per live twin, and durable when it answers."""

import asyncio
from collections import Counter
from typing import Any

import apsw
import msgspec
import pytest
from contracts.job_stage import (
    NOW,
    REJECTED,
    TRANSIENT,
    a_job,
    a_key,
    a_record,
    end,
    found,
    join,
    picture,
    reserve,
    running,
    state_of,
    suspect,
    take,
)
from stores_under_test import Home, on_each_store

from headgate.core.call import Lane
from headgate.core.errors import HeadgateError, KeyMismatch, RecordExists, StoreUnavailable
from headgate.core.idempotency import Mismatch, SameJob
from headgate.core.job import Accepted, JobState
from headgate.core.job_rules import Cancelled, Completed, Crashed, Outcome, Skipped
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import Store

CROWD = 100

# ---- What is taken in is what comes out -------------------------------------------------------------------------


@on_each_store
async def test_a_job_is_read_back_as_it_was_given(store: Store) -> None:
    """Every field: a job that forgets its priority or its time limit misbehaves where nobody looks."""
    given = a_job(
        "j",
        task="translate",
        input=b'{"text":"gr\xc3\xbc\xc3\x9fe","n":[1,2.5,null,true]}',
        metadata=b'{"who":"me"}',
        tenant="acme",
        model="summary",
        lane=Lane.INTERACTIVE,
        priority=7,
        max_attempts=3,
        timeout_s=12.5,
        dedup_key="page-1",
        hold=False,
        run_at=NOW + 5.25,
        expires_at=NOW + 99.5,
    )
    assert await store.accept([given], now=NOW) == [Accepted("j", created=True)]
    job = await found(store, "j")

    for name in ("id", "task", "tenant", "model", "lane", "priority", "max_attempts", "timeout_s", "hold"):
        assert getattr(job, name) == getattr(given, name), name
    assert job.input == {"text": "grüße", "n": [1, 2.5, None, True]}
    assert (job.metadata, job.dedup_key) == ({"who": "me"}, "page-1")
    assert job.state is JobState.PENDING
    assert (job.attempts, job.crashes, job.deferrals, job.revivals, job.generation) == (0, 0, 0, 0, 1)
    assert (job.created_at.timestamp(), job.run_at.timestamp(), job.expires_at.timestamp()) == (
        NOW,
        NOW + 5.25,
        NOW + 99.5,
    )
    nothing = (job.started_at, job.finished_at, job.result, job.error, job.error_class, job.reason)
    assert nothing == (None,) * 6
    assert (job.progress, job.history) == (None, ())


@on_each_store
async def test_a_claim_carries_what_was_given(store: Store) -> None:
    """A worker sees nothing but its claim: what is missing there is missing for good."""
    given = a_job("j", tenant="acme", model="m", priority=2, hold=False, revivable=False, timeout_s=3.5)
    given = msgspec.structs.replace(given, access_key="key_1", batch_id="batch_1", metadata=b"{}")
    await join(store)
    await store.accept([given], now=NOW)
    (claim,) = await take(store, "m", tenant="acme", now=NOW + 1)

    for name in msgspec.structs.asdict(claim):
        if hasattr(given, name):
            assert getattr(claim, name) == getattr(given, name), name
    assert (claim.attempts, claim.generation, claim.crashes, claim.deferrals, claim.revivals) == (
        1,
        1,
        0,
        0,
        0,
    )
    assert claim.started_at == NOW + 1
    assert claim.lease >= 1


@on_each_store
async def test_a_job_without_a_model_has_none(store: Store) -> None:
    """The store's empty text must not leak out as a model's name."""
    await store.accept([a_job("j")], now=NOW)

    assert (await found(store, "j")).model is None


@on_each_store
async def test_nothing_is_taken_in_when_nothing_is_given(store: Store) -> None:
    """An empty page of a feed is no error."""
    assert await store.accept([], now=NOW) == []
    assert sum((await store.count()).values()) == 0


@on_each_store
async def test_a_list_is_answered_in_its_order(store: Store) -> None:
    """Callers match answers to their jobs by position."""
    jobs = [a_job() for _ in range(50)]
    answers = await store.accept(jobs, now=NOW)

    assert answers == [Accepted(job.id, created=True) for job in jobs]


# ---- All or nothing -----------------------------------------------------------------------------------------------


@on_each_store
async def test_a_list_with_a_wrong_key_is_refused_whole(store: Store) -> None:
    """A caller that is told of an error must be able to send the same list again."""
    await store.accept([a_job("first", key=a_key("k", b"one"))], now=NOW)
    before = await picture(store)
    jobs = [a_job("a"), a_job("b", key=a_key("fresh")), a_job("c", key=a_key("k", b"two")), a_job("d")]

    with pytest.raises(KeyMismatch, match="'k'"):
        await store.accept(jobs, now=NOW)

    assert await picture(store) == before
    again = await store.accept([a_job("e", key=a_key("fresh", b"another body"))], now=NOW)
    assert again == [Accepted("e", created=True)], "the refused list kept a key"


@on_each_store
async def test_a_list_with_a_wrong_record_is_refused_whole(store: Store) -> None:
    """Neither the jobs nor the records before the one that collides may stay behind."""
    await store.put_records("local", [a_record("r", unique_key="http://x")], now=NOW)
    before = await picture(store)
    jobs = [
        a_job("a", records=(a_record("new"),)),
        a_job("b", records=(a_record("newer"), a_record("other", unique_key="http://x"))),
    ]

    with pytest.raises(RecordExists) as refusal:
        await store.accept(jobs, now=NOW)

    assert refusal.value.record_id == "r"
    assert await picture(store) == before


@on_each_store
async def test_a_list_with_a_taken_id_is_refused_whole(store: Store) -> None:
    """Ids are made to be unique; if one ever is not, the old job must not be written over."""
    await store.accept([a_job("a")], now=NOW)
    before = await picture(store)

    with pytest.raises((HeadgateError, apsw.ConstraintError)):
        await store.accept([a_job("b"), a_job("a", task="other")], now=NOW)

    assert await picture(store) == before


@on_each_store
async def test_a_refused_list_takes_nobody_with_it(store: Store) -> None:
    """Concurrent callers may share a transaction; they must not share its failures."""
    await store.accept([a_job("first", key=a_key("k", b"one"))], now=NOW)
    await store.put_records("local", [a_record("r", unique_key="u")], now=NOW)

    def wrong(number: int) -> Any:
        if number % 2:
            return store.accept([a_job(), a_job(key=a_key("k", b"two"))], now=NOW)
        return store.accept([a_job(records=(a_record("x"), a_record("s", unique_key="u")))], now=NOW)

    good = [f"good-{number}" for number in range(30)]
    answers = await asyncio.gather(
        *(store.accept([a_job(name)], now=NOW) for name in good[:15]),
        *(wrong(number) for number in range(10)),
        *(store.accept([a_job(name)], now=NOW) for name in good[15:]),
        return_exceptions=True,
    )

    kinds = Counter(type(answer) for answer in answers)
    assert kinds == {list: 30, KeyMismatch: 5, RecordExists: 5}
    listed = {job.id for job in await store.select(JobFilter(), limit=1000)}
    assert listed == {"first", *good}
    assert await store.get_record("local", "pages", "x") is None


# ---- Keys -----------------------------------------------------------------------------------------------------------


@on_each_store
async def test_the_same_key_and_body_is_the_same_job(store: Store) -> None:
    """The client that lost our answer and asks again must not pay twice."""
    first = await store.accept([a_job("a", key=a_key())], now=NOW)
    second = await store.accept([a_job("b", key=a_key(), records=(a_record("r"),))], now=NOW + 1)

    assert first == [Accepted("a", created=True)]
    assert second == [Accepted("a", created=False)]
    assert await store.find("b") is None
    assert await store.get_record("local", "pages", "r") is None


@on_each_store
async def test_a_key_is_answered_with_its_job_also_when_that_has_ended(store: Store) -> None:
    """A key names a request, not a state: only dedup keys are free again at the end."""
    claim = await running(store, "a", key=a_key())
    await end(store, claim, Completed(b"1"))

    assert await store.accept([a_job("b", key=a_key())], now=NOW) == [Accepted("a", created=False)]


@on_each_store
async def test_a_key_is_one_tenants_and_one_endpoints(store: Store) -> None:
    """Two customers that both number their requests from 1 must never see each other's jobs."""
    await store.accept([a_job("a", key=a_key(body=b"1"))], now=NOW)
    others = [
        a_job("b", tenant="other", key=a_key(body=b"2")),
        a_job("c", key=a_key(body=b"3", endpoint="POST /other")),
    ]

    assert [answer.created for answer in await store.accept(others, now=NOW)] == [True, True]


@on_each_store
async def test_a_list_may_name_a_key_twice(store: Store) -> None:
    """The list is one transaction, and what it wrote first counts for what comes later in it."""
    answers = await store.accept([a_job("a", key=a_key()), a_job("b", key=a_key())], now=NOW)

    assert answers == [Accepted("a", created=True), Accepted("a", created=False)]


@on_each_store
async def test_an_expired_key_runs_anew(store: Store) -> None:
    """Also with another body: the key's promise has an end, and it is this second."""
    await store.accept([a_job("a", key=a_key(expires_at=NOW + 10))], now=NOW)

    with pytest.raises(KeyMismatch):
        await store.accept([a_job("b", key=a_key(body=b"other"))], now=NOW + 9.99)
    answer = await store.accept([a_job("b", key=a_key(body=b"other", expires_at=NOW + 99))], now=NOW + 10)

    assert answer == [Accepted("b", created=True)]
    assert await store.accept([a_job("c", key=a_key(body=b"other"))], now=NOW + 11) == [
        Accepted("b", created=False)
    ]


@on_each_store
async def test_a_jobs_key_is_known_to_direct_calls_on_the_same_endpoint(store: Store) -> None:
    """Both look at one table of keys; a job's key answers with the job."""
    await store.accept([a_job("a", key=a_key())], now=NOW)

    assert await reserve(store, a_key()) == SameJob("a")
    assert await reserve(store, a_key(body=b"other")) == Mismatch()


@on_each_store
async def test_a_hundred_identical_submissions_make_one_job(store: Store) -> None:
    """A client that retries wildly is the reason for keys: all get the same job, one made it."""
    answers = await asyncio.gather(
        *(store.accept([a_job(f"j{number}", key=a_key())], now=NOW) for number in range(CROWD))
    )

    assert len({answer.id for (answer,) in answers}) == 1
    assert sum(answer.created for (answer,) in answers) == 1
    assert (await store.count())["pending"] == 1


@on_each_store
async def test_a_hundred_identical_submissions_at_two_stores_make_one_job(store: Store, home: Home) -> None:
    """As above, but the requests come in at two processes."""
    stores = [store, await home.open()]
    answers = await asyncio.gather(
        *(stores[number % 2].accept([a_job(f"j{number}", key=a_key())], now=NOW) for number in range(CROWD))
    )

    assert len({answer.id for (answer,) in answers}) == 1
    assert sum(answer.created for (answer,) in answers) == 1


# ---- Twins ----------------------------------------------------------------------------------------------------------


@on_each_store
async def test_a_live_twin_is_joined(store: Store) -> None:
    """The same page submitted twice is summarised once; records of the second are not written either."""
    await store.accept([a_job("a", dedup_key="page")], now=NOW)
    answer = await store.accept([a_job("b", dedup_key="page", records=(a_record("r"),))], now=NOW)

    assert answer == [Accepted("a", created=False)]
    assert await store.find("b") is None
    assert await store.get_record("local", "pages", "r") is None


@on_each_store
async def test_twins_are_of_one_tenant_and_one_task(store: Store) -> None:
    """A dedup key is the application's own word; another application may use the same."""
    jobs = [
        a_job(dedup_key="page"),
        a_job(dedup_key="page", tenant="other"),
        a_job(dedup_key="page", task="translate"),
        a_job(),
        a_job(),
    ]

    assert all(answer.created for answer in await store.accept(jobs, now=NOW))


@on_each_store
async def test_a_job_is_a_twin_in_every_state_of_life(store: Store) -> None:
    """Scheduled, ready, running or under suspicion: it is the same work, and it is not done yet."""
    await store.accept([a_job("later", dedup_key="1", run_at=NOW + 100)], now=NOW)
    await store.accept([a_job("ready", dedup_key="2")], now=NOW)
    await running(store, "running", dedup_key="3")
    await suspect(store, "suspect", dedup_key="4")
    jobs = [a_job(dedup_key=key) for key in "1234"]

    answers = await store.accept(jobs, now=NOW)

    assert [answer.id for answer in answers] == ["later", "ready", "running", "suspect"]


@pytest.mark.parametrize(
    "outcome",
    [Completed(b"1"), Skipped("nothing new"), Cancelled(), REJECTED],
    ids=lambda one: type(one).__name__,
)
@on_each_store
async def test_a_dedup_key_is_free_again_once_the_job_ended(store: Store, outcome: Outcome) -> None:
    """Tomorrow's newsletter is new work, although it has today's name."""
    claim = await running(store, "a", dedup_key="page")
    await end(store, claim, outcome)

    assert await store.accept([a_job("b", dedup_key="page")], now=NOW) == [Accepted("b", created=True)]


@pytest.mark.parametrize("outcome", [TRANSIENT, Crashed()], ids=lambda one: type(one).__name__)
@on_each_store
async def test_a_job_that_waits_for_another_try_is_still_a_twin(store: Store, outcome: Outcome) -> None:
    """Between two attempts a job is not over."""
    claim = await running(store, "a", dedup_key="page")
    await end(store, claim, outcome)

    assert await store.accept([a_job("b", dedup_key="page")], now=NOW) == [Accepted("a", created=False)]


@on_each_store
async def test_a_key_that_came_with_a_twin_names_the_twin(store: Store) -> None:
    """Asked again, the client must hear the same id, also when the twin has ended meanwhile."""
    claim = await running(store, "a", dedup_key="page")
    assert await store.accept([a_job("b", dedup_key="page", key=a_key())], now=NOW) == [
        Accepted("a", created=False)
    ]
    await end(store, claim, Completed(b"1"))

    again = await store.accept([a_job("c", dedup_key="page", key=a_key())], now=NOW)
    assert again == [Accepted("a", created=False)]


@on_each_store
async def test_a_list_may_name_a_dedup_key_twice(store: Store) -> None:
    """A feed that lists an article twice is a feed like many."""
    answers = await store.accept([a_job("a", dedup_key="p"), a_job("b", dedup_key="p")], now=NOW)

    assert answers == [Accepted("a", created=True), Accepted("a", created=False)]


@on_each_store
async def test_a_hundred_concurrent_twins_make_one_job(store: Store, home: Home) -> None:
    """Twins that arrive in the same moment, at two processes, are twins all the same."""
    stores = [store, await home.open()]
    answers = await asyncio.gather(
        *(stores[n % 2].accept([a_job(f"j{n}", dedup_key="page")], now=NOW) for n in range(CROWD))
    )

    assert len({answer.id for (answer,) in answers}) == 1
    assert sum(answer.created for (answer,) in answers) == 1


# ---- Records and durability -------------------------------------------------------------------------------------------


@on_each_store
async def test_a_job_and_its_records_are_there_together(store: Store) -> None:
    """An application that finds the bookmark must find the job that will fetch it."""
    await store.accept([a_job("j", tenant="acme", records=(a_record("r", job_id="j"),))], now=NOW)
    record = await store.get_record("acme", "pages", "r")

    assert record is not None
    assert record.job_id == "j"
    assert await store.get_record("local", "pages", "r") is None, "records are their job's tenant's"


@on_each_store
async def test_concurrent_submissions_for_one_unique_key_leave_one_winner(store: Store) -> None:
    """One bookmark per address: of fifty at once, one is made, with its job, and the others leave nothing."""

    async def submit(number: int) -> bool:
        record = a_record(f"r{number}", unique_key="http://x")
        try:
            await store.accept([a_job(f"j{number}", records=(record,))], now=NOW)
        except RecordExists:
            return False
        return True

    won = await asyncio.gather(*(submit(number) for number in range(50)))
    (job,) = await store.select(JobFilter(), limit=100)
    (record,) = await store.list_records("local", "pages", limit=100)

    assert sum(won) == 1
    assert job.id == f"j{won.index(True)}"
    assert record.id == f"r{won.index(True)}"


@on_each_store
async def test_what_was_taken_in_is_there_for_whoever_opens_next(store: Store, home: Home) -> None:
    """An answered submission outlives the process that answered."""
    await store.accept([a_job("j", key=a_key(), records=(a_record("r"),))], now=NOW)
    await store.aclose()
    again = await home.open()

    assert await state_of(again, "j") is JobState.PENDING
    assert await again.get_record("local", "pages", "r") is not None
    assert await again.accept([a_job("k", key=a_key())], now=NOW) == [Accepted("j", created=False)]


@on_each_store
async def test_a_closed_store_takes_nothing_in(store: Store) -> None:
    """Whoever still asks is told so at once, and does not wait for an answer that cannot come."""
    await store.aclose()

    with pytest.raises(StoreUnavailable, match="closed"):
        await store.accept([a_job()], now=NOW)
