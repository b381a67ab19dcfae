"""The contract of batches: counting, paging and cancelling the jobs that share a batch's id."""

from typing import Any

import msgspec
from contracts.job_stage import (
    EVER,
    NOW,
    REJECTED,
    a_job,
    at,
    end,
    exhausted,
    found,
    join,
    running,
    state_of,
    suspect,
    take,
)
from stores_under_test import on_each_store

from headgate.core.job import Claim, JobState, NewJob, Settled
from headgate.core.job_rules import Cancelled, Completed, Deferred, Outcome, Skipped
from headgate.core.ports.store import Store

HOOK = "https://example.com/hook"


async def one_of_each(store: Store, batch_id: str = "b", *, tenant: str = "local") -> None:
    """A batch with a job in every state there is, the three kinds of pending among them."""
    names: dict[str, Any] = {"batch_id": batch_id, "tenant": tenant}
    prefix = f"{tenant}-{batch_id}"
    await store.accept(
        [a_job(f"{prefix}-0", **names), a_job(f"{prefix}-1", **names, run_at=NOW + 9)], now=NOW
    )
    await suspect(store, f"{prefix}-2", **names)
    await running(store, f"{prefix}-3", **names)
    await exhausted(store, f"{prefix}-4", **names)
    ends: tuple[Outcome, ...] = (Completed(b'{"text":"hi"}'), Skipped("old"), Cancelled())
    for number, outcome in enumerate(ends, 5):
        await end(store, await running(store, f"{prefix}-{number}", **names), outcome)


async def ids(store: Store, batch_id: str = "b", *, tenant: str = "local") -> list[str]:
    return [job.id for job in await store.batch_jobs(batch_id, tenant=tenant, limit=100)]


@on_each_store
async def test_a_batch_is_counted_by_state(store: Store) -> None:
    """Wherever its jobs are kept, live or finished; and nobody else's are counted with them."""
    await one_of_each(store)
    await one_of_each(store, "other")
    await store.accept([a_job("of none")], now=NOW)

    counts = await store.batch_counts("b", tenant="local")

    assert counts == {
        "pending": 3,
        "running": 1,
        "completed": 1,
        "skipped": 1,
        "dead_letter": 1,
        "cancelled": 1,
    }


@on_each_store
async def test_a_strangers_batch_looks_like_an_unknown_one(store: Store) -> None:
    """A batch's id is no secret: with it alone nobody sees or stops anything."""
    await one_of_each(store, tenant="owner")

    for batch_id, tenant in (("b", "stranger"), ("unknown", "owner"), ("b\0", "owner")):
        assert not any((await store.batch_counts(batch_id, tenant=tenant)).values())
        assert await ids(store, batch_id, tenant=tenant) == []
        assert await store.cancel_batch(batch_id, tenant=tenant, now=NOW, limit=100) == 0
    assert (await store.batch_counts("b", tenant="owner"))["pending"] == 3


@on_each_store
async def test_the_pages_of_a_batch_hold_every_job_once(store: Store) -> None:
    """Live and finished ones in one order: whoever pages through them misses none and meets none twice."""
    await one_of_each(store)
    pages = []
    after: str | None = None
    while page := await store.batch_jobs("b", tenant="local", limit=3, after=after):
        pages.append([job.id for job in page])
        after = page[-1].id

    everybody = [f"local-b-{number}" for number in range(8)]
    assert pages == [everybody[:3], everybody[3:6], everybody[6:]]


@on_each_store
async def test_a_page_tells_what_came_of_each_job(store: Store) -> None:
    """Enough for a line of output; neither the input, which the batch's file has, nor the history."""
    told: dict[str, Any] = {"batch_id": "b", "webhook": HOOK, "metadata": b'{"line":7}'}
    await end(store, await running(store, "1", **told), Completed(b'{"text":"hi"}'))
    await end(store, await running(store, "2", **told), REJECTED)

    page = await store.batch_jobs("b", tenant="local", limit=10)

    assert page == [
        msgspec.structs.replace(await found(store, job_id), input=None, history=()) for job_id in ("1", "2")
    ]
    assert [(job.result, job.reason, job.error_class) for job in page] == [
        ({"text": "hi"}, None, None),
        (None, "permanent", "rejected"),
    ]
    assert {(job.batch_id, job.webhook, job.metadata["line"]) for job in page} == {("b", HOOK, 7)}


