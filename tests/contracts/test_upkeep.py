"""Rescue, expiry, revival, pruning and purging: nothing is stuck, lost or kept for ever, in bounded bites."""

import asyncio

import pytest
from contracts.job_stage import (
    EVER,
    NOW,
    REJECTED,
    TRANSIENT,
    a_job,
    a_key,
    a_record,
    end,
    exhausted,
    found,
    join,
    picture,
    reserve,
    running,
    state_of,
    suspect,
    take,
    take_suspects,
)
from stores_under_test import ROW_BYTES, Home, nodes_of, on_each_store

from headgate.core.call import Lane
from headgate.core.errors import RecordExists
from headgate.core.idempotency import Replay, Run
from headgate.core.job import Ended, JobState, Lost, NewJob, Settled
from headgate.core.job_rules import Cancelled, Completed, Crashed, Deferred, Outcome, Skipped
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import Store

HOUR = 3600.0

# ---- Burying nodes -------------------------------------------------------------------------------------------------


@on_each_store
async def test_only_the_named_are_buried(store: Store) -> None:
    """Their file lock is free, so they are dead."""
    await join(store, "a", "b", "c")

    assert await store.bury_dead(["a", "b", "unknown"]) == 2
    assert await store.bury_dead(["a", "b"]) == 0, "the dead are buried once"
    assert (await store.renew("c")).beats == {}
    assert await store.bury_dead([]) == 0
    assert (await store.renew("c")).alive, "an empty list does not mean all"


@on_each_store
async def test_a_dead_node_is_forgotten_once_it_holds_no_job(store: Store) -> None:
    """Until then its row says how it died; the living stay, whatever they hold."""
    claim = await running(store, "j", node="dead")
    await join(store, "idle", "empty")
    await store.bury_dead(["dead", "empty"])

    assert await store.forget_nodes() == 1
    assert sorted(await nodes_of(store)) == ["dead", "idle"]
    await end(store, claim, Crashed())
    assert await store.forget_nodes() == 1
    assert await nodes_of(store) == ["idle"]


# ---- Rescue ----------------------------------------------------------------------------------------------------------


@on_each_store
async def test_the_jobs_of_a_dead_node_are_lost_and_nobody_elses(store: Store) -> None:
    """The rescuer gets the very claim that the dead node had, so that the same rules apply to it."""
    lost = [await running(store, f"lost-{number}", node="dead") for number in range(3)]
    await running(store, "held", node="alive")
    assert await store.lost(limit=9) == []
    await store.bury_dead(["dead"])

    assert sorted((one.claim for one in await store.lost(limit=9)), key=lambda claim: claim.id) == lost


@on_each_store
async def test_a_job_is_lost_alone_only_if_its_node_ran_nothing_else(store: Store) -> None:
    """Only then nothing else can have killed the node, also while others of its jobs are rescued in between."""
    for job_id, node in (("only", "n1"), ("one", "n2"), ("two", "n2")):
        await running(store, job_id, node=node)
    await store.bury_dead(["n1", "n2"])
    lost = {one.claim.id: one for one in await store.lost(limit=9)}
    assert {job_id: one.alone for job_id, one in lost.items()} == {"only": True, "one": False, "two": False}
    await end(store, lost["one"].claim, Crashed())

    assert {one.claim.id: one.alone for one in await store.lost(limit=9)} == {"only": True, "two": False}


@on_each_store
async def test_silences_are_counted_and_proven_deaths_are_not(store: Store) -> None:
    """A job is taken from one silent node after the other; then its worker is killed."""
    claim = await running(store, "j", model="m", node="n0")
    for number in range(1, 5):
        await store.bury_silent(f"n{number - 1}", 0)
        (lost,) = await store.lost(limit=9)
        assert (lost.claim, lost.silences) == (claim, number)
        await end(store, claim, Deferred(0.0, "silent"))
        await join(store, f"n{number}")
        (claim,) = await take(store, "m", node=f"n{number}")
    await store.bury_dead(["n4"])

    (lost,) = await store.lost(limit=9)
    assert (lost.silences, lost.alone) == (0, True)


