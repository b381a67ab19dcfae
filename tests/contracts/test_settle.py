"""Writing what came of an attempt: fenced by the lease, all of it or nothing, and nobody else's."""

import asyncio

import msgspec
import pytest
from contracts.job_stage import (
    EVER,
    NOW,
    REJECTED,
    TRANSIENT,
    a_job,
    a_record,
    after,
    end,
    exhausted,
    found,
    join,
    picture,
    running,
    state_of,
    take,
)
from stores_under_test import Home, on_each_store

from headgate.core.failures import Failure, FailureKind
from headgate.core.job import Claim, JobState, Settled, Settlement
from headgate.core.job_rules import Cancelled, Completed, Crashed, Deferred, Failed, Outcome, Skipped
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import Store

ANY_OUTCOME: list[Outcome] = [
    Completed(b"1", records=(a_record("r"),), follow_ups=(a_job("next"),)),
    Skipped("nothing new"),
    Cancelled(),
    TRANSIENT,
    REJECTED,
    Deferred(5.0, "held"),
    Deferred(0.0, "drain"),
    Crashed(),
]


def each_outcome(outcome: Outcome) -> str:
    return type(outcome).__name__


# ---- The ends and the ways back ------------------------------------------------------------------------------------


@on_each_store
async def test_a_completed_job_has_its_result(store: Store) -> None:
    """Result, state, time and story come in one write."""
    claim = await running(store, "j")
    assert await end(store, claim, Completed(b'{"text":"done"}', "bedrock"), now=NOW + 3) is Settled.APPLIED
    job = await found(store, "j")

    assert (job.state, job.result, job.attempts) == (JobState.COMPLETED, {"text": "done"}, 1)
    assert job.finished_at is not None
    assert job.finished_at.timestamp() == NOW + 3
    (entry,) = job.history
    assert (entry.outcome, entry.attempt, entry.upstream) == ("completed", 1, "bedrock")
    assert entry.started_at is not None
    assert (entry.started_at.timestamp(), entry.at.timestamp()) == (NOW, NOW + 3)


@on_each_store
async def test_completed_is_never_seen_without_the_result(store: Store, home: Home) -> None:
    """Whoever waits looks at the state first: what it announces must be there."""
    other = await home.open()
    claims = [await running(store, f"j{number}") for number in range(30)]
    seen = 0

    async def watch() -> None:
        nonlocal seen
        while seen < len(claims):
            jobs = [await other.find(claim.id) for claim in claims]
            done = [job for job in jobs if job is not None and job.state is JobState.COMPLETED]
            assert all(job.result == 7 for job in done)
            seen = len(done)

    async def finish() -> None:
        for claim in claims:
            await end(store, claim, Completed(b"7"))

    await asyncio.gather(watch(), finish())


@on_each_store
async def test_a_skipped_job_tells_why(store: Store) -> None:
    """People ask why nothing came of it; it is a reason, not an error."""
    await end(store, await running(store, "j"), Skipped("nothing new"))
    job = await found(store, "j")

    assert (job.state, job.reason, job.result, job.error) == (JobState.SKIPPED, "nothing new", None, None)


@on_each_store
async def test_a_failed_job_waits_its_time_and_tells_of_its_failure(store: Store) -> None:
    """While it waits, people see what is wrong."""
    claim = await running(store, "j", model="m")
    failure = Failed(Failure(kind=FailureKind.TRANSIENT, status=503, message="upstream down"), "bedrock")
    await end(store, claim, failure, now=NOW + 1)
    job = await found(store, "j")

    assert (job.state, job.attempts, job.error_class) == (JobState.PENDING, 1, "transient")
    assert job.error == "transient 503: upstream down"
    assert job.run_at.timestamp() == NOW + 6
    assert await take(store, "m", now=NOW + 100) == []
    assert (await store.ready(now=NOW + 5)).next_at == NOW + 6
    await store.ready(now=NOW + 6)
    (again,) = await take(store, "m", now=NOW + 6)
    assert (again.id, again.run_at) == ("j", NOW + 6)