@on_each_store
async def test_a_cancelled_batch_has_nothing_left_to_run(store: Store) -> None:
    """Pending jobs end at once, running ones are marked, finished ones stay what they are."""
    await one_of_each(store)

    assert await store.cancel_batch("b", tenant="local", now=NOW + 5, limit=100) == 4
    assert await store.cancel_batch("b", tenant="local", now=NOW + 6, limit=100) == 0

    counts = await store.batch_counts("b", tenant="local")
    assert (counts["pending"], counts["running"], counts["cancelled"]) == (0, 1, 4)
    assert (counts["completed"], counts["skipped"], counts["dead_letter"]) == (1, 1, 1)
    (marked,) = await store.uncancelled(before=EVER, limit=10)
    assert marked.id == "local-b-3"
    assert await store.uncancelled(before=NOW + 5, limit=10) == []
    stopped = await found(store, "local-b-0")
    assert (stopped.reason, stopped.finished_at) == ("cancelled", at(NOW + 5))
    assert [entry.outcome for entry in stopped.history] == ["cancelled"]


@on_each_store
async def test_a_batch_is_cancelled_in_bites(store: Store) -> None:
    """A big one must not keep everybody else waiting; and 0 means that nothing is left, no sooner."""
    await one_of_each(store)

    bites = [await store.cancel_batch("b", tenant="local", now=NOW, limit=2) for _ in range(3)]

    assert bites == [2, 2, 0]
    assert await store.cancel_batch("b", tenant="local", now=NOW, limit=0) == 0


@on_each_store
async def test_a_marked_job_does_not_wait_for_another_try(store: Store) -> None:
    """Otherwise a batch that was cancelled would go on by its retries."""
    claim = await running(store, "1", batch_id="b")
    await store.cancel_batch("b", tenant="local", now=NOW, limit=9)

    assert await end(store, claim, Deferred(0.0, "drain")) is Settled.CANCELLED
    assert await state_of(store, "1") is JobState.CANCELLED


@on_each_store
async def test_a_job_keeps_its_batch_and_webhook_wherever_it_goes(store: Store) -> None:
    """Dead, replayed, revived, claimed again: it is the same job."""
    told: dict[str, Any] = {"batch_id": "b", "webhook": HOOK, "metadata": b'{"line":7}', "model": "m"}
    for job_id, verb in (("1", "replay"), ("2", "revive")):
        await exhausted(store, job_id, **told)
        if verb == "replay":
            await store.replay([job_id], by="me", now=NOW, expires_after_s=99)
        else:
            await store.revive([job_id], now=NOW, expires_after_s=99)
        (claim,) = await take(store, "m", 1)

        assert (claim.id, claim.webhook, claim.metadata) == (job_id, HOOK, b'{"line":7}')
        job = await found(store, job_id)
        assert (job.batch_id, job.webhook) == ("b", HOOK)
    await store.leave("n1")
    lost = await store.lost(limit=9)
    assert {(one.claim.webhook, one.claim.metadata) for one in lost} == {(HOOK, b'{"line":7}')}


@on_each_store
async def test_suspects_are_claimed_with_what_their_end_must_tell(store: Store) -> None:
    await suspect(store, "1", webhook=HOOK, metadata=b"{}")
    await join(store)
    claims: list[Claim] = await store.claim([], node="n1", suspects=1, now=NOW)

    assert [(claim.webhook, claim.metadata) for claim in claims] == [(HOOK, b"{}")]


@on_each_store
async def test_jobs_of_a_batch_that_come_with_keys_are_in_it(store: Store) -> None:
    """There are two ways in: the plain one and the one that looks for twins."""
    jobs: list[NewJob] = [a_job("1", batch_id="b", dedup_key="d"), a_job("2", batch_id="b")]
    await store.accept(jobs, now=NOW)
    await store.accept([a_job("3", batch_id="b")], now=NOW)

    assert await ids(store) == ["1", "2", "3"]
