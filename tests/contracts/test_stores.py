"""A store as a whole: opened twice, closed, cancelled amid a call; its bell; two that share one database."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from contracts.job_stage import (
    EVER,
    NOW,
    TRANSIENT,
    a_job,
    a_key,
    a_record,
    after,
    an_access_key,
    end,
    exhausted,
    found,
    join,
    picture,
    reserve,
    running,
    take,
)
from stores_under_test import Home, on_each_store

from headgate.core.errors import StoreUnavailable
from headgate.core.idempotency import InProgress
from headgate.core.job import JobState
from headgate.core.job_rules import Completed, Crashed, Deferred
from headgate.core.ports.claims import Want
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import Store, StoreHealth

SOON_S = 5.0
Verb = Callable[[Store], Awaitable[object]]
VERBS: dict[str, Verb] = {
    "accept": lambda store: store.accept([a_job()], now=NOW),
    "find": lambda store: store.find("j"),
    "select": lambda store: store.select(JobFilter(), limit=1),
    "count_matching": lambda store: store.count_matching(JobFilter()),
    "causes": lambda store: store.causes(JobFilter(), limit=1),
    "states": lambda store: store.states(["j"]),
    "count": lambda store: store.count(),
    "backlog": lambda store: store.backlog(dead_since=NOW),
    "waiting_by_tenant": lambda store: store.waiting_by_tenant(),
    "stored_bytes": lambda store: store.stored_bytes(),
    "cancel": lambda store: store.cancel("j", now=NOW),
    "batch_counts": lambda store: store.batch_counts("b", tenant="local"),
    "batch_jobs": lambda store: store.batch_jobs("b", tenant="local", limit=1),
    "cancel_batch": lambda store: store.cancel_batch("b", tenant="local", now=NOW, limit=1),
    "replay": lambda store: store.replay(["j"], by="me", now=NOW, expires_after_s=1),
    "make_due": lambda store: store.make_due("j", now=NOW, tenant="local"),
    "make_deferred_due": lambda store: store.make_deferred_due(["t"], now=NOW),
    "discard": lambda store: store.discard(["j"], by="me", now=NOW),
    "join": lambda store: store.join("n"),
    "renew": lambda store: store.renew("n"),
    "leave": lambda store: store.leave("n"),
    "ready": lambda store: store.ready(now=NOW),
    "claim": lambda store: store.claim([Want("", 1)], node="n", suspects=1, now=NOW),
    "settle": lambda store: store.settle([], now=NOW),
    "steps": lambda store: store.steps("j"),
    "save_step": lambda store: store.save_step("j", 1, name="s", result=b"", now=NOW),
    "save_progress": lambda store: store.save_progress("j", 1, progress=b"1"),
    "bury_dead": lambda store: store.bury_dead(["n"]),
    "bury_silent": lambda store: store.bury_silent("n", 0),
    "forget_nodes": lambda store: store.forget_nodes(),
    "lost": lambda store: store.lost(limit=1),
    "uncancelled": lambda store: store.uncancelled(before=NOW, limit=1),
    "expire": lambda store: store.expire(now=NOW, limit=1),
    "revivable": lambda store: store.revivable(now=NOW, limit=1),
    "revive": lambda store: store.revive(["j"], now=NOW, expires_after_s=1),
    "cool": lambda store: store.cool(["j"], until=NOW),
    "prune": lambda store: store.prune(before=NOW, limit=1),
    "prune_files": lambda store: store.prune_files(before="file-1", limit=1),
    "purge_keys": lambda store: store.purge_keys(now=NOW, limit=1),
    "reserve": lambda store: reserve(store, a_key()),
    "mark_sent": lambda store: store.mark_sent("local", a_key(), 1),
    "finish": lambda store: store.finish("local", a_key(), 1, status=200, body=b""),
    "keep_answer": lambda store: store.keep_answer("local", a_key(), status=409, body=b"", now=NOW),
    "free": lambda store: store.free("local", a_key(), 1),
    "held_keys": lambda store: store.held_keys("n1"),
    "add_access_key": lambda store: store.add_access_key(an_access_key()),
    "access_keys": lambda store: store.access_keys(),
    "revoke_access_key": lambda store: store.revoke_access_key("k", now=NOW),
    "access_marker": lambda store: store.access_marker(),
    "put_records": lambda store: store.put_records("local", [a_record("r")], now=NOW),
    "get_record": lambda store: store.get_record("local", "pages", "r"),
    "find_record": lambda store: store.find_record("local", "pages", "u"),
    "list_records": lambda store: store.list_records("local", "pages", limit=1),
    "delete_record": lambda store: store.delete_record("local", "pages", "r"),
    "key_check": lambda store: store.key_check(b"mine"),
    "webhook_secrets": lambda store: store.webhook_secrets("local", now=NOW),
    "add_webhook_secret": lambda store: store.add_webhook_secret("local", b"sealed", now=NOW),
}
NO_VERBS = {
    "open",
    "aclose",
    "on_ready",
    "on_trip",
    "on_health",
    "name",
    "health",
    "secret",
    "clock_ahead_s",
    "files_removed",
}


class Bell:
    """Counts the rings of a store, and waits for the next."""

    def __init__(self, store: Store) -> None:
        self.rings = 0
        self._rung = asyncio.Event()
        self.stop = store.on_ready(self._ring)

    def _ring(self) -> None:
        self.rings += 1
        self._rung.set()

    async def next(self) -> None:
        async with asyncio.timeout(SOON_S):
            await self._rung.wait()
        self._rung.clear()


# ---- Open and closed -----------------------------------------------------------------------------------------------


def test_every_verb_of_the_port_is_tried_here() -> None:
    """A new verb must say what it does on a closed store, too."""
    verbs = {name for name in dir(Store) if not name.startswith("_")}

    assert verbs - NO_VERBS == VERBS.keys()


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@on_each_store
async def test_a_closed_store_is_unavailable(store: Store, verb: Verb) -> None:
    """At once, and with our own error: a caller in the middle of a shutdown must not hang or see the driver's."""
    await store.aclose()

    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(verb(store), SOON_S)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@on_each_store
