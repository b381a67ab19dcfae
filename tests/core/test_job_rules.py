"""What becomes of a job after an attempt: the table of every outcome, and every life hypothesis can think of."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.call import Lane
from headgate.core.failures import Failure, FailureKind
from headgate.core.job import Claim, Entry, JobState, NewJob, Reason, Settlement, due
from headgate.core.job_rules import (
    LONGEST_ERROR_CHARS,
    MOST_REVIVALS,
    POISON_AFTER,
    SUSPECT_AFTER,
    Cancelled,
    Completed,
    Crashed,
    Deferred,
    Expired,
    Failed,
    JobRules,
    Outcome,
    Skipped,
    settle,
)
from headgate.core.record import RecordWrite
from headgate.core.retry import Jitter, RetryPolicy

NOW = 1000.0
RUN_AT = 900.0
EXPIRES_AT = 10_000.0
RULES = JobRules(
    revive_after_s=3600.0,
    retry=RetryPolicy(first_wait_s=5.0, factor=2.0, longest_wait_s=900.0, jitter=Jitter.NONE),
)
RECORD = RecordWrite(collection="pages", id="r", body=b"{}")
FOLLOW_UP = NewJob(id="next", task="t", input=b"{}", run_at=NOW, expires_at=EXPIRES_AT)


def a_claim(**changes: Any) -> Claim:
    usual: dict[str, Any] = {
        "id": "j",
        "lease": 7,
        "tenant": "t",
        "task": "summarise",
        "model": "m",
        "lane": Lane.BATCH,
        "priority": 5,
        "input": b"{}",
        "attempts": 1,
        "max_attempts": 5,
        "generation": 1,
        "crashes": 0,
        "deferrals": 0,
        "revivals": 0,
        "hold": True,
        "revivable": True,
        "timeout_s": 600.0,
        "run_at": RUN_AT,
        "expires_at": EXPIRES_AT,
        "started_at": 990.0,
    }
    return Claim(**{**usual, **changes})


def failed(kind: FailureKind, **details: Any) -> Failed:
    return Failed(Failure(kind=kind, **details))


TRANSIENT = failed(FailureKind.TRANSIENT, status=503)


def a_settlement(**fields: Any) -> Settlement:
    """Everything that is not said is what the claim of `a_claim` had."""
    usual: dict[str, Any] = {
        "id": "j",
        "lease": 7,
        "attempts": 1,
        "crashes": 0,
        "deferrals": 0,
        "run_at": RUN_AT,
        "due": RUN_AT + 300.0,
    }
    return Settlement(**{**usual, **fields})


def an_entry(outcome: str, **fields: Any) -> Entry:
    return Entry(
        **{"outcome": outcome, "at": NOW, "attempt": 1, "generation": 1, "started_at": 990.0, **fields}
    )


def back(wait_s: float, **fields: Any) -> Settlement:
    """Waiting again; who waits stands in line from the end of the wait on."""
    run_at = NOW + wait_s
    return a_settlement(**{"state": JobState.PENDING, "run_at": run_at, "due": run_at + 300.0, **fields})


def dead(reason: Reason, **fields: Any) -> Settlement:
    return a_settlement(
        **{"state": JobState.DEAD_LETTER, "reason": str(reason), "finished_at": NOW, **fields}
    )


def done(state: JobState, **fields: Any) -> Settlement:
    return a_settlement(state=state, finished_at=NOW, **fields)


def told(kind: str, error: str, **entry: Any) -> dict[str, Any]:
    """A failure, as the job's record and its history tell it."""
    return {
        "error": error,
        "error_class": kind,
        "entry": an_entry("failed", **{"kind": kind, "message": error, **entry}),
    }


def crashed(**entry: Any) -> dict[str, Any]:
    message = "its worker was lost"
    return {
        "error": message,
        "error_class": "crashed",
        "entry": an_entry("crashed", **{"kind": "crashed", "message": message, **entry}),
    }


def deferred(why: str) -> dict[str, Any]:
    return {"error": why, "error_class": "deferred"}


