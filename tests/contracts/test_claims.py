"""Being a node and claiming: who goes first, whose turn it is, and that nobody gets what another has."""

import asyncio
import random
from collections import Counter

import pytest
from contracts.job_stage import (
    EVER,
    NOW,
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
    take_named,
    take_suspects,
)
from stores_under_test import Home, nodes_of, on_each_store

from headgate.core.call import Lane
from headgate.core.job import Claim, JobState, Settled
from headgate.core.job_rules import Completed, Crashed, Deferred
from headgate.core.ports.claims import MAX_LINES, Ready, Renewal, Want
from headgate.core.ports.store import Store

CROWDED = 10_000
"""What one tenant has waiting while others come with a few."""


def ids(claims: list[Claim]) -> list[str]:
    return [claim.id for claim in claims]


# ---- Being a node ------------------------------------------------------------------------------------------------


@on_each_store
async def test_joining_twice_is_being_one_node(store: Store) -> None:
    """A node that does not know whether its join was done joins again."""
    await join(store, "a")
    await join(store, "a")

    assert await nodes_of(store) == ["a"]


@on_each_store
async def test_a_renewal_raises_the_beat_and_shows_those_of_the_others(store: Store) -> None:
    """All judge each other by these numbers; a node's own says nothing to itself, and the dead have none."""
    await join(store, "a", "b", "c", "dead")
    await store.bury_dead(["dead"])
    for _ in range(3):
        await store.renew("b")

    assert await store.renew("a") == Renewal(alive=True, beats={"b": 3, "c": 0})
    assert (await store.renew("c")).beats == {"a": 1, "b": 3}


@on_each_store
async def test_a_silent_node_is_buried_only_if_its_beat_is_still_the_same(store: Store) -> None:
    """The observer read it a moment ago; meanwhile the node may have come back."""
    await join(store, "a")
    await store.renew("a")

    assert not await store.bury_silent("a", 0)
    assert (await store.renew("a")).alive
    assert await store.bury_silent("a", 2)
    assert not (await store.renew("a")).alive
    assert not await store.bury_silent("a", 2), "the dead are buried once"
    assert not await store.bury_silent("unknown", 0)


@on_each_store
async def test_a_dead_node_does_not_join_again_under_its_name(store: Store) -> None:
    """A join that was delayed in the network must not make its jobs look held."""
    await join(store, "a")
    await store.bury_dead(["a"])
    await join(store, "a")

    assert not (await store.renew("a")).alive


@on_each_store
async def test_a_node_nobody_knows_is_not_alive(store: Store) -> None:
    """Renewing must not bring back the dead: its jobs may run elsewhere already."""
    assert await store.renew("nobody") == Renewal(alive=False)
    assert await nodes_of(store) == []


@on_each_store
async def test_a_node_that_left_is_gone(store: Store) -> None:
    """And leaving twice is no error: shutdowns are untidy."""
    await join(store, "a")
    await store.leave("a")
    await store.leave("a")

    assert await nodes_of(store) == []
    assert await store.renew("a") == Renewal(alive=False)


@on_each_store
async def test_a_buried_node_claims_nothing_and_hears_that_it_is_dead(store: Store) -> None:
    """It slept through its lease. If it claimed, nobody would wait for those jobs to be lost again."""
    await running(store, "mine")
    await suspect(store, "suspect")
    await store.accept([a_job("ready")], now=NOW)
    assert await store.bury_dead(["n1"]) == 1

    renewal = await store.renew("n1")

    assert renewal == Renewal(alive=False)
    assert await store.claim([Want("", 9)], node="n1", suspects=9, now=NOW) == []
    assert await state_of(store, "ready") is JobState.PENDING


@on_each_store
async def test_a_stranger_claims_nothing(store: Store) -> None:
    """Who never joined cannot be missed when it dies."""
    await store.accept([a_job()], now=NOW)

    assert await take(store, node="stranger") == []


# ---- What is ready -------------------------------------------------------------------------------------------------