async def test_a_store_that_was_never_opened_does_nothing_and_lets_nobody_wait(
    store: Store, home: Home, verb: Verb
) -> None:
    """Its opening failed, and somebody asks all the same: told at once, not left to wait for ever."""
    before, unopened = await picture(store), home.make()
    with contextlib.suppress(StoreUnavailable):
        await asyncio.wait_for(verb(unopened), SOON_S)
    await unopened.aclose()

    assert await picture(store) == before


@on_each_store
async def test_closing_twice_is_closing(store: Store) -> None:
    """Shutdowns run from many places: a signal, a `finally`, an exit handler."""
    await store.aclose()
    await store.aclose()


@on_each_store
async def test_what_was_asked_before_closing_is_answered(store: Store, home: Home) -> None:
    """Closing waits for the writes that are on their way; each of them is done, or says that it is not."""
    asked = [asyncio.ensure_future(store.accept([a_job(f"j{number}")], now=NOW)) for number in range(50)]
    await asyncio.sleep(0)
    await store.aclose()
    answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), SOON_S)
    again = await home.open()

    for number, answer in enumerate(answers):
        stored = await again.find(f"j{number}") is not None
        assert isinstance(answer, list if stored else StoreUnavailable), (number, answer)


@on_each_store
async def test_a_caller_that_gives_up_leaves_the_store_as_good_as_new(store: Store) -> None:
    """Its write is done or not done, but never half; and the next caller is served."""
    for number in range(30):
        jobs = [a_job(f"{number}-{index}") for index in range(20)]
        task = asyncio.ensure_future(store.accept(jobs, now=NOW))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.accept([a_job(f"{number}-after")], now=NOW)
        states = await store.states([job.id for job in jobs])
        assert len(states) in {0, 20}
    assert store.health is StoreHealth.OK


@on_each_store
async def test_a_store_says_what_and_where_it_is(store: Store, home: Home) -> None:
    """For people who read logs of several; without anything they should not see."""
    assert home.kind in store.name
    assert "password" not in store.name


# ---- Two stores, one database ------------------------------------------------------------------------------------------