THE_TABLE: list[tuple[str, dict[str, Any], Outcome, Settlement]] = [
    # ---- The ends -------------------------------------------------------------------------------------
    (
        "a result completes the job, with its records and follow-ups",
        {},
        Completed(b'"yes"', "bedrock", (RECORD,), (FOLLOW_UP,)),
        done(
            JobState.COMPLETED,
            result=b'"yes"',
            records=(RECORD,),
            follow_ups=(FOLLOW_UP,),
            entry=an_entry("completed", upstream="bedrock"),
        ),
    ),
    (
        "a result that comes after the job's time counts all the same: it is paid for",
        {"expires_at": NOW - 1},
        Completed(b"1"),
        done(JobState.COMPLETED, result=b"1", entry=an_entry("completed")),
    ),
    (
        "a skip says why and keeps its records",
        {"attempts": 3, "crashes": 1, "deferrals": 2},
        Skipped("nothing new", (RECORD,), (FOLLOW_UP,)),
        done(
            JobState.SKIPPED,
            attempts=3,
            crashes=1,
            deferrals=2,
            reason="nothing new",
            records=(RECORD,),
            follow_ups=(FOLLOW_UP,),
            entry=an_entry("skipped", attempt=3),
        ),
    ),
    (
        "a cancelled job says why",
        {"attempts": 2},
        Cancelled("no longer needed"),
        done(
            JobState.CANCELLED,
            attempts=2,
            reason="no longer needed",
            entry=an_entry("cancelled", attempt=2),
        ),
    ),
    # ---- Failures -------------------------------------------------------------------------------------
    (
        "the first failure waits the first wait",
        {},
        TRANSIENT,
        back(5.0, **told("transient", "transient 503")),
    ),
    (
        "the third failure waits twice as long again",
        {"attempts": 3, "generation": 2},
        TRANSIENT,
        back(20.0, attempts=3, **told("transient", "transient 503", attempt=3, generation=2)),
    ),
    (
        "what the provider asks for is a floor",
        {},
        failed(FailureKind.THROTTLED, status=429, retry_after_s=77.0),
        back(77.0, **told("throttled", "throttled 429")),
    ),
    (
        "a short wait of the provider's does not shorten ours",
        {"attempts": 2},
        failed(FailureKind.TRANSIENT, retry_after_s=0.5),
        back(10.0, attempts=2, **told("transient", "transient", attempt=2)),
    ),
    (
        "a job repeats what nobody foresaw, and tells what it was",
        {},
        Failed(Failure(kind=FailureKind.BROKEN, message="KeyError: 'x'"), "bedrock"),
        back(5.0, **told("broken", "broken: KeyError: 'x'", upstream="bedrock")),
    ),
    (
        "a wait goes no further than the job's time",
        {"expires_at": NOW + 2},
        TRANSIENT,
        back(2.0, **told("transient", "transient 503")),
    ),
    (
        "a failure after the job's time is its end",
        {"expires_at": NOW},
        TRANSIENT,
        dead(Reason.EXPIRED, **told("transient", "transient 503")),
    ),
    (
        "the last attempt exhausts the job, which may come back after an hour",
        {"attempts": 5},
        TRANSIENT,
        dead(
            Reason.EXHAUSTED,
            attempts=5,
            revive_at=NOW + 3600.0,
            **told("transient", "transient 503", attempt=5),
        ),
    ),
    (
        "exhausted is said before expired: it is what somebody has to look into",
        {"attempts": 5, "expires_at": NOW - 1},
        TRANSIENT,
        dead(Reason.EXHAUSTED, attempts=5, **told("transient", "transient 503", attempt=5)),
    ),
    (
        "who would be out of time by then does not come back",
        {"attempts": 5, "expires_at": NOW + 3600.0},
        TRANSIENT,
        dead(Reason.EXHAUSTED, attempts=5, **told("transient", "transient 503", attempt=5)),
    ),
    (
        "a job of one attempt has none to lose",
        {"max_attempts": 1},
        TRANSIENT,
        dead(Reason.EXHAUSTED, revive_at=NOW + 3600.0, **told("transient", "transient 503")),
    ),
    (
        "the third revival is the last",
        {"attempts": 5, "revivals": MOST_REVIVALS},
        TRANSIENT,
        dead(Reason.EXHAUSTED, attempts=5, **told("transient", "transient 503", attempt=5)),
    ),
    (
        "the second is not",
        {"attempts": 5, "revivals": MOST_REVIVALS - 1},
        TRANSIENT,
        dead(
            Reason.EXHAUSTED,
            attempts=5,
            revive_at=NOW + 3600.0,
            **told("transient", "transient 503", attempt=5),
        ),
    ),
    (
        "who does not want to come back does not",
        {"attempts": 5, "revivable": False},
        TRANSIENT,
        dead(Reason.EXHAUSTED, attempts=5, **told("transient", "transient 503", attempt=5)),
    ),
    (
        "a wrong request is permanent at once, and nothing revives it",
        {},
        failed(FailureKind.REJECTED, status=400, code="bad"),
        dead(Reason.PERMANENT, **told("rejected", "rejected 400 bad")),
    ),
    (
        "a wrong set-up is waited out by a job that holds",
        {},
        failed(FailureKind.MISCONFIGURED, status=401),
        back(5.0, **told("misconfigured", "misconfigured 401")),
    ),
    (
        "and is permanent for one that does not",
        {"hold": False},
        failed(FailureKind.MISCONFIGURED, status=401),
        dead(Reason.PERMANENT, **told("misconfigured", "misconfigured 401")),
    ),
    (
        "a suspect that fails stays a suspect",
        {"crashes": SUSPECT_AFTER},
        TRANSIENT,
        back(5.0, crashes=2, suspect=True, **told("transient", "transient 503")),
    ),
    # ---- Deferrals ------------------------------------------------------------------------------------
    (
        "a deferral gives the attempt back and leaves no line in the history",
        {"attempts": 3, "deferrals": 4},
        Deferred(30.0, "throttled"),
        back(30.0, attempts=2, deferrals=5, **deferred("throttled")),
    ),
    (
        "a deferral without a wait keeps its place in line",
        {},
        Deferred(0.0, "shutting down"),
        back(0.0, attempts=0, deferrals=1, due=RUN_AT + 300.0, **deferred("shutting down")),
    ),
    (
        "the last attempt can be deferred as well as any",
        {"attempts": 5},
        Deferred(1.0, "preempted"),
        back(1.0, attempts=4, deferrals=1, **deferred("preempted")),
    ),
    (
        "a deferral goes no further than the job's time",
        {"expires_at": NOW + 3},
        Deferred(math.inf, "held"),
        back(3.0, attempts=0, deferrals=1, **deferred("held")),
    ),
    (
        "a deferral after the job's time is its end, and that one is told",
        {"expires_at": NOW - 1, "attempts": 2},
        Deferred(1.0, "held"),
        dead(
            Reason.EXPIRED,
            attempts=1,
            entry=an_entry("deferred", attempt=2, kind="deferred", message="held"),
            **deferred("held"),
        ),
    ),
    (
        "a suspect that is deferred stays a suspect",
        {"crashes": SUSPECT_AFTER},
        Deferred(1.0, "held"),
        back(1.0, attempts=0, crashes=2, deferrals=1, suspect=True, **deferred("held")),
    ),
    # ---- Crashes --------------------------------------------------------------------------------------
    (
        "a crash gives the attempt back and keeps the job's place in line",
        {"attempts": 2},
        Crashed(),
        back(0.0, attempts=1, crashes=1, due=RUN_AT + 300.0, **crashed(attempt=2)),
    ),
    (
        "the second crash makes a suspect",
        {"crashes": 1},
        Crashed(),
        back(0.0, attempts=0, crashes=2, suspect=True, due=RUN_AT + 300.0, **crashed()),
    ),
    (
        "the third is poison, and nothing revives it",
        {"crashes": 2},
        Crashed(),
        dead(Reason.POISON, attempts=0, crashes=3, **crashed()),
    ),
    (
        "a crash after the job's time is its end, and is counted",
        {"expires_at": NOW - 1, "crashes": 1},
        Crashed(),
        dead(Reason.EXPIRED, attempts=0, crashes=2, **crashed()),
    ),
    (
        "claimed after its time: the attempt was none, and its last failure is told",
        {"expires_at": NOW - 1, "attempts": 3},
        Expired("too late; last failure: transient 503", "transient"),
        dead(
            Reason.EXPIRED,
            attempts=2,
            error="too late; last failure: transient 503",
            error_class="transient",
            entry=an_entry(
                "expired", attempt=3, kind="transient", message="too late; last failure: transient 503"
            ),
        ),
    ),
    # ---- Places in line -------------------------------------------------------------------------------
    (
        "somebody waits for it: it stays ahead in line after a failure too",
        {"lane": Lane.INTERACTIVE, "priority": 0},
        TRANSIENT,
        back(5.0, due=NOW + 5.0 - 600.0, **told("transient", "transient 503")),
    ),
]