@on_each_store
async def test_a_job_that_succeeds_in_the_end_keeps_the_story_but_not_the_error(store: Store) -> None:
    """An error on a completed job would be read as its outcome."""
    claim = await running(store, "j", model="m")
    await end(store, claim, TRANSIENT)
    await store.ready(now=EVER)
    (claim,) = await take(store, "m", now=NOW + 60)
    await end(store, claim, Completed(b"1"), now=NOW + 60)
    job = await found(store, "j")

    assert (job.error, job.error_class) == (None, None)
    assert [(entry.outcome, entry.attempt) for entry in job.history] == [("failed", 1), ("completed", 2)]


@on_each_store
async def test_deferrals_are_counted_and_not_told(store: Store) -> None:
    """A throttled night would fill the history with thousands of lines that say nothing."""
    claim = await running(store, "j", model="m")
    for count in range(1, 6):
        await end(store, claim, Deferred(0.0, "throttled"))
        job = await found(store, "j")
        assert (job.state, job.attempts, job.deferrals) == (JobState.PENDING, 0, count)
        (claim,) = await take(store, "m")

    assert job.history == ()


@on_each_store
async def test_an_exhausted_job_is_a_dead_letter_with_its_reason(store: Store) -> None:
    """And it knows when it may come back by itself."""
    await exhausted(store, "j")
    job = await found(store, "j")

    assert (job.state, job.reason, job.error_class) == (JobState.DEAD_LETTER, "exhausted", "transient")
    assert await store.revivable(now=NOW + 3600, limit=9) == [("j", job.model)]


# ---- Leases fence ---------------------------------------------------------------------------------------------------


async def lost_claims(store: Store) -> list[Claim]:
    """Claims that are no longer good, each for another reason."""
    rescued = await running(store, "rescued", node="n2")
    await store.bury_dead(["n2"])
    await end(store, rescued, Crashed())
    retaken = await running(store, "retaken")
    await end(store, retaken, Deferred(0.0, "drain"))
    await take(store, retaken.model)
    finished = await running(store, "finished")
    await end(store, finished, Completed(b'"first"'))
    replayed = await exhausted(store, "replayed")
    await store.replay(["replayed"], by="me", now=NOW, expires_after_s=1000)
    stopped = await running(store, "stopped")
    await store.cancel("stopped", now=NOW)
    await end(store, stopped, Crashed())
    forged = msgspec.structs.replace(await running(store, "forged"), lease=99)
    nobody = msgspec.structs.replace(forged, id="nobody", lease=1)
    return [rescued, retaken, finished, replayed, stopped, forged, nobody]


@pytest.mark.parametrize("outcome", ANY_OUTCOME, ids=each_outcome)
@on_each_store
async def test_a_lost_claim_settles_nothing(store: Store, outcome: Outcome) -> None:
    """Its job runs elsewhere, or is over: not a field, a record or a follow-up of the late one is written."""
    claims = await lost_claims(store)
    before = await picture(store)

    answers = await store.settle([after(claim, outcome) for claim in claims], now=NOW)

    assert answers == [Settled.STALE] * len(claims)
    assert await picture(store) == before
    assert await store.find("next") is None


@on_each_store
async def test_a_lost_claim_saves_neither_step_nor_progress(store: Store) -> None:
    """A step saved late would replace what the new worker made."""
    claims = await lost_claims(store)
    (retaken,) = [claim for claim in claims if claim.id == "retaken"]
    await store.save_step("retaken", retaken.lease + 1, name="fetch", result=b"new", now=NOW)
    before = await picture(store)

    for claim in claims:
        assert not await store.save_step(claim.id, claim.lease, name="fetch", result=b"old", now=NOW)
        assert not await store.save_progress(claim.id, claim.lease, progress=b"1")

    assert await picture(store) == before
    assert await store.steps("retaken") == {"fetch": b"new"}


@on_each_store
async def test_settling_twice_applies_once(store: Store) -> None:
    """The worker did not hear the answer and sends the same again, perhaps in the same breath."""
    claim = await running(store, "j")
    once = after(claim, Completed(b"1", records=(a_record("r"),), follow_ups=(a_job("next"),)))

    assert await store.settle([once, once], now=NOW) == [Settled.APPLIED, Settled.STALE]
    before = await picture(store)
    assert await store.settle([once], now=NOW + 1) == [Settled.STALE]
    assert await picture(store) == before


@on_each_store
async def test_a_node_that_was_buried_may_settle_until_it_is_rescued(store: Store) -> None:
    """The lease decides, not the node: work that was done in time is not thrown away."""
    claim = await running(store, "j")
    await store.bury_dead(["n1"])

    assert await end(store, claim, Completed(b"1")) is Settled.APPLIED
    assert await store.lost(limit=9) == []