@on_each_store
async def test_an_empty_store_has_nothing_ready(store: Store) -> None:
    """A first start is the usual case, not an odd one."""
    assert await store.ready(now=NOW) == Ready({}, suspects=False, next_at=None)


@on_each_store
async def test_ready_names_the_lines_and_the_next_time(store: Store) -> None:
    """A worker asks for nothing it cannot get, and sleeps until the next job gets due."""
    await store.accept([a_job(model="b"), a_job(model="a"), a_job(model="b"), a_job()], now=NOW)
    await store.accept([a_job(model="a", tenant="acme")], now=NOW)
    await store.accept([a_job(model="late", run_at=NOW + 60), a_job(run_at=NOW + 30)], now=NOW)

    ready = await store.ready(now=NOW)

    assert ready.lines == {"acme": ("a",), "local": ("", "a", "b")}
    assert (ready.suspects, ready.next_at) == (False, NOW + 30)


@on_each_store
async def test_a_scheduled_job_is_claimed_only_after_its_time_and_a_look(store: Store) -> None:
    """`ready` moves what is due into the line; nobody else looks at times."""
    await join(store)
    await store.accept([a_job("j", run_at=NOW + 30)], now=NOW)
    assert await take(store, now=NOW + 29) == []
    assert (await store.ready(now=NOW + 29.9)).lines == {}
    assert await take(store, now=NOW + 29.9) == []

    ready = await store.ready(now=NOW + 30)

    assert ready == Ready({"local": ("",)}, suspects=False, next_at=None)
    assert ids(await take(store, now=NOW + 30)) == ["j"]


@on_each_store
async def test_a_job_due_this_very_moment_needs_no_promotion(store: Store) -> None:
    """`run_at` equal to now is now."""
    await join(store)
    await store.accept([a_job("j", run_at=NOW)], now=NOW)

    assert ids(await take(store)) == ["j"]


@on_each_store
async def test_looking_again_and_again_gets_all_who_are_due(store: Store) -> None:
    """Three thousand jobs for eight o'clock come in bites, but they come."""
    await join(store)
    await store.accept([a_job(run_at=NOW + 10) for _ in range(3000)], now=NOW)
    looks = 0
    while (await store.ready(now=NOW + 10)).next_at is not None:
        looks += 1
        assert looks < 100

    assert len(await take(store, places=5000, now=NOW + 10)) == 3000


@on_each_store
async def test_a_model_whose_jobs_are_all_taken_is_not_ready(store: Store) -> None:
    """Otherwise workers would ask for it for ever."""
    await running(store, "j", model="m")

    assert await store.ready(now=NOW) == Ready({}, suspects=False, next_at=None)


# ---- Who goes first --------------------------------------------------------------------------------------------------


@on_each_store
async def test_the_oldest_goes_first(store: Store) -> None:
    """For equal jobs the order of submission is kept, within a list and between lists."""
    await join(store)
    names = [f"j{number:02}" for number in range(30)]
    await store.accept([a_job(name) for name in names[:15]], now=NOW)
    for name in names[15:]:
        await store.accept([a_job(name)], now=NOW)

    claims = [claim for _ in range(6) for claim in await take(store, places=5)]

    assert ids(claims) == names


@on_each_store
async def test_a_priority_step_is_worth_a_minute(store: Store) -> None:
    """Priority 0 goes first, but nobody starves: nine steps are nine minutes of waiting."""
    await join(store)
    jobs = [
        a_job("p9", priority=9, run_at=NOW - 541),
        a_job("p0", priority=0),
        a_job("p9 younger", priority=9, run_at=NOW - 539),
        a_job("p1", priority=1, run_at=NOW - 60.5),
        a_job("p1 younger", priority=1, run_at=NOW - 59.5),
    ]
    await store.accept(jobs, now=NOW)

    assert ids(await take(store)) == ["p9", "p1", "p0", "p1 younger", "p9 younger"]