@pytest.mark.parametrize(
    ("claimed", "outcome", "expected"),
    [row[1:] for row in THE_TABLE],
    ids=[row[0] for row in THE_TABLE],
)
def test_the_table(claimed: dict[str, Any], outcome: Outcome, expected: Settlement) -> None:
    """Everything the store writes is compared: a field nobody looks at is a field that goes wrong."""
    assert settle(a_claim(**claimed), outcome, rules=RULES, now=NOW, chance=0.5) == expected


def test_every_kind_of_failure_has_its_row() -> None:
    """Only a wrong request ends a job at once; what is not known to be hopeless is tried again."""
    ends = {
        kind
        for kind in FailureKind
        if settle(a_claim(), failed(kind), rules=RULES, now=NOW, chance=0.5).state.final
    }
    ends_without_hold = {
        kind
        for kind in FailureKind
        if settle(a_claim(hold=False), failed(kind), rules=RULES, now=NOW, chance=0.5).state.final
    }

    assert ends == {FailureKind.REJECTED}
    assert ends_without_hold == {FailureKind.REJECTED, FailureKind.MISCONFIGURED}


def test_chance_spreads_the_waits_of_jobs_that_failed_together() -> None:
    """A thousand jobs that met the same outage must not all return in the same second."""
    rules = JobRules(retry=RetryPolicy(first_wait_s=100.0, longest_wait_s=900.0, jitter=Jitter.FULL))
    waits = [
        settle(a_claim(), TRANSIENT, rules=rules, now=NOW, chance=share).run_at - NOW
        for share in (0.0, 0.25, 0.999)
    ]

    assert waits == pytest.approx([0.0, 25.0, 99.9])


