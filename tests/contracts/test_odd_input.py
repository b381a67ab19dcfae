"""Odd input: kept as it is or refused with a clear error, and never anybody else's trouble."""

import asyncio
from typing import Any

import msgspec
import pytest
from contracts.job_stage import (
    NOW,
    a_job,
    a_key,
    a_record,
    after,
    end,
    found,
    join,
    reserve,
    running,
    state_of,
    take_named,
)
from stores_under_test import on_each_store

from headgate.core.errors import HeadgateError
from headgate.core.failures import Failure, FailureKind
from headgate.core.idempotency import Run
from headgate.core.job import Accepted, JobState, Settled
from headgate.core.job_rules import Cancelled, Completed, Crashed, Deferred, Failed, Outcome, Skipped
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import Store, StoreHealth

MEGABYTE = 1_000_000
REFUSALS = (HeadgateError, ValueError)
"""What a caller can be told of its own text; anything else is a crash."""
ODD_TEXTS = {
    "empty": "",
    "spaces": "  \t ",
    "quotes": """'";--""",
    "line ends": "a\nb\r\nc\u2028d\x85e",
    "control": "\x01\x1b[31m\x7f",
    "nul": "a\x00b",
    "only nul": "\x00",
    "surrogate": "a\ud800b",
    "combining": "e\u0301 \u00e9 \ufb01",
    "right to left": "\u202eabc\u202c שלום",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈",
    "noncharacter": "\uffff\U0010ffff",
    "json": '{"a": [1]}',
    "percent": "%s %(x)s {} {0} :id ?1 $1",
    "long": "x" * 10_000,
    "very long": "日" * 100_000,
}
SAYABLE = {name: text for name, text in ODD_TEXTS.items() if name != "surrogate"}
"""JSON cannot say half a character."""
odd_texts = pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)


async def all_is_well(store: Store) -> None:
    """The store serves the next caller as if nothing had happened."""
    probe = a_job()
    assert await store.accept([probe], now=NOW) == [Accepted(probe.id)]
    assert await state_of(store, probe.id) is JobState.PENDING
    assert store.health is StoreHealth.OK


@odd_texts
@pytest.mark.parametrize("field", ["id", "tenant", "task", "model", "dedup_key"])
@on_each_store
async def test_a_jobs_texts_are_kept_or_refused(store: Store, field: str, text: str) -> None:
    """Kept means: found again under it, letter for letter. Refused means: nothing stored, others unharmed."""
    odd = a_job(**{"id": "odd", field: text})
    others = [store.accept([a_job(f"other-{number}")], now=NOW) for number in range(6)]
    answers = await asyncio.gather(
        *others[:3], store.accept([odd], now=NOW), *others[3:], return_exceptions=True
    )
    odd_answer = answers.pop(3)

    assert answers == [[Accepted(f"other-{number}")] for number in range(6)]
    if isinstance(odd_answer, BaseException):
        assert isinstance(odd_answer, REFUSALS), repr(odd_answer)
        assert len(await store.select(JobFilter(), limit=99)) == 6
    else:
        job = await found(store, odd.id)
        assert (getattr(job, field) or "") == text
    await all_is_well(store)


@odd_texts
@on_each_store
async def test_a_job_with_an_odd_tenant_is_named_and_claimed(store: Store, text: str) -> None:
    """A tenant whose name sorts strangely must not wait for ever."""
    await join(store)
    try:
        await store.accept([a_job("odd", tenant=text or " ")], now=NOW)
    except REFUSALS:
        return
    await store.accept([a_job("plain")], now=NOW)
    claimed = {claim.id for claim in await take_named(store, 1)}

    assert claimed == {"odd", "plain"}


@pytest.mark.parametrize("text", SAYABLE.values(), ids=SAYABLE)
@on_each_store
async def test_odd_texts_within_json_are_kept(store: Store, text: str) -> None:
    """Prompts and answers hold anything; JSON can say all of it, so all of it comes back."""
    body = msgspec.json.encode({"text": text})
    claim = await running(store, "j", input=body, metadata=body)
    await store.save_progress("j", claim.lease, progress=body)
    await store.save_step("j", claim.lease, name="s", result=body, now=NOW)
    await end(store, claim, Completed(body, records=(a_record("r", body=body),)))
    job = await found(store, "j")
    record = await store.get_record("local", "pages", "r")

    assert claim.input == body
    assert job.input == job.metadata == job.progress == job.result == {"text": text}
    assert await store.steps("j") == {"s": body}
    assert record is not None
    assert record.body == {"text": text}


@odd_texts
@pytest.mark.parametrize(
    "outcome",
    [
        lambda text: Failed(Failure(kind=FailureKind.TRANSIENT, message=text)),
        lambda text: Failed(Failure(kind=FailureKind.REJECTED, message=text)),
        lambda text: Deferred(1.0, text),
        Skipped,
        Cancelled,
        Crashed,
    ],
    ids=["failed", "rejected", "deferred", "skipped", "cancelled", "crashed"],
)
@on_each_store
async def test_a_job_can_be_settled_whatever_its_provider_said(store: Store, text: str, outcome: Any) -> None:
    """A failure that cannot be written would leave its job running for ever, and fail its neighbours too."""
    odd, plain = await running(store, "odd"), await running(store, "plain")
    ended: Outcome = outcome(text)

    answers = await store.settle([after(odd, ended), after(plain, Completed(b"1"))], now=NOW)

    assert answers == [Settled.APPLIED, Settled.APPLIED]
    job = await found(store, "odd")
    assert job.state is not JobState.RUNNING
    (listed,) = [job for job in await store.select(JobFilter(), limit=9) if job.id == "odd"]
    assert (listed.error, listed.reason) == (job.error, job.reason)


