"""Idempotency keys of direct calls: one runs, the others are told; a dead owner's key can be taken over, once."""

import asyncio

import pytest
from contracts.job_stage import NOW, a_job, a_key, join, reserve
from stores_under_test import Home, on_each_store

from headgate.core.errors import KeyInProgress, KeyMismatch, RecordExists
from headgate.core.idempotency import (
    HeldKey,
    InProgress,
    Mismatch,
    Replay,
    Run,
    SameJob,
    Unknown,
    Verdict,
    kept_conflict,
)
from headgate.core.ports.store import Store


async def take_key(store: Store, name: str = "k", *, node: str = "n1", now: float = NOW) -> int:
    verdict = await reserve(store, a_key(name), node=node, now=now)
    assert isinstance(verdict, Run)
    return verdict.lease


@on_each_store
async def test_a_key_is_reserved_sent_and_done(store: Store) -> None:
    """The whole way: while it runs others are told so, and then they are told the answer."""
    await join(store)
    lease = await take_key(store)
    assert await reserve(store, a_key(), node="n2") == InProgress()
    assert await store.mark_sent("local", a_key(), lease)
    assert await store.mark_sent("local", a_key(), lease), (
        "a second try at the provider is sent like the first"
    )
    assert await reserve(store, a_key(), node="n2") == InProgress()
    assert await store.finish("local", a_key(), lease, status=201, body=b"\x00answer\xff")

    assert await reserve(store, a_key()) == Replay(201, b"\x00answer\xff")
    assert await reserve(store, a_key(body=b"other")) == Mismatch()


@on_each_store
async def test_another_body_is_a_mismatch_in_every_state(store: Store) -> None:
    """Never the other's answer, and never a second run under the same name."""
    await join(store)
    lease = await take_key(store)
    assert await reserve(store, a_key(body=b"other")) == Mismatch()
    await store.mark_sent("local", a_key(), lease)
    assert await reserve(store, a_key(body=b"other")) == Mismatch()


@on_each_store
async def test_of_a_hundred_at_once_one_runs(store: Store, home: Home) -> None:
    """At two processes; the others hear that it is in progress."""
    nodes = [f"n{number}" for number in range(100)]
    await join(store, *nodes)
    stores = [store, await home.open()]
    verdicts = await asyncio.gather(
        *(reserve(stores[number % 2], a_key(), node=node) for number, node in enumerate(nodes))
    )

    assert sum(isinstance(verdict, Run) for verdict in verdicts) == 1
    assert sum(verdict == InProgress() for verdict in verdicts) == 99


@on_each_store
async def test_a_key_is_one_tenants_and_one_endpoints(store: Store) -> None:
    """Everybody numbers requests from 1; nobody may get another's answer."""
    await join(store)
    await take_key(store)

    for tenant, claim in (("other", a_key(body=b"2")), ("local", a_key(body=b"3", endpoint="POST /chat"))):
        verdict = await store.reserve(tenant, claim, node="n1", unknown=Unknown.RERUN, now=NOW)
        assert isinstance(verdict, Run)


@on_each_store
async def test_a_freed_key_runs_again(store: Store) -> None:
    """The call failed: an error must not be remembered as the answer. Another body may use the key, too."""
    await join(store)
    lease = await take_key(store)
    await store.mark_sent("local", a_key(), lease)
    assert await store.free("local", a_key(), lease)

    verdict = await reserve(store, a_key(body=b"other"), now=NOW + 1)
    assert isinstance(verdict, Run)
    assert verdict.lease > lease
    assert not verdict.rerun


@on_each_store
async def test_a_finished_key_can_neither_be_freed_nor_sent_and_keeps_its_first_answer(store: Store) -> None:
    """The answer that was returned once is returned for ever, whatever a late owner believes."""
    await join(store)
    lease = await take_key(store)
    await store.finish("local", a_key(), lease, status=200, body=b"first")

    assert not await store.free("local", a_key(), lease)
    assert not await store.mark_sent("local", a_key(), lease)
    assert not await store.finish("local", a_key(), lease + 1, status=500, body=b"second")
    assert await reserve(store, a_key()) == Replay(200, b"first")


@on_each_store
async def test_finishing_again_under_the_same_lease_changes_nothing(store: Store) -> None:
    """The response to the first write was lost: its owner asks again, and learns that its own answer is recorded."""
    await join(store)
    lease = await take_key(store)

    assert await store.finish("local", a_key(), lease, status=204, body=b"")
    assert await store.finish("local", a_key(), lease, status=500, body=b"second")
    assert await reserve(store, a_key()) == Replay(204, b"")