@pytest.mark.parametrize(
    "outcome",
    [
        Failed(Failure(kind=FailureKind.BROKEN, message="x" * 10_000)),
        Deferred(1.0, "x" * 10_000),
        Expired("x" * 10_000),
        Skipped("x" * 10_000),
        Cancelled("x" * 10_000),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_what_people_are_told_has_a_bound(outcome: Outcome) -> None:
    """A provider's error page of ten megabytes must not be written into every job that met it."""
    written = settle(a_claim(), outcome, rules=RULES, now=NOW, chance=0.5)
    texts = [written.error, written.reason, written.entry and written.entry.message]

    assert max(len(text or "") for text in texts) <= LONGEST_ERROR_CHARS


@pytest.mark.parametrize(
    ("said", "told"),
    [("a\x00b", "a\ufffdb"), ("a\ud800b", "a?b"), ("a\u2028b é 日", "a\u2028b é 日")],
    ids=ascii,
)
def test_what_people_are_told_can_be_stored_anywhere(said: str, told: str) -> None:
    """A failure that no database can write would leave its job running for ever."""
    outcomes: list[Outcome] = [
        Crashed(said),
        Deferred(1.0, said),
        Expired(said),
        Skipped(said),
        Cancelled(said),
    ]
    for outcome in outcomes:
        written = settle(a_claim(), outcome, rules=RULES, now=NOW, chance=0.5)
        assert told in {written.error, written.reason}
        assert said == told or said not in {
            written.error,
            written.reason,
            written.entry and written.entry.message,
        }


# ---- Every life ----------------------------------------------------------------------------------------------

any_life = settings(deadline=None, max_examples=300)
moments = st.floats(0.0, 1e9)
unfinished: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(
        Failed,
        st.builds(
            Failure,
            kind=st.sampled_from(FailureKind),
            message=st.text(),
            retry_after_s=st.none() | st.floats(0.0, 1e12),
        ),
    ),
    st.builds(Deferred, st.floats(0.0, allow_nan=False), st.text()),
    st.builds(Crashed, st.text()),
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, st.just(b"1")),
    st.builds(Skipped, st.text()),
    st.builds(Cancelled, st.text()),
    st.builds(Expired, st.text()),
    unfinished,
)


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    """Any claim a store can hand out: its attempt is one of those the job has."""
    most = draw(st.integers(1, 100))
    return a_claim(
        attempts=draw(st.integers(1, most)),
        max_attempts=most,
        crashes=draw(st.integers(0, POISON_AFTER - 1)),
        deferrals=draw(st.integers(0, 10**6)),
        revivals=draw(st.integers(0, MOST_REVIVALS)),
        hold=draw(st.booleans()),
        revivable=draw(st.booleans()),
        lane=draw(st.sampled_from(Lane)),
        priority=draw(st.integers(0, 9)),
        run_at=draw(moments),
        expires_at=draw(moments),
    )


lives = given(claim=claims(), outcome=outcomes, now=moments, chance=st.floats(0.0, 1.0, exclude_max=True))


@lives
@any_life
def test_attempts_stay_within_the_bound(claim: Claim, outcome: Outcome, now: float, chance: float) -> None:
    """max_attempts is a promise about money: also no sequence of deferrals may lend an attempt."""
    written = settle(claim, outcome, rules=RULES, now=now, chance=chance)

    assert 0 <= written.attempts <= claim.max_attempts
    assert written.attempts in {claim.attempts, claim.attempts - 1}
    if written.state is JobState.PENDING:
        assert written.attempts < claim.max_attempts, "nobody could claim it any more"