@on_each_store
async def test_the_ten_priorities_go_in_their_order(store: Store) -> None:
    """Zero is the most urgent; the scale has no gaps and no turns."""
    await join(store)
    priorities = list(range(10))
    random.Random(7).shuffle(priorities)
    await store.accept([a_job(f"p{priority}", priority=priority) for priority in priorities], now=NOW)

    assert ids(await take(store)) == [f"p{priority}" for priority in range(10)]


@on_each_store
async def test_a_job_somebody_waits_for_has_ten_minutes_lead(store: Store) -> None:
    """Before batch jobs of its time, but not before one that has waited longer than that."""
    await join(store)
    jobs = [
        a_job("batch", run_at=NOW - 599),
        a_job("person", lane=Lane.INTERACTIVE),
        a_job("old batch", run_at=NOW - 601),
        a_job("urgent batch", priority=0),
    ]
    await store.accept(jobs, now=NOW)

    assert ids(await take(store)) == ["old batch", "person", "batch", "urgent batch"]


@on_each_store
async def test_a_job_sent_back_at_once_keeps_its_place(store: Store) -> None:
    """It was not its fault: a crash or a shutdown must not put it behind those who came later."""
    await join(store)
    await store.accept([a_job("a"), a_job("b", run_at=NOW + 1), a_job("c", run_at=NOW + 2)], now=NOW + 5)
    (a,) = await take(store, places=1)
    await end(store, a, Deferred(0.0, "drain"), now=NOW + 10)
    (a,) = await take(store, places=1)
    assert a.id == "a"
    await store.settle([], now=NOW)


# ---- What a look names ------------------------------------------------------------------------------------------------


@on_each_store
async def test_a_look_names_every_tenant_however_many_models_one_has_jobs_for(store: Store) -> None:
    """A model's name is anybody's to invent: a thousand of them must not push another tenant's out of sight."""
    crowd = [a_job(model=f"m{number:05}", tenant="big") for number in range(3 * MAX_LINES)]
    await store.accept([*crowd, a_job(model="zzz", tenant="small"), a_job(tenant="a")], now=NOW)

    ready = await store.ready(now=NOW)

    assert ready.lines["small"] == ("zzz",)
    assert ready.lines["a"] == ("",)
    assert len(ready.lines["big"]) == MAX_LINES // 3
    assert ready.more