@on_each_store
@pytest.mark.parametrize("again", ["replay", "revive"])
async def test_a_replayed_or_revived_job_starts_without_silences(store: Store, again: str) -> None:
    """As it starts without attempts."""
    await running(store, "j", model="m", node="silent", max_attempts=1)
    await store.bury_silent("silent", 0)
    (lost,) = await store.lost(limit=9)
    await end(store, lost.claim, TRANSIENT)
    if again == "replay":
        await store.replay(["j"], by="me", now=NOW, expires_after_s=HOUR)
    else:
        await store.revive(["j"], now=NOW + HOUR, expires_after_s=HOUR)
    await join(store, "next")
    (claim,) = await take(store, "m", node="next", now=NOW + HOUR)
    await store.bury_silent("next", 0)

    (lost,) = await store.lost(limit=9)
    assert (lost.claim.id, lost.silences) == (claim.id, 1)


@on_each_store
async def test_a_node_that_leaves_without_settling_loses_its_jobs(store: Store) -> None:
    """A hasty shutdown is a death like any other."""
    claim = await running(store, "j")
    await store.leave("n1")

    assert await store.lost(limit=9) == [Lost(claim)]


@on_each_store
async def test_the_lost_come_in_bites(store: Store) -> None:
    """A machine with thousands of jobs died: the rescuer takes them a few at a time, and gets them all."""
    for number in range(5):
        await running(store, f"j{number}", node="dead")
    await store.bury_dead(["dead"])
    rescued = []
    while claims := await store.lost(limit=2):
        assert len(claims) <= 2
        for one in claims:
            assert await end(store, one.claim, Crashed()) is Settled.APPLIED
        rescued += [one.claim.id for one in claims]

    assert sorted(rescued) == [f"j{number}" for number in range(5)]


@on_each_store
async def test_a_rescued_job_runs_elsewhere_with_a_higher_lease(store: Store) -> None:
    """And the dead one, should it wake up, is told that its claim is stale."""
    claim = await running(store, "j", node="dead", model="m")
    await store.bury_dead(["dead"])
    (lost,) = await store.lost(limit=9)
    await end(store, lost.claim, Crashed())
    await join(store, "n2")
    (again,) = await take(store, "m", node="n2")

    assert again.lease > claim.lease
    assert (again.crashes, again.attempts) == (1, 1)
    assert await end(store, claim, Completed(b"1")) is Settled.STALE
    assert await store.lost(limit=9) == []


@on_each_store
async def test_a_job_that_was_asked_to_stop_is_cancelled_by_its_rescue(store: Store) -> None:
    """Its worker died before it could obey."""
    claim = await running(store, "j", node="dead")
    await store.cancel("j", now=NOW)
    await store.bury_dead(["dead"])
    await end(store, claim, Crashed())

    assert await state_of(store, "j") is JobState.CANCELLED


@on_each_store
async def test_a_cancel_that_is_not_obeyed_is_told(store: Store) -> None:
    """A task that ignores its cancel is ended from outside, after a while, by its own claim."""
    stubborn = await running(store, "stubborn")
    patient = await running(store, "patient")
    await running(store, "unasked")
    await store.cancel("stubborn", now=NOW)
    await store.cancel("patient", now=NOW + 50)

    assert await store.uncancelled(before=NOW, limit=9) == []
    assert await store.uncancelled(before=NOW + 1, limit=9) == [stubborn]
    assert len(await store.uncancelled(before=EVER, limit=9)) == 2
    assert len(await store.uncancelled(before=EVER, limit=1)) == 1
    assert await end(store, stubborn, Cancelled("ended by force")) is Settled.APPLIED
    assert await store.uncancelled(before=EVER, limit=9) == [patient]


# ---- Expiry -----------------------------------------------------------------------------------------------------------


@on_each_store
async def test_every_way_of_waiting_expires(store: Store) -> None:
    """Scheduled, ready or under suspicion: its time is up, and somebody should know."""
    await store.accept(
        [a_job("ready", expires_at=NOW + 10), a_job("later", run_at=NOW + 90, expires_at=NOW + 10)], now=NOW
    )
    await suspect(store, "suspect", expires_at=NOW + 10)
    assert await store.expire(now=NOW + 9.9, limit=9) == []

    buried = await store.expire(now=NOW + 10, limit=9)

    assert sorted(one.id for one in buried) == ["later", "ready", "suspect"]
    for one in buried:
        job = await found(store, one.id)
        assert (job.state, job.reason) == (JobState.DEAD_LETTER, "expired")
        assert job.finished_at is not None
        assert job.finished_at.timestamp() == NOW + 10
        assert job.history[-1].outcome == "expired"
        assert job.error
        assert job.error_class
    assert await store.expire(now=EVER, limit=9) == []
    await store.ready(now=EVER)
    assert await take(store) == []
    assert await take_suspects(store) == []


