"""Submissions that share a flush: as if they had come one after the other, and each caller by itself."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from stores.postgres_stage import NOW, a_job, all_ids, opened

from headgate.core.errors import KeyMismatch, RecordExists
from headgate.core.idempotency import KeyClaim, Run, Unknown
from headgate.core.job import Accepted
from headgate.core.record import RecordWrite
from headgate.stores.postgres import PostgresStore


def a_key(name: str, body: bytes = b"same") -> KeyClaim:
    return KeyClaim(endpoint="POST /jobs", key=name, request_hash=body, expires_at=NOW + 60)


async def together(*asked: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*asked, return_exceptions=True)


def test_keys_and_twins_within_one_flush_are_sorted_out_in_order(postgres_url: str) -> None:
    """A key may lead to a twin that came with another key; its own hash still counts."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            answers = await together(
                store.accept([a_job(id="a", key=a_key("k1"), dedup_key="d")], now=NOW),
                store.accept([a_job(id="b", key=a_key("k2"), dedup_key="d")], now=NOW),
                store.accept([a_job(id="c", key=a_key("k2"))], now=NOW),
                store.accept([a_job(id="d", key=a_key("k2", b"other"))], now=NOW),
                store.accept([a_job(id="e", dedup_key="d"), a_job(id="f", key=a_key("k3"))], now=NOW),
            )
            twin = [Accepted("a", created=False)]
            assert answers[:3] == [[Accepted("a")], twin, twin]
            assert isinstance(answers[3], KeyMismatch)
            assert answers[4] == [*twin, Accepted("f")]
            assert await store.accept([a_job(key=a_key("k2"))], now=NOW) == twin
            assert await all_ids(store) == ["f", "a"]

    asyncio.run(main())


def test_one_list_with_a_mistake_leaves_nothing_and_hurts_nobody(postgres_url: str) -> None:
    """Its other keys and records go with it; the callers of the same flush keep theirs."""
    page: dict[str, Any] = {"collection": "pages", "body": b"1", "unique_key": "address"}

    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.put_records("local", [RecordWrite(id="held", **page)], now=NOW)
            answers = await together(
                store.accept([a_job(id="good", key=a_key("g"))], now=NOW),
                store.accept(
                    [a_job(id="x", key=a_key("x")), a_job(id="y", records=(RecordWrite(id="new", **page),))],
                    now=NOW,
                ),
                store.accept([a_job(id="fine", key=a_key("f"))], now=NOW),
            )
            assert answers[0] == [Accepted("good")]
            assert isinstance(answers[1], RecordExists)
            assert answers[1].record_id == "held"
            assert answers[2] == [Accepted("fine")]
            assert await store.accept([a_job(id="z", key=a_key("x"))], now=NOW) == [Accepted("z")]

    asyncio.run(main())


def test_the_same_keys_in_opposite_orders_from_two_stores_end_alike(postgres_url: str) -> None:
    """Keys are taken in one order by everybody: no deadlock, one job per key."""

    async def main() -> None:
        async with opened(postgres_url) as one, opened(postgres_url) as two:
            names = [f"k{number}" for number in range(30)]

            def submit(store: PostgresStore, order: list[str]) -> Awaitable[list[Accepted]]:
                return store.accept([a_job(key=a_key(name), dedup_key=name) for name in order], now=NOW)

            for _ in range(5):
                answers = await asyncio.gather(
                    *(submit(one, names) for _ in range(4)), *(submit(two, names[::-1]) for _ in range(4))
                )
                forth, back = answers[:4], [answer[::-1] for answer in answers[4:]]
                assert len({tuple(job.id for job in answer) for answer in forth + back}) == 1
            assert len(await all_ids(one)) == 30

    asyncio.run(main())


def test_a_key_that_a_direct_call_finished_may_submit_a_job(postgres_url: str) -> None:
    """As on SQLite: what the key leads to from then on is the job."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            verdict = await store.reserve("local", a_key("k"), node="n", unknown=Unknown.RERUN, now=NOW)
            assert isinstance(verdict, Run)
            await store.finish("local", a_key("k"), verdict.lease, status=200, body=b"1")
            assert await store.accept([a_job(id="j", key=a_key("k"))], now=NOW) == [Accepted("j")]
            again = await store.accept([a_job(key=a_key("k"))], now=NOW)
            assert again == [Accepted("j", created=False)]

    asyncio.run(main())