@lives
@any_life
def test_only_failures_and_ends_cost_an_attempt(
    claim: Claim, outcome: Outcome, now: float, chance: float
) -> None:
    """A deferral or a crash never changes how many attempts were made: a claim counts one, they give it back."""
    written = settle(claim, outcome, rules=RULES, now=now, chance=chance)
    given_back = isinstance(outcome, Deferred | Crashed | Expired)

    assert written.attempts == claim.attempts - given_back


@lives
@any_life
def test_no_wait_reaches_past_the_jobs_time(
    claim: Claim, outcome: Outcome, now: float, chance: float
) -> None:
    """A job that would begin after it expired would wait for nothing."""
    written = settle(claim, outcome, rules=RULES, now=now, chance=chance)

    if written.state is JobState.PENDING:
        assert now < claim.expires_at
        assert now <= written.run_at <= claim.expires_at


@lives
@any_life
def test_an_end_has_its_time_and_a_dead_letter_its_reason(
    claim: Claim, outcome: Outcome, now: float, chance: float
) -> None:
    """Retention goes by finished_at, and people go by the reason: a dead letter without one is a riddle."""
    written = settle(claim, outcome, rules=RULES, now=now, chance=chance)

    assert written.state is not JobState.RUNNING
    assert (written.finished_at == now) is written.state.final
    if written.state is JobState.DEAD_LETTER:
        assert written.reason in set(Reason)
        assert written.entry is not None
    if written.state is JobState.PENDING:
        assert written.reason is None


@lives
@any_life
def test_only_the_exhausted_come_back_by_themselves(
    claim: Claim, outcome: Outcome, now: float, chance: float
) -> None:
    """Poison and wrong requests must wait for a person, and nobody comes back a fourth time."""
    written = settle(claim, outcome, rules=RULES, now=now, chance=chance)
    comes_back = written.reason == Reason.EXHAUSTED and claim.revivable and claim.revivals < MOST_REVIVALS
    in_time = now + RULES.revive_after_s < claim.expires_at

    dead = written.state is JobState.DEAD_LETTER
    expected = now + RULES.revive_after_s if comes_back and in_time and dead else None
    assert written.revive_at == expected


@lives
@any_life
def test_three_crashes_are_poison_and_two_a_suspect(
    claim: Claim, outcome: Outcome, now: float, chance: float
) -> None:
    """A job that kills its worker must not kill the whole fleet, one worker after the other."""
    written = settle(claim, outcome, rules=RULES, now=now, chance=chance)

    assert written.crashes == claim.crashes + isinstance(outcome, Crashed)
    assert (written.reason == Reason.POISON and written.state is JobState.DEAD_LETTER) is (
        written.crashes >= POISON_AFTER
    )
    assert written.suspect is (written.state is JobState.PENDING and written.crashes >= SUSPECT_AFTER)


@lives
@any_life
def test_a_place_in_line_is_never_better_than_it_was(
    claim: Claim, outcome: Outcome, now: float, chance: float
) -> None:
    """Failing must not be a way to get ahead of others."""
    claim = msgspec.structs.replace(claim, run_at=min(claim.run_at, now))
    written = settle(claim, outcome, rules=RULES, now=now, chance=chance)

    assert written.due >= due(claim.run_at, claim.priority, claim.lane)


@lives
@any_life
def test_whatever_is_written_carries_the_claims_lease(
    claim: Claim, outcome: Outcome, now: float, chance: float
) -> None:
    """The lease fences a worker that was declared dead: without it, it would write over its successor."""
    written = settle(claim, outcome, rules=RULES, now=now, chance=chance)

    assert (written.id, written.lease) == (claim.id, claim.lease)
    assert written.result is None or isinstance(outcome, Completed)
    assert written.entry is None or written.entry.attempt == claim.attempts


@given(
    script=st.lists(unfinished),
    most=st.integers(1, 5),
)
@any_life
def test_a_whole_life_makes_no_more_attempts_than_it_may(script: list[Outcome], most: int) -> None:
    """Claimed again and again, as a store would: failures that counted never outnumber max_attempts."""
    job, counted = a_claim(attempts=0, max_attempts=most, run_at=0.0, expires_at=math.inf), 0
    for number, outcome in enumerate(script):
        claim = msgspec.structs.replace(job, attempts=job.attempts + 1, lease=number)
        written = settle(claim, outcome, rules=RULES, now=float(number), chance=0.5)
        counted += isinstance(outcome, Failed)
        if written.state.final:
            break
        job = msgspec.structs.replace(
            claim, attempts=written.attempts, crashes=written.crashes, deferrals=written.deferrals
        )

    assert counted <= most
