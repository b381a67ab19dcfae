"""A replay of many dead letters whose worker is killed twice on the way: every one of them is sent back exactly once."""

import asyncio
import time
from collections import Counter

import pytest
from conftest import Figure
from crash import audit
from crash.harness import PATIENCE_S, ROUNDS, Child, Family, Site
from crash.tasks import Worker

import headgate
from headgate.core.job import JobState

DEAD = 10_000 if ROUNDS else 500
PER_SECOND = 500.0
SLOWEST_PER_SECOND = 50.0
"""Every run leaves a line on the disk: that is what takes its time here."""
AT_ONCE = 500


async def _bury_and_order(site: Site) -> str:
    """Jobs that expired before anybody ran them, and the order to send them all back; its id."""
    async with headgate.open(site.settings(), env={}, tasks=Worker(site.ledgers).tasks()) as gateway:
        for _ in range(DEAD // AT_ONCE):
            await gateway.jobs.submit_many(
                [{"task": "effect", "input": {}, "expires_after_s": 0.001}] * AT_ONCE
            )
        store = gateway.durable.store
        await asyncio.sleep(0.01)
        while await store.expire(now=time.time(), limit=AT_ONCE):
            pass
        assert await gateway.dead_letters.count(reason="expired") == DEAD
        order = await gateway.bulk.replay(reason="expired", per_second=PER_SECOND, by="the night shift")
        return order.id


async def _left(site: Site, most: float, worker: Child) -> None:
    """Until no more than so many are dead letters."""
    async with asyncio.timeout(PATIENCE_S), headgate.open(site.settings(), env={}) as gateway:
        while (await gateway.jobs.count())[JobState.DEAD_LETTER] > most:
            assert not worker.is_over(), "the worker ended by itself"
            await asyncio.sleep(0.02)


@pytest.mark.timeout(600)
def test_every_dead_letter_is_replayed_once_although_its_worker_is_killed_on_the_way(
    family: Family, site: Site, figure: Figure
) -> None:
    order_id = asyncio.run(_bury_and_order(site))
    started = time.monotonic()
    worker = family.worker()
    for share in (0.7, 0.4):
        asyncio.run(_left(site, DEAD * share, worker))
        worker.kill()
        worker = family.worker()
    audit.wait_for_all(site, within_s=PATIENCE_S + DEAD / SLOWEST_PER_SECOND)
    took_s = time.monotonic() - started

    books = audit.open_books(site)
    order = books.jobs.pop(order_id)
    assert (order.state, order.result) == (JobState.COMPLETED, {"done": DEAD, "total": DEAD})
    crashes = [entry for entry in order.history if entry.outcome == "crashed"]
    assert len(crashes) == 2, "it was running each time its worker was killed, and goes on all the same"
    told = Counter(
        tuple(entry.by for entry in job.history if entry.outcome == "replayed") for job in books.jobs.values()
    )
    assert told == {("the night shift",): DEAD}
    assert {(job.state, job.generation) for job in books.jobs.values()} == {(JobState.COMPLETED, 2)}
    audit.check_effects(site, books)
    figure(
        f"{site.kind}: replay of {DEAD:,} dead letters, killed twice on the way",
        f"each replayed once and done once, in {took_s:.1f} s",
    )
