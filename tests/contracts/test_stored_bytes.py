"""The bytes that each tenant stores: counted with every row that comes, changes or goes, and bounded by a quota."""

import asyncio
import json

import pytest
from contracts.job_stage import EVER, NOW, REJECTED, a_job, a_key, a_record, end, join, reserve, take
from stores_under_test import ROW_BYTES, Home, on_each_store

from headgate.core.errors import KeyMismatch, QuotaExceeded
from headgate.core.idempotency import Replay, Run
from headgate.core.job import Edit
from headgate.core.job_rules import Completed
from headgate.core.ports.store import Store
from headgate.core.record import RecordWrite

INPUT = b'"' + b"x" * 998 + b'"'


def a_file(file_id: str, size_bytes: int) -> RecordWrite:
    return RecordWrite(collection="files", id=file_id, body=json.dumps({"bytes": size_bytes}).encode())


async def stored(store: Store, tenant: str = "local") -> int:
    return (await store.stored_bytes(tenant=tenant)).get(tenant, 0)


@on_each_store
async def test_a_job_counts_until_it_is_pruned(store: Store) -> None:
    """Its input and metadata from the start; its result and history once it has ended."""
    await join(store)
    await store.accept([a_job("a", input=INPUT, metadata=b"{}")], now=NOW)
    assert await stored(store) == ROW_BYTES + 1002

    [claim] = await take(store)
    assert await store.save_step(claim.id, claim.lease, name="s", result=b"1234567", now=NOW)
    assert await store.save_step(claim.id, claim.lease, name="s", result=b"123", now=NOW)
    assert await stored(store) == 2 * ROW_BYTES + 1005
    await end(store, claim, Completed(b'"' + b"r" * 498 + b'"'))
    ended = await stored(store)
    assert 1505 <= ended - 2 * ROW_BYTES < 2000

    assert await store.prune(before=EVER, limit=10) == 1
    assert await stored(store) == 0


@on_each_store
async def test_what_has_no_contents_counts_as_a_row(store: Store) -> None:
    """Names, hashes and places in indexes take room: a million empty rows of a tenant are not free."""
    await join(store)
    webhook = "https://example.org/" + "é" * 1000
    await store.accept([a_job("a", input=b"1", webhook=webhook, key=a_key("for a job"))], now=NOW)
    assert await stored(store) == 2 * ROW_BYTES + 1 + len(webhook.encode())
    [claim] = await take(store)
    assert await store.save_step(claim.id, claim.lease, name="s", result=b"1", now=NOW)
    assert isinstance(await reserve(store, a_key("for an answer")), Run)
    await store.put_records("local", [a_record("a", body=b"1")], now=NOW)
    assert await stored(store) == 5 * ROW_BYTES + 3 + len(webhook.encode())

    await end(store, claim, Completed(b"1"))
    await store.prune(before=EVER, limit=10)
    assert await stored(store) == 3 * ROW_BYTES + 1
    await store.purge_keys(now=EVER, limit=10)
    await store.delete_record("local", "pages", "a")
    assert await stored(store) == 0


@on_each_store
async def test_text_of_more_than_one_byte_a_character_counts_in_bytes(store: Store) -> None:
    await join(store)
    await store.accept([a_job("a", input=b"1")], now=NOW)
    [claim] = await take(store)
    result = json.dumps("é" * 1000, ensure_ascii=False).encode()
    await end(store, claim, Completed(result))
    assert await stored(store) >= 2001


@on_each_store
async def test_edited_replays_count_what_they_keep(store: Store) -> None:
    """The replaced input stays in the history: a dead letter that is edited again and again is not free."""
    await join(store)
    await store.accept([a_job("a", input=INPUT)], now=NOW)
    for turn in range(1, 4):
        [claim] = await take(store)
        await end(store, claim, REJECTED)
        assert await stored(store) >= ROW_BYTES + turn * len(INPUT)
        edit = Edit(input=INPUT)
        quota = ROW_BYTES + turn * len(INPUT)
        with pytest.raises(QuotaExceeded):
            await store.replay(
                ["a"], by="me", now=NOW, expires_after_s=9, tenant="local", edit=edit, quota=quota
            )
        [_] = await store.replay(["a"], by="me", now=NOW, expires_after_s=9, tenant="local", edit=edit)

    [claim] = await take(store)
    await end(store, claim, Completed(b"1"))
    await store.prune(before=EVER, limit=10)
    assert await stored(store) == 0