@on_each_store
async def test_what_expired_is_told_with_what_people_need(store: Store) -> None:
    """Events and logs are made from this alone."""
    claim = await running(store, "j", tenant="acme", task="translate", model="m", expires_at=NOW + 100)
    await end(store, claim, TRANSIENT)
    (buried,) = await store.expire(now=NOW + 100, limit=9)

    assert (buried.id, buried.tenant, buried.task, buried.model) == ("j", "acme", "translate", "m")
    assert (buried.reason, buried.attempts) == ("expired", 1)
    job = await found(store, "j")
    assert (job.error, job.error_class) == ("transient 503", "transient"), "the last failure says more"


@on_each_store
async def test_what_follows_an_expired_job_comes_with_its_end(store: Store) -> None:
    """Somebody who is to hear of it hears of it, once, and is told what the record says."""
    told = {"webhook": "https://example.com/hook", "metadata": b'{"n":1}', "expires_at": NOW + 10}
    await store.accept([a_job("told", **told), a_job("untold", expires_at=NOW + 10)], now=NOW)
    heard: list[Ended] = []

    def follow_ups(ended: Ended) -> tuple[NewJob, ...]:
        heard.append(ended)
        return () if ended.webhook is None else (a_job(f"{ended.id}'s", task="tell"),)

    rung = asyncio.Event()
    store.on_ready(rung.set)
    for _ in range(2):
        await store.expire(now=NOW + 10, limit=9, follow_ups=follow_ups)

    assert rung.is_set()
    assert await state_of(store, "told's") is JobState.PENDING
    assert sum((await store.count()).values()) == 3
    (ended,) = [one for one in heard if one.id == "told"]
    job = await found(store, "told")
    assert (ended.webhook, ended.metadata, ended.finished_at) == (job.webhook, b'{"n":1}', NOW + 10)
    assert (ended.state, ended.reason) == (job.state, job.reason)
    assert (ended.error, ended.error_class, ended.result) == (job.error, job.error_class, None)


@on_each_store
async def test_without_what_follows_it_nothing_expires(store: Store) -> None:
    """All or nothing: an end that nobody was told of could not be told later."""
    await store.put_records("local", [a_record("r", unique_key="taken")], now=NOW)
    await store.accept([a_job("1", expires_at=NOW + 1), a_job("2", expires_at=NOW + 1)], now=NOW)
    before = await picture(store)

    def clash(ended: Ended) -> tuple[NewJob, ...]:
        return (a_job(f"after {ended.id}", records=(a_record(ended.id, unique_key="taken"),)),)

    with pytest.raises(RecordExists):
        await store.expire(now=NOW + 1, limit=9, follow_ups=clash)

    assert await picture(store) == before


@on_each_store
async def test_a_running_job_does_not_expire(store: Store) -> None:
    """It is being done; its worker decides what becomes of it."""
    await running(store, "j", expires_at=NOW + 10)

    assert await store.expire(now=EVER, limit=9) == []
    assert await state_of(store, "j") is JobState.RUNNING


@on_each_store
async def test_the_longest_expired_go_first_in_bites(store: Store) -> None:
    """Upkeep never holds the writer for long, and nobody is left out for ever."""
    jobs = [a_job(f"j{number}", expires_at=NOW + 10 - number) for number in range(5)]
    await store.accept(jobs, now=NOW)

    bites = [[one.id for one in await store.expire(now=NOW + 50, limit=2)] for _ in range(4)]

    assert [sorted(bite) for bite in bites] == [["j3", "j4"], ["j1", "j2"], ["j0"], []]


@on_each_store
async def test_an_expired_job_frees_its_dedup_key_and_does_not_come_back(store: Store) -> None:
    """Its time is over: the same work may be asked for again, with a new time."""
    await store.accept([a_job("a", dedup_key="page", expires_at=NOW + 1)], now=NOW)
    await store.expire(now=NOW + 1, limit=9)

    assert await store.revivable(now=EVER, limit=9) == []
    assert (await store.accept([a_job("b", dedup_key="page")], now=NOW))[0].created