@odd_texts
@on_each_store
async def test_words_of_people_are_kept_or_refused(store: Store, text: str) -> None:
    """Who replayed, why it was cancelled: free text, from a keyboard or a script."""
    await store.accept([a_job("j")], now=NOW)
    try:
        await store.cancel("j", now=NOW, why=text)
    except REFUSALS:
        assert await state_of(store, "j") is JobState.PENDING
    else:
        job = await found(store, "j")
        assert (job.reason, job.history[-1].message) == (text, text)
    await all_is_well(store)


@odd_texts
@on_each_store
async def test_odd_ids_are_looked_for_and_not_found(store: Store, text: str) -> None:
    """A path of a URL may hold anything; asking is never a crash."""

    async def ask() -> None:
        assert await store.find(text) is None
        assert await store.states([text, "nobody"]) == {}
        assert await store.cancel(text, now=NOW) is None
        assert await store.replay([text], by="me", now=NOW, expires_after_s=1) == []
        assert await store.discard([text], by="me", now=NOW) == []
        assert await store.steps(text) == {}
        assert await store.get_record(text, text, text) is None
        assert await store.list_records("local", "pages", limit=9, text=text, after=text) == []
        assert not await store.delete_record(text, text, text)
        assert not await store.save_step(text, 1, name="s", result=b"", now=NOW)
        assert not (await store.renew(text)).alive

    try:
        await ask()
    except REFUSALS:
        assert text in {ODD_TEXTS["surrogate"], ODD_TEXTS["nul"], ODD_TEXTS["only nul"]}
    await all_is_well(store)


@odd_texts
@on_each_store
async def test_a_records_texts_are_kept_or_refused(store: Store, text: str) -> None:
    """Addresses and titles come from the whole web; a list with an odd one is refused whole."""
    write = a_record(text, unique_key=text, text=text, collection=f"c{text}")
    try:
        await store.put_records("local", [a_record("before"), write], now=NOW)
    except REFUSALS:
        assert await store.get_record("local", "pages", "before") is None
    else:
        record = await store.get_record("local", write.collection, text)
        assert record is not None
        assert (record.id, record.unique_key, record.text) == (text, text, text)
        assert await store.find_record("local", write.collection, text) == record
        assert await store.list_records("local", write.collection, limit=9, text=text) == [record]
    await all_is_well(store)


@odd_texts
@on_each_store
async def test_a_keys_texts_are_kept_or_refused(store: Store, text: str) -> None:
    """Checked at the door, usually; here it must at least not end the writer."""
    await join(store)
    try:
        verdict = await reserve(store, a_key(text, body=b"\x00\xff", endpoint=text))
    except REFUSALS:
        pass
    else:
        assert isinstance(verdict, Run)
        assert await store.finish("local", a_key(text, endpoint=text), verdict.lease, status=200, body=b"")
    await all_is_well(store)


@on_each_store
async def test_a_megabyte_is_carried_whole(store: Store) -> None:
    """Inputs, results, steps and records of a real document's size."""
    big = msgspec.json.encode("\x00日" * (MEGABYTE // 9))
    assert len(big) >= MEGABYTE * 0.9
    claim = await running(store, "j", input=big, metadata=big)
    await store.save_step("j", claim.lease, name="s", result=big, now=NOW)
    await end(store, claim, Completed(big, records=(a_record("r", body=big),)))
    job = await found(store, "j")

    assert claim.input == big
    assert job.input == job.result == job.metadata == msgspec.json.decode(big)
    assert (await store.steps("j"))["s"] == big


@on_each_store
async def test_a_list_of_fifty_megabytes_is_taken_whole(store: Store) -> None:
    """A batch import: large, but one transaction all the same."""
    body = msgspec.json.encode("x" * MEGABYTE)
    jobs = [a_job(input=body) for _ in range(50)]

    assert len(await store.accept(jobs, now=NOW)) == 50
    assert len((await found(store, jobs[-1].id)).input) == MEGABYTE


@pytest.mark.parametrize("number", [0, 1, -1, 9, 2**31, 2**63 - 1], ids=str)
@on_each_store
async def test_odd_numbers_are_kept_or_refused(store: Store, number: int) -> None:
    """Checked at the door, usually; but the store is no place for a crash either."""
    try:
        await store.accept([a_job("j", priority=number)], now=NOW)
    except REFUSALS:
        assert await store.find("j") is None
    else:
        assert (await found(store, "j")).priority == number
    await all_is_well(store)


@on_each_store
async def test_a_number_that_no_database_holds_is_refused(store: Store) -> None:
    """And hurts nobody who shares its transaction."""
    answers = await asyncio.gather(
        store.accept([a_job("a")], now=NOW),
        store.accept([a_job("b"), a_job("c", max_attempts=2**70)], now=NOW),
        store.accept([a_job("d")], now=NOW),
        return_exceptions=True,
    )

    assert answers[0] == [Accepted("a")]
    assert isinstance(answers[1], (*REFUSALS, OverflowError))
    assert answers[2] == [Accepted("d")]
    assert await store.find("b") is None
    await all_is_well(store)