@on_each_store
async def test_a_node_is_shown_the_keys_it_holds(store: Store) -> None:
    """Reserved or sent, of every tenant and endpoint; neither other nodes' nor those that have an answer or are free."""
    await join(store, "n1", "n2")
    held = {}
    for tenant, name, endpoint in (("a", "k", "x"), ("b", "k", "x"), ("a", "k", "y"), ("a", "sent", "x")):
        claim = a_key(name, endpoint=endpoint)
        verdict = await store.reserve(tenant, claim, node="n1", unknown=Unknown.RERUN, now=NOW)
        assert isinstance(verdict, Run)
        held[tenant, name, endpoint] = HeldKey(tenant=tenant, claim=claim, lease=verdict.lease)
    sent = held["a", "sent", "x"]
    await store.mark_sent("a", sent.claim, sent.lease)
    await take_key(store, "theirs", node="n2")
    await store.finish("local", a_key("done"), await take_key(store, "done"), status=200, body=b"")
    await store.free("local", a_key("free"), await take_key(store, "free"))
    await store.accept([a_job("j", key=a_key("of a job"))], now=NOW)

    assert sorted(await store.held_keys("n1"), key=str) == sorted(held.values(), key=str)
    assert [key.claim.key for key in await store.held_keys("n2")] == ["theirs"]
    assert await store.held_keys("n3") == []


@on_each_store
async def test_a_key_that_was_taken_over_is_its_new_owners(store: Store) -> None:
    """The old owner must not free what another node works on now."""
    await join(store, "n2")
    await take_key(store, node="n1")
    lease = await take_key(store, node="n2")

    assert await store.held_keys("n1") == []
    assert [key.lease for key in await store.held_keys("n2")] == [lease]


@on_each_store
async def test_an_empty_answer_is_an_answer(store: Store) -> None:
    """204 has no body; it must not be taken for a key that is not done yet."""
    await join(store)
    lease = await take_key(store)
    await store.finish("local", a_key(), lease, status=204, body=b"")

    assert await reserve(store, a_key()) == Replay(204, b"")


@pytest.mark.parametrize(("sent", "unknown"), [(False, Unknown.REFUSE), (True, Unknown.RERUN)])
@on_each_store
async def test_a_node_takes_its_own_key_anew(store: Store, sent: bool, unknown: Unknown) -> None:
    """Callers within a node share the work; one that asks the store again found nobody at it. The old lease ends."""
    await join(store)
    old = await take_key(store)
    if sent:
        await store.mark_sent("local", a_key(), old)

    verdict = await reserve(store, a_key(), unknown=unknown)

    assert isinstance(verdict, Run)
    assert verdict.rerun is sent
    assert verdict.lease > old
    assert not await store.finish("local", a_key(), old, status=200, body=b"old")
    assert await store.finish("local", a_key(), verdict.lease, status=200, body=b"new")


@on_each_store
async def test_an_answer_that_is_known_already_is_kept_at_once(store: Store) -> None:
    kept = await store.keep_answer("local", a_key(), status=409, body=b"x", now=NOW)
    again = await store.keep_answer("local", a_key(), status=409, body=b"y", now=NOW)
    other = await store.keep_answer("local", a_key(body=b"other"), status=409, body=b"z", now=NOW)

    assert isinstance(kept, Run)
    assert again == Replay(409, b"x") == await reserve(store, a_key())
    assert other == Mismatch()


@on_each_store
async def test_an_answer_is_kept_over_a_key_that_has_expired_and_over_no_other(store: Store) -> None:
    await join(store)
    await take_key(store, "taken")
    await store.accept([a_job("j", key=a_key("job"))], now=NOW)
    await store.keep_answer("local", a_key("old", expires_at=NOW + 10), status=409, body=b"x", now=NOW)

    async def keep(name: str) -> Verdict:
        return await store.keep_answer("local", a_key(name), status=409, body=b"y", now=NOW + 10)

    assert await keep("taken") == InProgress()
    assert await keep("job") == SameJob("j")
    assert isinstance(await keep("old"), Run)
    assert await reserve(store, a_key("old"), now=NOW + 10) == Replay(409, b"y")


@on_each_store
async def test_a_submission_under_a_key_that_keeps_a_conflict_gets_it_again(store: Store) -> None:
    status, body = kept_conflict(RecordExists("pages", "u", "first"))
    await store.keep_answer("local", a_key(), status=status, body=body, now=NOW)

    with pytest.raises(RecordExists, match="pages already has 'u': record first") as known:
        await store.accept([a_job("j", key=a_key())], now=NOW)
    assert known.value.replayed
    with pytest.raises(KeyMismatch):
        await store.accept([a_job("j", key=a_key(body=b"other"))], now=NOW)
    assert await store.find("j") is None


# ---- When the owner dies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "unknown", "expected"),
    [
        (False, Unknown.RERUN, "run"),
        (False, Unknown.REFUSE, "run"),
        (True, Unknown.RERUN, "rerun"),
        (True, Unknown.REFUSE, "refused"),
    ],
)
@pytest.mark.parametrize("gone", ["left", "buried"])
@on_each_store
async def test_a_dead_owners_key_is_taken_over(
    store: Store, sent: bool, unknown: Unknown, expected: str, gone: str
) -> None:
    """Before sending it cost nothing; after sending only the operator can say whether to pay twice."""
    await join(store, "n1", "n2")
    lease = await take_key(store, node="n1")
    if sent:
        await store.mark_sent("local", a_key(), lease)
    if gone == "left":
        await store.leave("n1")
    else:
        await store.bury_dead(["n1"])

    verdict = await reserve(store, a_key(), node="n2", unknown=unknown)

    if expected == "refused":
        assert verdict == InProgress(unknown=True)
        assert await store.finish("local", a_key(), lease, status=200, body=b"late"), "nobody took it over"
    else:
        assert isinstance(verdict, Run)
        assert verdict.rerun is (expected == "rerun")
        assert verdict.lease > lease