# ---- Revival -----------------------------------------------------------------------------------------------------------


@on_each_store
async def test_an_exhausted_job_may_come_back_after_its_cool_down(store: Store) -> None:
    """The provider was down for its five attempts; an hour later it is not."""
    claim = await exhausted(store, "j", model="m", priority=3)
    assert await store.revivable(now=NOW + HOUR - 1, limit=9) == []
    assert await store.revivable(now=NOW + HOUR, limit=9) == [("j", "m")]

    assert await store.revive(["j"], now=NOW + HOUR, expires_after_s=500) == 1
    job = await found(store, "j")

    assert (job.state, job.attempts, job.revivals, job.generation) == (JobState.PENDING, 0, 1, 1)
    assert (job.reason, job.finished_at) == (None, None)
    assert (job.run_at.timestamp(), job.expires_at.timestamp()) == (NOW + HOUR, NOW + HOUR + 500)
    assert [entry.outcome for entry in job.history] == ["failed", "revived"]
    assert await store.revivable(now=EVER, limit=9) == []
    (again,) = await take(store, "m", now=NOW + HOUR)
    assert (again.attempts, again.revivals) == (1, 1)
    assert again.lease > claim.lease


@on_each_store
async def test_the_fourth_death_is_for_good(store: Store) -> None:
    """Three revivals, then a person has to look."""
    claim, now = await exhausted(store, "j", model="m", expires_at=EVER), NOW
    for revivals in (1, 2, 3):
        now += HOUR
        assert await store.revive(["j"], now=now, expires_after_s=10 * HOUR) == 1
        (claim,) = await take(store, "m", now=now)
        assert claim.revivals == revivals
        await end(store, claim, TRANSIENT, now=now)

    assert await store.revivable(now=EVER, limit=9) == []
    assert await store.revive(["j"], now=EVER, expires_after_s=1) == 0
    assert (await found(store, "j")).reason == "exhausted"


@on_each_store
async def test_only_the_exhausted_are_revived(store: Store) -> None:
    """Whatever ids the caller names: revival is not a back door to run things twice."""
    await store.accept([a_job("pending"), a_job("stopped")], now=NOW)
    await store.cancel("stopped", now=NOW)
    await running(store, "running")
    await end(store, await running(store, "done"), Completed(b"1"))
    await end(store, await running(store, "wrong"), REJECTED)
    await exhausted(store, "unwilling", revivable=False)
    before = await picture(store)

    names = ["pending", "stopped", "running", "done", "wrong", "unwilling", "nobody"]
    assert await store.revive(names, now=NOW + HOUR, expires_after_s=1) == 0
    assert await store.revive([], now=NOW, expires_after_s=1) == 0
    assert await picture(store) == before


@on_each_store
async def test_the_revivable_come_longest_cooled_first_in_bites(store: Store) -> None:
    """After an outage thousands come back: not all at once."""
    for number in range(4):
        await exhausted(store, f"j{number}", model="m", now=NOW + 10 * (4 - number))

    assert await store.revivable(now=EVER, limit=3) == [("j3", "m"), ("j2", "m"), ("j1", "m")]
    assert await store.revive(["j3", "j2", "j3"], now=NOW + HOUR, expires_after_s=1) == 2


@on_each_store
async def test_a_revived_job_stands_in_line_by_its_lane_and_priority(store: Store) -> None:
    """A revival is no way to get ahead of those who came meanwhile."""
    await exhausted(store, "low", model="m", priority=9)
    await exhausted(store, "person", model="m", priority=9, lane=Lane.INTERACTIVE)
    now = NOW + HOUR
    await store.accept([a_job("new", model="m", run_at=now)], now=now)
    await store.revive(["low", "person"], now=now, expires_after_s=HOUR)

    assert [claim.id for claim in await take(store, "m", now=now)] == ["person", "new", "low"]