@on_each_store
async def test_a_discarded_dead_letter_and_a_cancelled_job_give_everything_back(store: Store) -> None:
    await join(store)
    await store.accept([a_job(name, input=INPUT) for name in ("a", "b", "c")], now=NOW)
    await store.expire(now=EVER, limit=2)
    await store.discard(["a", "b", "c"], by="me", now=NOW)
    await store.cancel("c", now=NOW)
    assert await stored(store) >= 3 * ROW_BYTES + 3000
    await store.prune(before=2 * EVER, limit=10)
    assert await stored(store) == 0


@on_each_store
async def test_an_answer_counts_until_its_key_is_purged_or_taken_anew(store: Store) -> None:
    await join(store)
    verdict = await reserve(store, a_key())
    assert isinstance(verdict, Run)
    assert await stored(store) == ROW_BYTES
    await store.finish("local", a_key(), verdict.lease, status=200, body=bytes(700))
    await store.finish("local", a_key(), verdict.lease, status=200, body=bytes(900))
    assert await stored(store) == ROW_BYTES + 700
    await store.keep_answer("local", a_key("other"), status=409, body=bytes(30), now=NOW)
    assert await stored(store) == 2 * ROW_BYTES + 730

    again = await reserve(store, a_key(expires_at=EVER + 9), now=NOW + 4000)
    assert isinstance(again, Run)
    assert await stored(store) == 2 * ROW_BYTES + 30
    await store.finish("local", a_key(), again.lease, status=200, body=bytes(5))
    assert await store.purge_keys(now=EVER + 10, limit=10) == 2
    assert await stored(store) == 0


@on_each_store
async def test_a_record_counts_and_a_files_record_counts_the_file(store: Store) -> None:
    await store.put_records("local", [a_record("a", body=b'{"long":"..."}')], now=NOW)
    assert await stored(store) == ROW_BYTES + 14
    await store.put_records("local", [a_record("a", body=b"{}")], now=NOW)
    assert await stored(store) == ROW_BYTES + 2
    await store.delete_record("local", "pages", "a")
    assert await stored(store) == 0

    await store.put_records("local", [a_file("file-1", 1_000_000), a_file("file-2", 5)], now=NOW)
    assert await stored(store) == 2 * ROW_BYTES + 1_000_005 + 18 + 12
    assert await store.prune_files(before="file-2", limit=10) == 1
    assert await stored(store) == ROW_BYTES + 5 + 12
    assert await store.get_record("local", "files", "file-1") is None


@on_each_store
async def test_tenants_are_counted_apart(store: Store) -> None:
    jobs = [a_job(f"{tenant}{n}", tenant=tenant, input=INPUT) for tenant in ("a", "b") for n in range(3)]
    await store.accept(jobs, now=NOW)
    await store.accept([a_job("more", tenant="a", input=INPUT, dedup_key="d")], now=NOW)
    assert await store.stored_bytes() == {"a": 4 * (ROW_BYTES + 1000), "b": 3 * (ROW_BYTES + 1000)}


