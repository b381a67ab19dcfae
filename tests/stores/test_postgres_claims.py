"""Claims by several processes: never the same job twice, none stranded when an answer is lost."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from stores.postgres_stage import NOW, a_job, after, opened, reached
from wire import Wire

from headgate.core.errors import StoreUnavailable
from headgate.core.idempotency import InProgress, KeyClaim, Run, Unknown
from headgate.core.job import Accepted, JobState, Settled
from headgate.core.job_rules import SUSPECT_AFTER, Completed, Crashed, Deferred
from headgate.core.ports.claims import Want
from headgate.core.record import RecordWrite
from headgate.planner import virtual
from headgate.stores.postgres import PostgresStore
from headgate.stores.postgres.sweeping import Sweeper


async def claimed(store: PostgresStore, places: int = 9, *, now: float = NOW) -> list[str]:
    return [claim.id for claim in await store.claim([Want("m", places)], node="n", suspects=0, now=now)]


def test_two_stores_that_claim_at_once_never_get_the_same_job(postgres_url: str) -> None:
    """SKIP LOCKED: whoever is being claimed is stepped over, and nobody waits for anybody."""

    async def main() -> None:
        async with opened(postgres_url) as one, opened(postgres_url) as two:
            jobs = [a_job(tenant=f"t{number % 7}") for number in range(3000)]
            await one.accept(jobs, now=NOW)
            got: Counter[str] = Counter()

            async def work(store: PostgresStore) -> None:
                wants = [Want("m", 3, f"t{number}") for number in range(7)]
                while claims := await store.claim(wants, node="n", suspects=0, now=NOW):
                    got.update(claim.id for claim in claims)
                    await store.settle([after(claim) for claim in claims], now=NOW)

            await asyncio.gather(*(work(store) for store in (one, two) for _ in range(4)))
            assert got == Counter(job.id for job in jobs)
            assert (await two.count())["completed"] == 3000

    asyncio.run(main())


def test_a_claim_whose_answer_was_lost_is_given_back(postgres_url: str) -> None:
    """The jobs run for a node that lives but knows nothing of them: no lease would ever run out on them."""

    async def main() -> None:
        async with Wire(postgres_url) as wire, opened(f"{wire.url}?listen=off") as store:
            await store.accept([a_job(id="j", model="unlucky")], now=NOW)
            wire.cut_at(b"unlucky")
            with pytest.raises(StoreUnavailable):
                await store.claim([Want("unlucky", 9)], node="n", suspects=0, now=NOW)
            async with opened(postgres_url) as witness:
                job = await witness.find("j")
                assert job is not None
                assert job.state is JobState.RUNNING, "the test must lose the answer, not the question"
            (claim,) = await store.claim([Want("unlucky", 9)], node="n", suspects=0, now=NOW)
            assert (claim.id, claim.attempts) == ("j", 1)
            assert await store.settle([after(claim)], now=NOW) == [Settled.APPLIED]

    asyncio.run(main())


def test_a_caller_that_gives_up_strands_no_claims(postgres_url: str) -> None:
    """Cancelled at any moment of the claim: whatever it took comes back at the next renewal."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            jobs = [a_job() for _ in range(50)]
            await store.accept(jobs, now=NOW)
            for turns in range(50):
                task = asyncio.ensure_future(claimed(store, 1))
                for _ in range(turns % 12):
                    await asyncio.sleep(0)
                task.cancel()
                answer = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(answer, list):
                    assert len(answer) == 1
            await store.renew("n")
            rest = await claimed(store, 100)
            running = (await store.count())["running"]
            assert running == 50
            assert len(rest) >= 1

    asyncio.run(main())


def test_what_was_claimed_before_the_trouble_is_handed_out(postgres_url: str) -> None:
    """A suspect and others wanted; the connection breaks at the others: the suspect is the worker's."""

    async def main() -> None:
        async with Wire(postgres_url) as wire, opened(f"{wire.url}?listen=off") as store:
            await store.accept([a_job(id="first")], now=NOW)
            for _ in range(SUSPECT_AFTER):
                (claim,) = await store.claim([Want("m", 1)], node="n", suspects=0, now=NOW)
                await store.settle([after(claim, Crashed())], now=NOW)
            await store.accept([a_job(id="second", model="unlucky")], now=NOW)
            wire.cut_at(b"unlucky")
            wants = [Want("m", 1), Want("unlucky", 1)]
            claims = await store.claim(wants, node="n", suspects=1, now=NOW)
            assert [claim.id for claim in claims] == ["first"]
            claims = await store.claim(wants, node="n", suspects=1, now=NOW)
            assert [claim.id for claim in claims] == ["second"]

    asyncio.run(main())