@on_each_store
async def test_a_job_whose_live_twin_works_is_not_revived_but_asked_again_later(store: Store) -> None:
    """Its work is being done. If the twin dies too, this one may still come back."""
    await exhausted(store, "dead", dedup_key="page")
    twin = await running(store, "twin", dedup_key="page")
    now = NOW + HOUR
    before = await found(store, "dead")

    assert await store.revive(["dead"], now=now, expires_after_s=HOUR) == 0
    assert await found(store, "dead") == before
    assert await store.revivable(now=now, limit=9) == [], "it would be asked again at once, for ever"
    (later,) = await store.revivable(now=now + 600, limit=9)
    assert later[0] == "dead"

    await end(store, twin, Skipped("gone"))
    assert await store.revive(["dead"], now=now + 600, expires_after_s=HOUR) == 1


# ---- Pruning ------------------------------------------------------------------------------------------------------------


@on_each_store
async def test_the_finished_are_deleted_with_all_they_had_and_the_live_stay(store: Store) -> None:
    """Retention is about what is over, however old the living are."""
    old = NOW - 1e6
    ends: dict[str, Outcome] = {
        "done": Completed(b"1"),
        "skipped": Skipped("x"),
        "stopped": Cancelled(),
        "dead": REJECTED,
    }
    for name, outcome in ends.items():
        claim = await running(store, name, now=old, run_at=old)
        await store.save_step(name, claim.lease, name="s", result=b"1", now=old)
        await end(store, claim, outcome, now=old + 10)
    await store.accept([a_job("ready"), a_job("later", run_at=EVER)], now=old)
    claim = await running(store, "running", now=old, run_at=old)
    await store.save_step("running", claim.lease, name="s", result=b"1", now=old)
    await suspect(store, "suspect", run_at=old)

    assert await store.prune(before=old + 10, limit=99) == 0
    assert await store.prune(before=old + 10.5, limit=99) == 4
    assert await store.prune(before=EVER, limit=99) == 0

    left = await store.select(JobFilter(), limit=99)
    assert {job.id for job in left} == {"ready", "later", "running", "suspect"}
    assert await store.steps("done") == await store.steps("dead") == {}
    assert await store.steps("running") == {"s": b"1"}
    for job in left:
        assert (await found(store, job.id)).input == {"text": "hello"}


@on_each_store
async def test_the_oldest_are_pruned_first_in_bites(store: Store) -> None:
    """Retention goes by age, and never holds the writer for long."""
    for number in range(5):
        await end(store, await running(store, f"j{number}"), Completed(b"1"), now=NOW + 5 - number)
    bites = [await store.prune(before=EVER, limit=2) for _ in range(2)]

    assert bites == [2, 2]
    assert [job.id for job in await store.select(JobFilter(), limit=9)] == ["j0"]


@on_each_store
async def test_a_pruned_jobs_id_and_place_may_be_used_again(store: Store) -> None:
    """A new job must not inherit the input, the result or the steps of one that is gone."""
    claim = await running(store, "j", input=b'"old"')
    await store.save_step("j", claim.lease, name="s", result=b"old", now=NOW)
    await end(store, claim, Completed(b'"old"'))
    await store.prune(before=EVER, limit=9)
    claim = await running(store, "j", input=b'"new"')
    job = await found(store, "j")

    assert (claim.input, job.input, job.result, await store.steps("j")) == (b'"new"', "new", None, {})
    assert await end(store, claim, Completed(b'"new"')) is Settled.APPLIED
    assert (await found(store, "j")).result == "new"


@on_each_store
async def test_records_outlive_the_jobs_that_wrote_them(store: Store) -> None:
    """They are the application's, not the queue's."""
    claim = await running(store, "j")
    await end(store, claim, Completed(b"1", records=(a_record("r", job_id="j"),)))
    await store.prune(before=EVER, limit=9)

    assert await store.get_record("local", "pages", "r") is not None


@on_each_store
async def test_a_live_job_survives_everything_upkeep_does(store: Store, home: Home) -> None:
    """Two processes keep house at once, over and over: what lives and is not late stays as it is."""
    other = await home.open()
    await running(store, "running")
    await store.accept([a_job("ready"), a_job("later", run_at=NOW + 50)], now=NOW)
    before = await picture(store)
    for keeper in (store, other, store):
        await keeper.forget_nodes()
        assert await keeper.lost(limit=9) == []
        assert await keeper.uncancelled(before=EVER, limit=9) == []
        assert await keeper.expire(now=NOW + 100, limit=9) == []
        assert await keeper.revivable(now=EVER, limit=9) == []
        assert await keeper.prune(before=EVER, limit=9) == 0
        assert await keeper.prune_files(before="file-f", limit=9) == 0
        assert await keeper.purge_keys(now=EVER, limit=9) == 0

    assert await picture(store) == before