@on_each_store
async def test_a_job_over_the_quota_is_refused_and_a_repeat_is_not(store: Store) -> None:
    """Nothing of a refused list is stored, its key included; what is there already is answered as ever."""
    full = 3 * ROW_BYTES + 2000
    key, dedup = a_key("k"), a_job("b", input=INPUT, dedup_key="d")
    await store.accept([a_job("a", input=INPUT, key=key)], now=NOW, quota=full)
    await store.accept([dedup], now=NOW, quota=full)

    for changes in ({}, {"key": a_key("new")}, {"dedup_key": "new"}):
        with pytest.raises(QuotaExceeded, match=rf"'local' stores \d,\d+ bytes of at most {full:,}"):
            await store.accept([a_job("c", input=b"1", **changes)], now=NOW, quota=full)
    assert await store.find("c") is None

    [again] = await store.accept([a_job("d", input=INPUT, key=key)], now=NOW, quota=full)
    assert (again.id, again.created) == ("a", False)
    [twin] = await store.accept([a_job("e", input=INPUT, dedup_key="d")], now=NOW, quota=0)
    assert (twin.id, twin.created) == ("b", False)
    with pytest.raises(KeyMismatch):
        await store.accept([a_job("f", key=a_key("k", body=b"other"))], now=NOW, quota=full)
    await store.accept([a_job("g", tenant="other", input=INPUT)], now=NOW, quota=full)
    await store.accept([a_job("h", input=b"1", key=a_key("new"))], now=NOW, quota=full + ROW_BYTES + 1)


@on_each_store
async def test_a_full_tenant_reserves_no_key_and_gets_its_answers(store: Store) -> None:
    await join(store)
    verdict = await reserve(store, a_key())
    assert isinstance(verdict, Run)
    await store.finish("local", a_key(), verdict.lease, status=200, body=bytes(100))

    full = ROW_BYTES + 100
    with pytest.raises(QuotaExceeded):
        await reserve(store, a_key("new"), quota=full)
    with pytest.raises(QuotaExceeded):
        await reserve(store, a_key("k"), now=NOW + 9000, quota=full)
    assert await reserve(store, a_key(), quota=full) == Replay(200, bytes(100))
    assert isinstance(await reserve(store, a_key("new"), quota=full + 1), Run)


@on_each_store
async def test_a_record_over_the_quota_is_not_written(store: Store) -> None:
    with pytest.raises(QuotaExceeded):
        await store.put_records("local", [a_record("a", body=b"{}"), a_file("file-1", 99)], now=NOW, quota=99)
    assert await stored(store) == 0
    assert await store.get_record("local", "pages", "a") is None
    await store.put_records("local", [a_file("file-1", 99)], now=NOW, quota=ROW_BYTES + 112)


@on_each_store
async def test_many_writers_pass_the_quota_by_no_more_than_a_body_each(store: Store, home: Home) -> None:
    """Two processes, jobs and answers at once; and what was refused can be stored again after a deletion."""
    await join(store, "n1", "n2")
    stores = [store, await home.open()]
    writers = 8

    async def submit(number: int) -> None:
        for turn in range(20):
            job = a_job(
                f"j{number:02}-{turn:02}", input=INPUT, key=a_key(f"{number}-{turn}") if turn % 2 else None
            )
            await stores[number % 2].accept([job], now=NOW, quota=70_000)

    async def answer(number: int) -> None:
        for turn in range(20):
            claim = a_key(f"answer {number}-{turn}")
            verdict = await reserve(stores[number % 2], claim, node=f"n{number % 2 + 1}", quota=70_000)
            assert isinstance(verdict, Run)
            await stores[number % 2].finish("local", claim, verdict.lease, status=200, body=bytes(1000))

    jobs = (submit(number) for number in range(writers))
    answers = (answer(number) for number in range(writers))
    ends = await asyncio.gather(*jobs, *answers, return_exceptions=True)

    assert all(isinstance(end, QuotaExceeded) for end in ends), ends
    assert 66_000 < await stored(store) <= 70_000 + 2 * writers * (2 * ROW_BYTES + 1000)
    await store.purge_keys(now=EVER, limit=1000)
    for job_id in [f"j{number:02}-{turn:02}" for number in range(writers) for turn in range(20)]:
        await store.cancel(job_id, now=NOW)
    await store.prune(before=EVER, limit=1000)
    assert await stored(store) == 0
    await submit(0)