# ---- Many in one call -------------------------------------------------------------------------------------------------


@on_each_store
async def test_each_settlement_fares_alone(store: Store) -> None:
    """One call, one transaction, but one answer each: a stale or colliding one hurts nobody."""
    await store.put_records("local", [a_record("theirs", unique_key="u")], now=NOW)
    good, late, clash, back = [await running(store, name) for name in ("good", "late", "clash", "back")]
    await end(store, late, Completed(b"1"))
    wrong = Completed(
        b"2",
        records=(a_record("half"), a_record("mine", unique_key="u")),
        follow_ups=(a_job("follow-up of the clash"),),
    )

    answers = await store.settle(
        [
            after(good, Completed(b"3", records=(a_record("kept"),), follow_ups=(a_job("kept job"),))),
            after(late, Completed(b"4")),
            after(clash, wrong),
            after(back, TRANSIENT),
        ],
        now=NOW,
    )

    assert answers == [Settled.APPLIED, Settled.STALE, Settled.CONFLICT, Settled.APPLIED]
    assert (await found(store, "good")).result == 3
    assert await state_of(store, "clash") is JobState.RUNNING
    assert await state_of(store, "back") is JobState.PENDING
    records = await store.list_records("local", "pages", limit=9)
    assert {record.id for record in records} == {"theirs", "kept"}
    assert await store.find("kept job") is not None
    assert await store.find("follow-up of the clash") is None


@on_each_store
async def test_a_colliding_settlement_can_be_settled_otherwise(store: Store) -> None:
    """The claim still holds after a conflict: the worker decides what to do about it."""
    await store.put_records("local", [a_record("theirs", unique_key="u")], now=NOW)
    claim = await running(store, "j")
    before = await picture(store)
    wrong = Completed(b"1", records=(a_record("mine", unique_key="u"),))

    assert await end(store, claim, wrong) is Settled.CONFLICT
    assert await picture(store) == before
    assert await end(store, claim, REJECTED) is Settled.APPLIED


@on_each_store
async def test_two_settlements_of_one_call_may_collide_with_each_other(store: Store) -> None:
    """The first one wins, whole; the second loses, whole."""
    first, second = await running(store, "first"), await running(store, "second")
    settlements = [
        after(claim, Completed(b"1", records=(a_record(f"of {claim.id}", unique_key="u"),)))
        for claim in (first, second)
    ]

    assert await store.settle(settlements, now=NOW) == [Settled.APPLIED, Settled.CONFLICT]
    assert await state_of(store, "second") is JobState.RUNNING


@on_each_store
async def test_settling_nothing_answers_nothing(store: Store) -> None:
    """A tick of the worker in which nothing ended."""
    assert await store.settle([], now=NOW) == []


@on_each_store
async def test_a_thousand_settlements_in_one_call(store: Store) -> None:
    """A big worker pool ends a lot at once; each answer belongs to its own job."""
    await join(store)
    await store.accept([a_job() for _ in range(1000)], now=NOW)
    claims = await take(store, places=1000)
    late = {claim.id for claim in claims[::7]}
    await store.settle([after(claim, Completed(b"1")) for claim in claims[::7]], now=NOW)

    answers = await store.settle([after(claim, Completed(b"2")) for claim in claims], now=NOW)

    assert answers == [Settled.STALE if claim.id in late else Settled.APPLIED for claim in claims]


# ---- Records and follow-ups -----------------------------------------------------------------------------------------------


@on_each_store
async def test_records_of_a_settlement_are_the_jobs_tenants(store: Store) -> None:
    """A worker serves all tenants; what it writes belongs to the job's."""
    claim = await running(store, "j", tenant="acme")
    await end(store, claim, Completed(b"1", records=(a_record("r", job_id="j"),)))

    assert await store.get_record("acme", "pages", "r") is not None
    assert await store.get_record("local", "pages", "r") is None


@on_each_store
async def test_a_skipped_job_keeps_its_records_too(store: Store) -> None:
    """ "Seen, nothing to do" is worth remembering."""
    await end(store, await running(store, "j"), Skipped("old news", records=(a_record("r"),)))

    assert await store.get_record("local", "pages", "r") is not None


