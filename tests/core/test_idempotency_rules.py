"""What a request with an idempotency key is told: the table, and what holds for every key."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.errors import InvalidRequest
from headgate.core.idempotency import (
    LONGEST_KEY_CHARS,
    IdempotencyRules,
    InProgress,
    KeyRow,
    KeyState,
    Mismatch,
    Replay,
    Run,
    SameJob,
    Unknown,
    Verdict,
    check_key,
    decide,
)

NOW = 1000.0
FRESH = int(NOW * 1e6)
"""The lease of a key that is taken now: time itself."""
BODY = b"hash of the body"
OTHER = b"hash of another"


def a_row(state: KeyState, **changes: Any) -> KeyRow:
    usual: dict[str, Any] = {
        "state": state,
        "request_hash": BODY,
        "lease": 5,
        "owner": "n1",
        "expires_at": NOW + 1,
    }
    return KeyRow(**{**usual, **changes})


RESERVED, SENT = a_row(KeyState.RESERVED), a_row(KeyState.SENT)
DONE = a_row(KeyState.DONE, owner=None, response_status=201, response_body=b"answer")
JOB = a_row(KeyState.DONE, owner=None, job_id="j1")

THE_TABLE: list[tuple[str, KeyRow | None, dict[str, Any], Verdict]] = [
    ("a key nobody has is taken", None, {}, Run(FRESH)),
    ("an expired key runs anew", a_row(KeyState.DONE, expires_at=NOW), {}, Run(FRESH)),
    ("also for another body", a_row(KeyState.DONE, expires_at=NOW - 1, request_hash=OTHER), {}, Run(FRESH)),
    ("also while its owner lives", a_row(KeyState.SENT, expires_at=NOW), {"lives": True}, Run(FRESH)),
    ("another body is a mistake, done or not", a_row(KeyState.DONE, request_hash=OTHER), {}, Mismatch()),
    (
        "another body is told so before anything else",
        a_row(KeyState.SENT, request_hash=OTHER),
        {},
        Mismatch(),
    ),
    ("what was done is told again", DONE, {}, Replay(201, b"answer")),
    ("whoever lives", DONE, {"lives": True}, Replay(201, b"answer")),
    ("a submission is answered with its job", JOB, {}, SameJob("j1")),
    ("while its owner lives, it is in progress", RESERVED, {"lives": True}, InProgress()),
    ("sent or not", SENT, {"lives": True}, InProgress()),
    ("a dead owner that sent nothing cost nothing", RESERVED, {}, Run(FRESH)),
    ("whatever the operator said", RESERVED, {"unknown": Unknown.REFUSE}, Run(FRESH)),
    ("a dead owner that had sent: run again, and say so", SENT, {}, Run(FRESH, rerun=True)),
    ("or refuse, if the operator said so", SENT, {"unknown": Unknown.REFUSE}, InProgress(unknown=True)),
    (
        "a clock that went back must not repeat a lease",
        a_row(KeyState.RESERVED, lease=FRESH + 50),
        {},
        Run(FRESH + 51),
    ),
    (
        "nor when the key has expired",
        a_row(KeyState.DONE, lease=FRESH + 50, expires_at=NOW),
        {},
        Run(FRESH + 51),
    ),
]


@pytest.mark.parametrize(
    ("row", "case", "expected"), [row[1:] for row in THE_TABLE], ids=[row[0] for row in THE_TABLE]
)
def test_the_table(row: KeyRow | None, case: dict[str, Any], expected: Verdict) -> None:
    """Each of these is somebody's money: paid twice, or an answer that never comes."""
    verdict = decide(
        row,
        BODY,
        owner_lives=case.get("lives", False),
        unknown=case.get("unknown", Unknown.RERUN),
        now=NOW,
    )

    assert verdict == expected


rows = st.builds(
    KeyRow,
    state=st.sampled_from(KeyState),
    request_hash=st.sampled_from([BODY, OTHER]),
    lease=st.integers(0, 2 * FRESH),
    owner=st.none() | st.just("n1"),
    expires_at=st.floats(0.0, 2 * NOW),
    job_id=st.none() | st.just("j1"),
    response_status=st.just(200),
    response_body=st.just(b"answer"),
)
any_key = settings(deadline=None, max_examples=300)
situations = given(
    row=rows, lives=st.booleans(), unknown=st.sampled_from(Unknown), now=st.floats(0.0, 2 * NOW)
)


@situations
@any_key
def test_a_new_lease_is_above_every_old_one(row: KeyRow, lives: bool, unknown: Unknown, now: float) -> None:
    """Two owners with one lease could each finish the other's work."""
    verdict = decide(row, BODY, owner_lives=lives, unknown=unknown, now=now)

    if isinstance(verdict, Run):
        assert verdict.lease > row.lease
        assert verdict.lease >= int(now * 1e6), "a key purged meanwhile would start below its old lease"


@situations
@any_key
def test_a_body_gets_only_its_own_answer(row: KeyRow, lives: bool, unknown: Unknown, now: float) -> None:
    """The answer to another request must never be told, whatever state the key is in."""
    verdict = decide(row, BODY, owner_lives=lives, unknown=unknown, now=now)

    if isinstance(verdict, Replay | SameJob | InProgress):
        assert row.request_hash == BODY
        assert now < row.expires_at


@situations
@any_key
def test_nobody_runs_what_another_is_at(row: KeyRow, lives: bool, unknown: Unknown, now: float) -> None:
    """Run while the owner lives would be the double call that keys exist to prevent."""
    verdict = decide(row, BODY, owner_lives=lives, unknown=unknown, now=now)

    if isinstance(verdict, Run) and now < row.expires_at:
        assert not lives
        assert row.state is not KeyState.DONE
        assert verdict.rerun is (row.state is KeyState.SENT)


@pytest.mark.parametrize("key", ["k", "a key with spaces", "schlüssel-日本", "k" * LONGEST_KEY_CHARS])
def test_a_printable_key_is_taken_as_it_is(key: str) -> None:
    """Keys are the caller's own: not trimmed, not folded, not hashed."""
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    ["", "k" * (LONGEST_KEY_CHARS + 1), "a\nb", "a\x00b", "\t", "\u2028", "\ud800", None, 5, b"bytes", ["k"]],
    ids=ascii,
)
def test_a_key_that_cannot_be_one_is_refused_by_name(key: object) -> None:
    """NUL cannot be stored everywhere and line ends would split headers: refused at the door, once for all."""
    with pytest.raises(InvalidRequest, match="1–255 printable") as refusal:
        check_key(key)

    assert refusal.value.param == "idempotency_key"


def test_retention_is_counted_in_hours() -> None:
    """Operators say hours; the store wants seconds."""
    assert IdempotencyRules(retention_h=1.5).retention_s == 5400.0