@on_each_store
async def test_the_key_of_a_silent_node_is_taken_over_and_no_clock_takes_part(store: Store) -> None:
    """However late it is by the clock of the node that asks: only a burial ends a node."""
    await join(store, "n1")
    lease = await take_key(store, node="n1")
    assert await reserve(store, a_key(), node="n2", now=NOW + 3599) == InProgress()
    await store.bury_silent("n1", 0)

    verdict = await reserve(store, a_key(), node="n2", now=NOW)

    assert isinstance(verdict, Run)
    assert not await store.finish("local", a_key(), lease, status=200, body=b"late")


@on_each_store
async def test_only_one_takes_over(store: Store, home: Home) -> None:
    """Fifty retries waited for the dead one; the first becomes the owner, the rest wait for that one."""
    nodes = [f"n{number}" for number in range(50)]
    await join(store, "dead", *nodes)
    await take_key(store, node="dead")
    await store.bury_dead(["dead"])
    stores = [store, await home.open()]
    verdicts: list[Verdict] = await asyncio.gather(
        *(reserve(stores[number % 2], a_key(), node=node) for number, node in enumerate(nodes))
    )

    assert sum(isinstance(verdict, Run) for verdict in verdicts) == 1
    assert sum(verdict == InProgress() for verdict in verdicts) == 49


@on_each_store
async def test_the_old_owner_is_fenced(store: Store) -> None:
    """It was only asleep. Its writes carry the old lease, and change nothing of its successor's."""
    await join(store, "old", "new")
    old = await take_key(store, node="old")
    await store.bury_dead(["old"])
    new = await take_key(store, node="new")

    assert not await store.mark_sent("local", a_key(), old)
    assert not await store.finish("local", a_key(), old, status=200, body=b"old")
    assert not await store.free("local", a_key(), old)
    assert await reserve(store, a_key(), node="third") == InProgress()
    assert await store.finish("local", a_key(), new, status=200, body=b"new")
    assert await reserve(store, a_key()) == Replay(200, b"new")


@on_each_store
async def test_a_key_purged_and_taken_anew_does_not_let_the_old_owner_in(store: Store) -> None:
    """The row is gone and begins afresh, but leases rise with time itself."""
    await join(store)
    old = await take_key(store)
    await store.purge_keys(now=NOW + 9999, limit=9)
    await take_key(store, now=NOW + 9999)

    assert not await store.finish("local", a_key(), old, status=200, body=b"old")
    assert not await store.free("local", a_key(), old)


@on_each_store
async def test_nobody_writes_about_a_key_that_is_not_there(store: Store) -> None:
    """It was purged meanwhile: the late owner is told, and makes nothing new."""
    assert not await store.mark_sent("local", a_key(), 1)
    assert not await store.finish("local", a_key(), 1, status=200, body=b"")
    assert not await store.free("local", a_key(), 1)


@on_each_store
async def test_an_expired_key_runs_anew_also_while_its_owner_lives(store: Store) -> None:
    """Three days later nobody waits for that answer any more; and the old owner is fenced."""
    await join(store)
    verdict = await reserve(store, a_key(expires_at=NOW + 10))
    assert isinstance(verdict, Run)

    again = await reserve(store, a_key(body=b"other", expires_at=NOW + 20), now=NOW + 10)

    assert isinstance(again, Run)
    assert not await store.finish("local", a_key(), verdict.lease, status=200, body=b"old")
    assert await reserve(store, a_key(body=b"other"), node="n2", now=NOW + 19) == InProgress()


@on_each_store
async def test_a_job_cannot_take_a_key_that_a_call_holds(store: Store) -> None:
    """One endpoint, one key, one request; whichever way it came."""
    await join(store)
    await take_key(store)

    with pytest.raises(KeyInProgress):
        await store.accept([a_job("j", key=a_key())], now=NOW)
    with pytest.raises(KeyMismatch):
        await store.accept([a_job("j", key=a_key(body=b"other"))], now=NOW)
    assert await store.find("j") is None


# ---- The secret ------------------------------------------------------------------------------------------------------------


@on_each_store
async def test_all_who_open_the_database_share_its_secret(store: Store, home: Home) -> None:
    """Two nodes must come to the same fingerprint of the same body, also after a restart."""
    secret = store.secret
    assert len(secret) >= 32
    other = await home.open()
    assert other.secret == secret
    await store.aclose()

    assert (await home.open()).secret == secret