@on_each_store
async def test_follow_ups_wait_like_any_job(store: Store) -> None:
    """They are there with the result, ready or scheduled by their own time."""
    claim = await running(store, "j")
    follow_ups = (a_job("now", tenant="acme", model="m"), a_job("later", run_at=NOW + 50))
    await end(store, claim, Completed(b"1", follow_ups=follow_ups))
    ready = await store.ready(now=NOW)

    assert (ready.lines, ready.next_at) == ({"acme": ("m",)}, NOW + 50)
    (job,) = await store.select(JobFilter(tenant="acme"), limit=9)
    assert (job.id, job.state) == ("now", JobState.PENDING)
    assert (await found(store, "now")).input == {"text": "hello"}


@on_each_store
async def test_a_follow_up_joins_its_live_twin(store: Store) -> None:
    """Otherwise the job that asked for it could never be settled: its every end would be refused."""
    await store.accept([a_job("twin", dedup_key="page")], now=NOW)
    claim = await running(store, "j")
    follow_ups = (a_job("double", dedup_key="page"), a_job("other", dedup_key="other page"))

    assert await end(store, claim, Completed(b"1", follow_ups=follow_ups)) is Settled.APPLIED
    assert await store.find("double") is None
    assert await store.find("other") is not None
    assert await state_of(store, "j") is JobState.COMPLETED


@on_each_store
async def test_a_job_may_be_followed_by_its_own_twin(store: Store) -> None:
    """A job that ends and asks for the next round of itself: at that moment it is no longer live."""
    claim = await running(store, "round 1", dedup_key="poll")
    ended = Completed(b"1", follow_ups=(a_job("round 2", dedup_key="poll", run_at=NOW + 60),))

    assert await end(store, claim, ended) is Settled.APPLIED
    assert await state_of(store, "round 2") is JobState.PENDING


# ---- Steps and progress ----------------------------------------------------------------------------------------------------


@on_each_store
async def test_a_step_is_kept_over_attempts(store: Store) -> None:
    """What a step paid for is not paid for again; saved anew, the last word counts."""
    claim = await running(store, "j", model="m")
    assert await store.save_step("j", claim.lease, name="fetch", result=b"\x00\xff raw", now=NOW)
    assert await store.save_step("j", claim.lease, name="parse", result=b"", now=NOW)
    await end(store, claim, Crashed())
    (again,) = await take(store, "m")
    assert await store.steps("j") == {"fetch": b"\x00\xff raw", "parse": b""}
    assert await store.save_step("j", again.lease, name="fetch", result=b"2", now=NOW)

    assert await store.steps("j") == {"fetch": b"2", "parse": b""}
    assert await store.steps("nobody") == {}


@on_each_store
async def test_steps_are_one_jobs(store: Store) -> None:
    """Two runs of the same task use the same names for their steps."""
    a, b = await running(store, "a"), await running(store, "b")
    await store.save_step("a", a.lease, name="s", result=b"a", now=NOW)
    await store.save_step("b", b.lease, name="s", result=b"b", now=NOW)

    assert (await store.steps("a"), await store.steps("b")) == ({"s": b"a"}, {"s": b"b"})


@on_each_store
async def test_progress_is_seen_while_the_job_runs(store: Store) -> None:
    """Whoever looks sees the last word, also when that is nothing."""
    claim = await running(store, "j")

    assert await store.save_progress("j", claim.lease, progress=b'{"done":3}')
    assert (await found(store, "j")).progress == {"done": 3}
    assert await store.save_progress("j", claim.lease, progress=b"null")
    assert (await found(store, "j")).progress is None


@on_each_store
async def test_a_settlement_is_what_is_written_word_for_word(store: Store) -> None:
    """The rules decide, the store only writes: also numbers the rules would not choose."""
    claim = await running(store, "j", model="m")
    odd = Settlement(
        id="j",
        lease=claim.lease,
        state=JobState.PENDING,
        attempts=3,
        crashes=1,
        deferrals=41,
        run_at=NOW - 5,
        due=NOW - 5,
        error="why",
        error_class="kind",
    )
    await store.settle([odd], now=NOW)
    job = await found(store, "j")

    assert (job.attempts, job.crashes, job.deferrals) == (3, 1, 41)
    assert (job.error, job.error_class, job.run_at.timestamp()) == ("why", "kind", NOW - 5)
    (again,) = await take(store, "m")
    assert (again.attempts, again.deferrals) == (4, 41)