RECORD = RecordWrite(collection="pages", id="r", body=b"1")


@pytest.mark.parametrize(
    ("outcome", "at"),
    [
        (Completed(b'"done"'), b"job-to-settle"),
        (Deferred(0.0, "drain"), b"job-to-settle"),
        (Crashed(), b"job-to-settle"),
        (Completed(b'"done"', records=(RECORD,)), b"COMMIT;"),
    ],
    ids=["completed", "deferred", "crashed", "with a record"],
)
def test_a_settlement_whose_answer_was_lost_is_known_again(
    postgres_url: str, outcome: Completed | Deferred | Crashed, at: bytes
) -> None:
    """The worker says the same again; it must not take its own success for somebody else's claim."""

    async def main() -> None:
        async with Wire(postgres_url) as wire, opened(f"{wire.url}?listen=off") as store:
            await store.accept([a_job(id="job-to-settle")], now=NOW)
            (claim,) = await store.claim([Want("m", 9)], node="n", suspects=0, now=NOW)
            settlement = after(claim, outcome)
            wire.cut_at(at)
            with pytest.raises(StoreUnavailable):
                await store.settle([settlement], now=NOW)
            assert await store.settle([settlement], now=NOW) == [Settled.APPLIED]
            assert await store.settle([settlement], now=NOW) == [Settled.STALE]

    asyncio.run(main())


def test_an_accept_whose_answer_was_lost_finds_its_job_by_its_key(postgres_url: str) -> None:
    """The caller hears that it is not known, comes again with the same key, and gets the same job."""

    async def main() -> None:
        async with Wire(postgres_url) as wire, opened(f"{wire.url}?listen=off") as store:
            key = KeyClaim(endpoint="POST /jobs", key="k", request_hash=b"h", expires_at=NOW + 60)
            wire.cut_at(b"COMMIT;")
            with pytest.raises(StoreUnavailable):
                await store.accept([a_job(id="first", key=key)], now=NOW)
            assert await store.accept([a_job(key=key)], now=NOW) == [Accepted("first", created=False)]

    asyncio.run(main())


def test_a_reservation_whose_answer_was_lost_can_be_made_again(postgres_url: str) -> None:
    """The node lives, so nobody else takes the key from it; and it does not know that it has it."""

    async def main() -> None:
        key = KeyClaim(endpoint="chat", key="the-lost-key", request_hash=b"h", expires_at=NOW + 60)
        asked: dict[str, Any] = {"node": "n", "unknown": Unknown.RERUN, "now": NOW}
        async with Wire(postgres_url) as wire, opened(f"{wire.url}?listen=off") as store:
            wire.cut_at(b"the-lost-key")
            with pytest.raises(StoreUnavailable):
                await store.reserve("local", key, **asked)
            verdict = await store.reserve("local", key, **asked)
            assert isinstance(verdict, Run)
            assert await store.reserve("local", key, **{**asked, "node": "other"}) == InProgress()
            assert await store.finish("local", key, verdict.lease, status=200, body=b"1")

    asyncio.run(main())