@on_each_store
async def test_two_stores_see_each_others_work_at_once(store: Store, home: Home) -> None:
    """What one answered the other knows: there is no cache in between."""
    other = await home.open()
    await join(store)
    await store.accept([a_job("j", key=a_key(), records=(a_record("r"),))], now=NOW)
    assert (await found(other, "j")).state is JobState.PENDING
    (claim,) = await take(other)
    assert (await found(store, "j")).state is JobState.RUNNING
    await other.save_step("j", claim.lease, name="s", result=b"1", now=NOW)
    assert await store.steps("j") == {"s": b"1"}
    await store.cancel("j", now=NOW)
    assert (await other.renew("n1")).cancelled == (("j", claim.lease),)
    await other.settle([after(claim, Completed(b"1"))], now=NOW)

    assert (await found(store, "j")).result == 1
    assert await picture(store) == await picture(other)


@on_each_store
async def test_one_process_rescues_the_jobs_of_another(store: Store, home: Home) -> None:
    """That is what sharing a database is for."""
    other = await home.open()
    claim = await running(other, "j", node="theirs")
    await reserve(other, a_key(), node="theirs")
    await other.aclose()
    assert await reserve(store, a_key(), node="ours") == InProgress()
    assert await store.bury_silent("theirs", 0)

    (lost,) = await store.lost(limit=9)
    assert lost.claim == claim
    await end(store, lost.claim, Crashed())
    await join(store, "ours")
    assert len(await take(store, claim.model, node="ours")) == 1


@on_each_store
async def test_both_write_at_once_and_nothing_is_lost(store: Store, home: Home) -> None:
    """Two writers on one database take turns; nobody's answer is a lie."""
    other = await home.open()
    names = [f"j{number}" for number in range(200)]
    await asyncio.gather(
        *((store, other)[index % 2].accept([a_job(name)], now=NOW) for index, name in enumerate(names))
    )

    assert set(await store.states(names)) == set(names)


# ---- The bell -------------------------------------------------------------------------------------------------------------


@on_each_store
async def test_the_bell_rings_here_and_at_the_other_store(store: Store, home: Home) -> None:
    """A worker that sleeps until the next job wakes up for one that came in elsewhere."""
    here, there = Bell(store), Bell(await home.open())
    await store.accept([a_job()], now=NOW)

    await here.next()
    await there.next()


@pytest.mark.parametrize("event", ["accept", "send back", "follow up", "replay", "revive"])
@on_each_store
async def test_the_bell_rings_whenever_work_gets_ready(store: Store, home: Home, event: str) -> None:
    """Whatever way it comes: without the ring a waiting worker would be a second late, each time."""
    other = await home.open()
    claim = await running(store, "j")
    await exhausted(store, "dead")
    bell = Bell(other)
    await asyncio.sleep(0.05)  # Rings for the jobs above may still be on their way.
    bell.rings = 0
    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "accept": lambda: store.accept([a_job()], now=NOW),
        "send back": lambda: end(store, claim, Deferred(0.0, "drain")),
        "follow up": lambda: end(store, claim, Completed(b"1", follow_ups=(a_job(),))),
        "replay": lambda: store.replay(["dead"], by="me", now=NOW, expires_after_s=9),
        "revive": lambda: store.revive(["dead"], now=EVER, expires_after_s=9),
    }
    await acts[event]()

    async with asyncio.timeout(SOON_S):
        while not bell.rings:
            await bell.next()


@on_each_store
async def test_a_bell_that_was_taken_off_is_silent(store: Store) -> None:
    """A worker that ended must not be called any more; the others are."""
    first, second = Bell(store), Bell(store)
    first.stop()
    await store.accept([a_job()], now=NOW)
    await second.next()

    assert first.rings == 0


@on_each_store
async def test_a_job_for_later_or_one_that_waits_wakes_nobody(store: Store) -> None:
    """Rings cost a look each; a schedule of ten thousand must not cost ten thousand looks."""
    claim = await running(store, "j")
    bell = Bell(store)
    await asyncio.sleep(0.05)
    bell.rings = 0
    await store.accept([a_job(run_at=NOW + 60)], now=NOW)
    await end(store, claim, TRANSIENT)
    await store.find("j")

    assert bell.rings == 0