# ---- Pruning files ------------------------------------------------------------------------------------------------------


@on_each_store
async def test_records_of_files_are_pruned_by_their_ids_oldest_first_and_no_others(store: Store) -> None:
    """All tenants' in one order. A record of another collection stays, whatever its id says."""
    for number, tenant in enumerate(["b", "a", "b", "a", "b"]):
        file = a_record(f"file-{number}", collection="files", body=b'{"bytes":1}')
        await store.put_records(tenant, [file], now=NOW)
    await store.put_records("a", [a_record("file-0"), a_record("file-0", collection="file")], now=NOW)
    before = await store.stored_bytes()

    bites = [await store.prune_files(before="file-4", limit=3) for _ in range(3)]

    assert bites == [3, 1, 0]
    assert [file.id for file in await store.list_records("b", "files", limit=9)] == ["file-4"]
    assert await store.list_records("a", "files", limit=9) == []
    assert await store.get_record("a", "pages", "file-0") is not None
    assert await store.get_record("a", "file", "file-0") is not None
    a_file_bytes = ROW_BYTES + len(b'{"bytes":1}') + 1
    after = {"a": before["a"] - 2 * a_file_bytes, "b": before["b"] - 2 * a_file_bytes}
    assert await store.stored_bytes() == after


@on_each_store
async def test_two_that_prune_files_at_once_take_each_record_once(store: Store, home: Home) -> None:
    other = await home.open()
    files = [a_record(f"file-{number:02}", collection="files", body=b'{"bytes":1}') for number in range(40)]
    await store.put_records("local", files, now=NOW)

    pruned = await asyncio.gather(
        *(keeper.prune_files(before="file-30", limit=5) for keeper in (store, other) * 5)
    )
    while bite := await store.prune_files(before="file-30", limit=5):
        pruned.append(bite)

    assert sum(pruned) == 30
    assert len(await store.list_records("local", "files", limit=99)) == 10


# ---- Purging keys --------------------------------------------------------------------------------------------------------


@on_each_store
async def test_expired_keys_are_purged_in_bites_and_others_stay(store: Store) -> None:
    """A key's promise ends with its time, not before."""
    await join(store)
    for number in range(5):
        await reserve(store, a_key(f"old-{number}", expires_at=NOW + 10))
    verdict = await reserve(store, a_key("young", expires_at=NOW + 11))
    assert isinstance(verdict, Run)
    await store.finish("local", a_key("young"), verdict.lease, status=200, body=b"answer")

    assert await store.purge_keys(now=NOW + 9, limit=9) == 0
    assert [await store.purge_keys(now=NOW + 10, limit=3) for _ in range(3)] == [3, 2, 0]
    assert await reserve(store, a_key("young"), now=NOW + 10) == Replay(200, b"answer")


@pytest.mark.parametrize("limit", [0, 1])
@on_each_store
async def test_a_bite_of_nothing_or_one_is_a_bite(store: Store, limit: int) -> None:
    """Limits are limits, also the smallest."""
    await exhausted(store, "a")
    await exhausted(store, "b", node="dead")
    await store.accept([a_job("c", expires_at=NOW), a_job("d", expires_at=NOW)], now=NOW)
    await running(store, "e", node="dead")
    await running(store, "f", node="dead")
    await store.bury_dead(["dead"])

    assert len(await store.lost(limit=limit)) == limit
    assert len(await store.expire(now=NOW, limit=limit)) == limit
    assert len(await store.revivable(now=EVER, limit=limit)) == limit
    assert await store.prune(before=EVER, limit=limit) == limit


@on_each_store
async def test_a_job_that_is_cooled_is_not_offered_for_revival_before_its_time(store: Store) -> None:
    """Jobs of a model that takes no calls must not stand in the way of those behind them."""
    await exhausted(store, "j")
    assert await store.cool(["j", "nobody"], until=NOW + 2 * HOUR) == 1
    assert await store.revivable(now=NOW + 1.9 * HOUR, limit=10) == []
    assert [job_id for job_id, _ in await store.revivable(now=NOW + 2 * HOUR, limit=10)] == ["j"]