@on_each_store
async def test_looks_that_follow_each_other_leave_no_line_out(store: Store) -> None:
    """Each begins where the one before had to stop, for every tenant by itself, and goes round."""
    names = {
        "big": [f"m{number:05}" for number in range(1203)],
        "large": ["", *(f"n{number}" for number in range(700))],
    }
    jobs = [a_job(model=model, tenant=tenant) for tenant, models in names.items() for model in models]
    await store.accept([*jobs, a_job(model="one", tenant="small")], now=NOW)
    seen: Counter[tuple[str, str]] = Counter()
    ready: Ready | None = None
    for _ in range(12):
        ready = await store.ready(now=NOW, after=ready)
        assert sum(map(len, ready.lines.values())) <= MAX_LINES
        seen.update((tenant, model) for tenant, models in ready.lines.items() for model in models)

    assert seen["small", "one"] == 12
    for tenant, models in names.items():
        looks = Counter(seen[tenant, model] for model in models)
        assert sum(looks.values()) == len(models)
        assert set(looks) <= {12 * 333 // len(models), 12 * 333 // len(models) + 1}


@on_each_store
async def test_more_tenants_than_a_look_names_take_turns(store: Store) -> None:
    """Of each one model then: the next look names the others."""
    tenants = [f"t{number:05}" for number in range(MAX_LINES + 500)]
    await store.accept([a_job(tenant=tenant, model=model) for tenant in tenants for model in "ab"], now=NOW)

    first = await store.ready(now=NOW)
    second = await store.ready(now=NOW, after=first)

    assert (len(first.lines), len(second.lines)) == (MAX_LINES, MAX_LINES)
    assert {*first.lines, *second.lines} == {*tenants}
    assert {first.lines[tenants[0]], second.lines[tenants[0]]} == {("a",), ("b",)}


@on_each_store
async def test_a_look_that_named_all_says_so_and_the_next_begins_anew(store: Store) -> None:
    await store.accept([a_job(tenant=tenant, model=model) for tenant in "ab" for model in "xy"], now=NOW)

    first = await store.ready(now=NOW)

    assert first == Ready({"a": ("x", "y"), "b": ("x", "y")}, suspects=False, next_at=None)
    assert await store.ready(now=NOW, after=first) == first


@on_each_store
async def test_a_line_is_named_whatever_tenant_and_model_are_called(store: Store) -> None:
    """Databases sort names in many ways; in none of them may a line fall between two."""
    await join(store)
    names = ["B", "a", "Z", "_", "ä", "Ä", "é", "10", "9", "日本", "a b", "a-b", "ab", "A", "ß", "~", "😀"]
    await store.accept([a_job(tenant=one, model=other) for one in names for other in names], now=NOW)

    ready = await store.ready(now=NOW)

    assert {tenant: {*models} for tenant, models in ready.lines.items()} == {
        tenant: {*names} for tenant in names
    }
    assert {len(models) for models in ready.lines.values()} == {len(names)}
    wants = [Want(model, 2, tenant) for tenant, models in ready.lines.items() for model in models]
    claims = await store.claim(wants, node="n1", suspects=0, now=NOW)
    assert [(claim.tenant, claim.model) for claim in claims] == [(want.tenant, want.model) for want in wants]


@on_each_store
async def test_a_line_is_one_tenants_for_one_model(store: Store) -> None:
    """However long another tenant's line for the same model is."""
    await join(store)
    await store.accept([a_job(tenant="big", run_at=NOW - 60) for _ in range(CROWDED)], now=NOW)
    await store.accept([a_job("mine"), a_job("other model", model="m")], now=NOW)

    claims = await store.claim([Want("", 2), Want("", 3, "big")], node="n1", suspects=0, now=NOW)

    assert [claim.tenant for claim in claims] == ["local", "big", "big", "big"]
    assert claims[0].id == "mine"


@on_each_store
async def test_asking_until_nothing_comes_leaves_nothing(store: Store) -> None:
    """A claim may bring fewer than there are, but none only when there is none: nothing is stranded."""
    await join(store)
    rng = random.Random(3)
    jobs = [a_job(tenant=rng.choice("aabbbbbcd"), priority=rng.randrange(10)) for _ in range(200)]
    await store.accept(jobs, now=NOW)
    claimed: list[Claim] = []
    while claims := await take_named(store, 3):
        assert len(claims) <= 3 * 4
        claimed += claims

    assert sorted(ids(claimed)) == sorted(job.id for job in jobs)


# ---- Places and suspects -------------------------------------------------------------------------------------------------


@on_each_store
async def test_each_model_gets_its_own_places(store: Store) -> None:
    """A model whose gate is full is not asked for; its jobs wait without holding up others."""
    await join(store)
    await store.accept([a_job(model=model) for model in ("a", "b", "c", "") for _ in range(5)], now=NOW)

    wants = [Want("a", 2), Want("b", 0), Want("", 1), Want("unknown", 5)]
    claims = await store.claim(wants, node="n1", suspects=0, now=NOW)

    assert Counter(claim.model for claim in claims) == {"a": 2, "": 1}


@on_each_store
async def test_who_wants_nothing_gets_nothing(store: Store) -> None:
    """A worker whose gates are all full asks for nothing, and nothing is lost by asking."""
    await suspect(store, "s")
    await store.accept([a_job()], now=NOW)
    before = await picture(store)

    assert await store.claim([], node="n1", suspects=0, now=NOW) == []
    assert await store.claim([Want("", 0)], node="n1", suspects=0, now=NOW) == []
    assert await picture(store) == before


@on_each_store
async def test_a_suspect_is_claimed_only_by_who_asks_for_suspects(store: Store) -> None:
    """It was there at two crashes; it must not run beside others' jobs again."""
    lost = await suspect(store, "s", model="m")

    ready = await store.ready(now=NOW)

    assert ready == Ready({}, suspects=True, next_at=None)
    assert await take(store, "m") == []
    (claim,) = await take_suspects(store)
    assert (claim.id, claim.crashes, claim.lease) == ("s", 2, lost.lease + 1)
    assert (await store.ready(now=NOW)).suspects is False


@on_each_store
async def test_suspects_come_oldest_first_and_no_more_than_asked_for(store: Store) -> None:
    """Of all models and tenants together: they run alone anyway."""
    for name, model, tenant in (("a", "m", "t"), ("b", "k", "s"), ("c", "m", "s")):
        await suspect(store, name, model=model, tenant=tenant)

    assert ids(await store.claim([], node="n1", suspects=2, now=NOW)) == ["a", "b"]
    assert ids(await store.claim([], node="n1", suspects=2, now=NOW)) == ["c"]


@on_each_store
async def test_a_suspect_that_waits_comes_back_as_a_suspect(store: Store) -> None:
    """A failure with a wait in between must not wash off the suspicion."""
    await suspect(store, "s", model="m")
    (claim,) = await take_suspects(store)
    await end(store, claim, TRANSIENT)

    assert (await store.ready(now=NOW)).suspects is False
    assert await store.ready(now=NOW + 60) == Ready({}, suspects=True, next_at=None)
    assert await take(store, "m", now=NOW + 60) == []
    assert ids(await take_suspects(store, now=NOW + 60)) == ["s"]


@on_each_store
async def test_a_revived_suspect_is_still_a_suspect(store: Store) -> None:
    """It runs alone "from then on": an hour's rest says nothing about what it does to a worker."""
    await suspect(store, "s", model="m", max_attempts=1)
    (claim,) = await take_suspects(store)
    await end(store, claim, TRANSIENT)
    assert await store.revive(["s"], now=NOW + 9999, expires_after_s=100) == 1

    assert await store.ready(now=NOW + 9999) == Ready({}, suspects=True, next_at=None)
    assert ids(await take_suspects(store)) == ["s"]


@on_each_store
async def test_a_replayed_suspect_is_cleared(store: Store) -> None:
    """A person looked at it and said: again."""
    await suspect(store, "s", model="m")
    (claim,) = await take_suspects(store)
    await end(store, claim, Crashed())
    await store.replay(["s"], by="me", now=NOW, expires_after_s=100)

    assert ids(await take(store, "m")) == ["s"]


# ---- Leases -------------------------------------------------------------------------------------------------------------


@on_each_store
async def test_a_lease_only_ever_rises(store: Store) -> None:
    """Over retries, deferrals, crashes, rescues, revivals and replays: an old lease is never right again."""
    claim = await running(store, "j", model="m", max_attempts=2)
    leases = [claim.lease]

    async def again(now: float, node: str = "n1") -> Claim:
        await store.ready(now=now)
        (taken,) = await store.claim([Want("m", 1)], node=node, suspects=1, now=now)
        leases.append(taken.lease)
        return taken

    await end(store, claim, Deferred(0.0, "drain"))
    await end(store, await again(NOW), Crashed())
    await end(store, await again(NOW), TRANSIENT)
    await end(store, await again(NOW + 60), TRANSIENT, now=NOW + 60)
    await store.revive(["j"], now=NOW + 4000, expires_after_s=10_000)
    claim = await again(NOW + 4000)
    await store.bury_dead(["n1"])
    (lost,) = await store.lost(limit=9)
    await end(store, lost.claim, Crashed(), now=NOW + 4000)
    await join(store, "n2")
    await end(store, await again(NOW + 4000, "n2"), Crashed(), now=NOW + 4000)
    assert (await found(store, "j")).reason == "poison"
    await store.replay(["j"], by="me", now=NOW + 4000, expires_after_s=10_000)
    await again(NOW + 4000, "n2")

    assert leases == sorted(set(leases))
    assert len(leases) == 7


@on_each_store
async def test_every_claim_counts_an_attempt(store: Store) -> None:
    """The claim says which attempt it is for, and the job's record agrees."""
    claim = await running(store, "j", model="m")
    assert (claim.attempts, (await found(store, "j")).attempts) == (1, 1)
    await end(store, claim, TRANSIENT)
    await store.ready(now=NOW + 60)
    (claim,) = await take(store, "m", now=NOW + 60)

    job = await found(store, "j")
    assert (claim.attempts, job.attempts) == (2, 2)
    assert job.started_at is not None
    assert job.started_at.timestamp() == NOW + 60


# ---- Many at once ---------------------------------------------------------------------------------------------------------


@on_each_store
async def test_no_two_workers_get_the_same_job(store: Store, home: Home) -> None:
    """Eight workers at two processes, claiming and settling at once: each job is handed out once and done once."""
    stores = [store, await home.open()]
    nodes = [f"n{number}" for number in range(8)]
    await join(store, *nodes)
    jobs = [a_job(tenant=f"t{number % 3}") for number in range(240)]
    await store.accept(jobs, now=NOW)
    handed_out: list[str] = []

    async def work(number: int) -> None:
        mine = stores[number % 2]
        while claims := await take_named(mine, 1 + number % 2, node=nodes[number]):
            handed_out.extend(ids(claims))
            for claim in claims:
                assert await end(mine, claim, Completed(b"1")) is Settled.APPLIED

    await asyncio.gather(*(work(number) for number in range(8)))
    # On some databases a claim skips what another is looking at: ask once more when all is quiet.
    await work(0)

    assert Counter(handed_out) == {job.id: 1 for job in jobs}
    assert (await store.count())["completed"] == len(jobs)


@on_each_store
async def test_a_job_settled_by_two_at_once_is_settled_once(store: Store, home: Home) -> None:
    """The rescuer and the worker that was only slow meet at the same job."""
    other = await home.open()
    for number in range(20):
        claim = await running(store, f"j{number}")
        answers = await asyncio.gather(
            end(store, claim, Completed(b'"worker"')),
            end(other, claim, Crashed()),
            end(other, claim, TRANSIENT),
        )
        assert sorted(answers) == [Settled.APPLIED, Settled.STALE, Settled.STALE]
        job = await found(store, f"j{number}")
        assert len(job.history) == 1
        assert (job.state is JobState.COMPLETED) is (job.result == "worker")


@pytest.mark.parametrize("rounds", [20])
@on_each_store
async def test_a_cancel_and_a_claim_at_once_leave_one_of_two_ends(
    store: Store, home: Home, rounds: int
) -> None:
    """Either it was cancelled before, or it runs and its worker is told: never cancelled and running."""
    other = await home.open()
    await join(store)
    for number in range(rounds):
        name = f"j{number}"
        await store.accept([a_job(name)], now=NOW)
        answer, claims = await asyncio.gather(other.cancel(name, now=NOW), take(store))
        assert answer is not None
        assert answer.accepted
        told = (await store.renew("n1")).cancelled
        assert ids(claims) == ([] if answer.state is JobState.CANCELLED else [name])
        assert told == tuple((claim.id, claim.lease) for claim in claims)
        for claim in claims:
            await end(store, claim, Crashed())
        assert await state_of(store, name) is JobState.CANCELLED


@on_each_store
async def test_a_dead_letter_is_never_claimed(store: Store) -> None:
    """It waits for a person or for its cool-down, however often workers look."""
    await exhausted(store, "j", model="m")

    await store.ready(now=EVER)
    assert await store.claim([Want("m", 9)], node="n1", suspects=9, now=EVER) == []