def test_the_line_is_swept_behind_many_claims(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vacuum of our own: autovacuum comes too seldom for a fast queue."""
    monkeypatch.setattr("headgate.stores.postgres.sweeping.EVERY", 40)

    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.accept([a_job() for _ in range(100)], now=NOW)
            while claims := await store.claim([Want("m", 20)], node="n", suspects=0, now=NOW):
                await store.settle([after(claim) for claim in claims], now=NOW)
            sweeper: Sweeper = store._sweeper
            assert sweeper._sweeping is not None
            await sweeper._sweeping
            # A vacuum that was skipped or refused would leave the mark where it was.
            frozen = "select relallvisible > 0 from pg_class where oid = 'headgate.jobs'::regclass"
            assert (await store._database.read(frozen))[0][0]

    asyncio.run(main())


def test_a_plan_made_for_an_empty_queue_does_not_outlive_a_flood(postgres_url: str) -> None:
    """A prepared statement keeps its plan; one from quiet times would read the whole backlog for every claim."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            for _ in range(10):
                await store.ready(now=NOW)
                await store.claim([Want("m", 1)], node="n", suspects=1, now=NOW)
            await store.accept([a_job() for _ in range(20_000)], now=NOW)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(30):
                while True:
                    started = loop.time()
                    assert len(await store.claim([Want("m", 1)], node="n", suspects=0, now=NOW)) == 1
                    if loop.time() - started < 0.01:
                        break
                    await asyncio.sleep(0.2)

    asyncio.run(main())


def test_a_store_works_in_virtual_time(postgres_url: str) -> None:
    """While the database is at work, virtual time stands still; a week of waiting costs nothing."""

    async def main(world: virtual.World) -> None:
        async with opened(postgres_url, clock=world.clock) as store:
            later = NOW + 7 * 86_400
            await store.accept([a_job(id="j", run_at=later, expires_at=later + 9)], now=NOW)
            started = world.clock.now()
            assert await claimed(store) == []
            await world.clock.sleep(7 * 86_400)
            assert (await store.ready(now=later)).lines == {"local": ("m",)}
            assert await claimed(store, now=later) == ["j"]
            assert world.clock.now() - started == 7 * 86_400

    virtual.run(main)


def test_every_commit_has_its_failpoints(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash tests kill the process at these moments; a verb that forgot them would never be tested."""

    async def main() -> list[str]:
        async with opened(postgres_url) as store:
            with reached(monkeypatch) as names:
                await _use_everything(store)
            return names

    names = asyncio.run(main())
    verbs = {name.partition(".")[0] for name in names}
    assert verbs == {
        *("accept", "claim", "settle", "renew", "join", "leave", "promote", "save_step", "save_progress"),
        *(
            "cancel",
            "cancel_batch",
            "make_due",
            "make_deferred_due",
            "replay",
            "discard",
            *("bury_dead", "bury_silent", "forget_nodes"),
            "expire",
            "revive",
            "prune",
            "purge_keys",
        ),
        *("reserve", "mark_sent", "finish_key", "keep_answer", "free_key", "put_records", "delete_record"),
    }
    assert Counter(name.partition(".")[0] for name in names if "before" in name) == Counter(
        name.partition(".")[0] for name in names if "after" in name
    )


async def _use_everything(store: PostgresStore) -> None:
    key = KeyClaim(endpoint="e", key="k", request_hash=b"h", expires_at=NOW + 60)
    record = RecordWrite(collection="c", id="r", body=b"1")
    await store.join("n")
    await store.accept([a_job(), a_job(run_at=NOW + 1)], now=NOW)
    await store.ready(now=NOW + 2)
    (claim, *_) = await store.claim([Want("m", 9)], node="n", suspects=0, now=NOW)
    await store.save_step(claim.id, claim.lease, name="s", result=b"1", now=NOW)
    await store.save_progress(claim.id, claim.lease, progress=b"1")
    await store.settle([after(claim)], now=NOW)
    await store.renew("n")
    await store.cancel("nobody", now=NOW)
    await store.cancel_batch("none", tenant="t", now=NOW, limit=9)
    await store.make_due("nobody", now=NOW, tenant="t")
    await store.make_deferred_due(["none"], now=NOW)
    await store.replay(["nobody"], by="me", now=NOW, expires_after_s=9)
    await store.discard(["nobody"], by="me", now=NOW)
    await store.expire(now=NOW, limit=9)
    await store.revive(["nobody"], now=NOW, expires_after_s=9)
    await store.prune(before=NOW, limit=9)
    await store.purge_keys(now=NOW, limit=9)
    await store.reserve("t", key, node="n", unknown=Unknown.RERUN, now=NOW)
    await store.mark_sent("t", key, 1)
    await store.finish("t", key, 1, status=200, body=b"")
    await store.free("t", key, 1)
    await store.keep_answer("t", key, status=409, body=b"", now=NOW)
    await store.put_records("t", [record], now=NOW)
    await store.delete_record("t", "c", "r")
    await store.bury_silent("n", 0)
    await store.bury_dead(["n"])
    await store.forget_nodes()
    await store.leave("n")
