"""The mirror of a provider's quotas: when the next call fits, what refused calls cost, which answer counts."""

import math
from datetime import UTC, datetime
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from headgate.core.allowance import TEST_CALLS, TEST_S, Allowance, Quota, Quotas, read_quotas
from headgate.core.start import Outcome, Start

SOON = pytest.approx
WHAT = ("requests", "tokens")
LONGEST_S = 300.0


class Mirror:
    """An allowance and the starts it hears of, as `Intake` tells it."""

    def __init__(self) -> None:
        self.allowance = Allowance(LONGEST_S)
        self.allowance._test_at = math.inf  # What tests the headers has tests of its own, below.
        self.starts: list[Start] = []
        self._numbers = count(1)

    def start(self, now: float, *, tokens: float = 0.0) -> Start:
        start = Start(now, next(self._numbers), tokens, "tenant", probe=False)
        self.starts.append(start)
        if self.allowance.known:
            self.allowance.started(now, tokens)
        return start

    def read(self, start: Start, *, requests: Quota | None = None, tokens: Quota | None = None) -> None:
        self.allowance.read(start, Quotas(requests, tokens), reversed(self.starts))

    def refuse(self, now: float, start: Start) -> None:
        start.refused = True
        self.allowance.refused(now, start)

    def next_at(self, now: float, *, tokens: float = 0.0) -> float:
        return self.allowance.next_at(now, tokens)


def test_nothing_is_held_back_before_an_answer_described_a_quota() -> None:
    mirror = Mirror()
    first = mirror.start(5.0)
    mirror.read(first)

    assert not mirror.allowance.known
    assert mirror.next_at(5.0, tokens=1e9) == 5.0


def test_an_exhausted_quota_lets_the_next_call_go_when_it_has_been_refilled_not_when_it_is_full() -> None:
    """`remaining: 0, reset: 60s` of 60 is one call a second; waiting for the reset would waste fifty-nine."""
    mirror = Mirror()
    mirror.read(mirror.start(0.0), requests=Quota(limit=60, remaining=0, reset_s=60))

    assert mirror.next_at(0.0) == SOON(1.0, abs=1e-3)
    assert mirror.next_at(1.001) == 1.001


def test_an_exhausted_quota_then_takes_as_many_calls_as_are_refilled() -> None:
    mirror = Mirror()
    mirror.read(mirror.start(0.0), requests=Quota(limit=60, remaining=0, reset_s=60))

    starts: list[float] = []
    now = 0.0
    while len(starts) < 10:
        now = max(now, mirror.next_at(now))
        if mirror.next_at(now) <= now:
            starts.append(now)
            mirror.start(now)

    assert starts == SOON([float(second) for second in range(1, 11)], abs=1e-3)


def test_what_is_left_may_go_at_once() -> None:
    mirror = Mirror()
    mirror.read(mirror.start(0.0), requests=Quota(limit=100, remaining=3, reset_s=97))

    for _ in range(3):
        assert mirror.next_at(0.0) == 0.0
        mirror.start(0.0)
    assert mirror.next_at(0.0) == SOON(1.0, abs=1e-3)


def test_starts_since_the_one_that_was_answered_are_subtracted() -> None:
    """The answer is seconds old when it arrives; it knows nothing of what was started meanwhile."""
    mirror = Mirror()
    answered = mirror.start(0.0)
    for _ in range(3):
        mirror.start(1.0)

    mirror.read(answered, requests=Quota(limit=100, remaining=3, reset_s=97))

    assert mirror.next_at(0.0) == SOON(1.0, abs=1e-3)


def test_starts_before_the_one_that_was_answered_are_counted_by_the_provider() -> None:
    mirror = Mirror()
    for _ in range(50):
        mirror.start(0.0)
    mirror.read(mirror.start(0.0), requests=Quota(limit=100, remaining=1, reset_s=99))

    assert mirror.next_at(0.0) == 0.0


def test_a_refill_never_overflows_the_bucket() -> None:
    """After minutes of rest a quota of three takes three calls at once, not hundreds."""
    mirror = Mirror()
    mirror.read(mirror.start(0.0), requests=Quota(limit=3, remaining=0, reset_s=3))

    for _ in range(3):
        assert mirror.next_at(200.0) == 200.0
        mirror.start(200.0)
    assert mirror.next_at(200.0) == SOON(201.0, abs=1e-3)


# ---- Refused calls ------------------------------------------------------------------------------------------


def test_a_refused_call_costs_nothing() -> None:
    mirror = Mirror()
    mirror.read(mirror.start(0.0), requests=Quota(limit=60, remaining=2, reset_s=58))
    first, second = mirror.start(0.0), mirror.start(0.0)
    assert mirror.next_at(0.0) > 0.0

    mirror.refuse(0.0, first)
    mirror.refuse(0.0, second)

    for _ in range(2):
        assert mirror.next_at(0.0) == 0.0
        mirror.start(0.0)
    assert mirror.next_at(0.0) > 0.0


def test_a_call_refused_before_the_answer_was_read_is_not_subtracted() -> None:
    mirror = Mirror()
    answered, refused = mirror.start(0.0), mirror.start(0.0)
    mirror.refuse(0.0, refused)

    mirror.read(answered, requests=Quota(limit=60, remaining=1, reset_s=59))

    assert mirror.next_at(0.0) == 0.0


def test_the_refused_call_that_described_the_quota_gives_nothing_back() -> None:
    """What it says is left is left after its own refusal."""
    mirror = Mirror()
    refused = mirror.start(0.0)
    mirror.read(refused, requests=Quota(limit=60, remaining=0, reset_s=60))

    mirror.refuse(0.0, refused)

    assert mirror.next_at(0.0) == SOON(1.0, abs=1e-3)


def test_a_call_refused_late_that_the_provider_had_judged_before_gives_nothing_back() -> None:
    mirror = Mirror()
    refused, answered = mirror.start(0.0), mirror.start(0.0)
    mirror.read(answered, requests=Quota(limit=60, remaining=0, reset_s=60))

    mirror.refuse(0.0, refused)

    assert mirror.next_at(0.0) == SOON(1.0, abs=1e-3)


# ---- Which answer counts --------------------------------------------------------------------------------------


def test_an_older_answer_does_not_overwrite_a_newer_one() -> None:
    """Answers overtake each other; the one that was started last knows best."""
    mirror = Mirror()
    slow, fast = mirror.start(0.0), mirror.start(0.5)
    mirror.read(fast, requests=Quota(limit=60, remaining=0, reset_s=60))

    mirror.read(slow, requests=Quota(limit=60, remaining=50, reset_s=10))

    assert mirror.next_at(0.5) == SOON(1.5, abs=1e-3)


def test_a_newer_answer_replaces_the_older_one() -> None:
    mirror = Mirror()
    mirror.read(mirror.start(0.0), requests=Quota(limit=60, remaining=0, reset_s=60))

    mirror.read(mirror.start(0.5), requests=Quota(limit=60, remaining=20, reset_s=40))

    assert mirror.next_at(0.5) == 0.5


def test_an_answer_that_says_nothing_of_a_quota_leaves_it_as_it_is() -> None:
    mirror = Mirror()
    exhausted = Quota(limit=60, remaining=0, reset_s=60)
    mirror.read(mirror.start(0.0), requests=exhausted, tokens=exhausted)

    mirror.read(mirror.start(0.0), tokens=Quota(limit=60, remaining=59, reset_s=1))

    assert mirror.next_at(0.0) > 1.0


# ---- Tokens -----------------------------------------------------------------------------------------------------


def test_a_small_call_may_go_while_a_large_one_has_to_wait() -> None:
    mirror = Mirror()
    mirror.read(mirror.start(0.0), tokens=Quota(limit=6000, remaining=500, reset_s=55))

    assert mirror.next_at(0.0, tokens=500) == 0.0
    assert mirror.next_at(0.0, tokens=800) == SOON(3.0, abs=1e-3)


def test_both_quotas_must_have_room() -> None:
    requests, tokens = Quota(limit=60, remaining=0, reset_s=60), Quota(limit=6000, remaining=0, reset_s=60)
    mirror = Mirror()
    mirror.read(mirror.start(0.0), requests=requests, tokens=tokens)

    assert mirror.next_at(0.0, tokens=10) == SOON(1.0, abs=1e-3)
    assert mirror.next_at(0.0, tokens=1000) == SOON(10.0, abs=1e-3)


def test_a_call_larger_than_the_whole_quota_goes_when_the_bucket_is_full() -> None:
    """Otherwise it would wait for ever; the provider decides what becomes of it."""
    mirror = Mirror()
    mirror.read(mirror.start(0.0), tokens=Quota(limit=1000, remaining=500, reset_s=50))

    assert mirror.next_at(0.0, tokens=10**9) == SOON(50.0, abs=1e-3)


@pytest.mark.parametrize(
    "reset_s", [1e6, 1_763_553_600.0], ids=["eleven days", "a date in seconds since 1970"]
)
def test_no_quota_keeps_a_call_back_for_longer_than_the_longest_wait(reset_s: float) -> None:
    """The setting bounds what a provider may ask for, whichever header it asks in."""
    mirror = Mirror()
    quota = Quota(limit=60, remaining=0, reset_s=reset_s)
    mirror.read(mirror.start(0.0), requests=quota, tokens=quota)
    mirror.start(0.0, tokens=1e6)

    assert mirror.next_at(10.0, tokens=1e6) <= 10.0 + LONGEST_S
    assert mirror.next_at(LONGEST_S, tokens=1e6) <= LONGEST_S


# ---- Headers that are wrong ---------------------------------------------------------------------------------------

ZEROS = Quota(limit=60, remaining=0, reset_s=6000)
"""One call in a hundred seconds, if it is true."""


def exhausted() -> Allowance:
    allowance = Allowance(LONGEST_S)
    allowance.read(Start(0.0, 1, 0.0, "tenant", probe=False), Quotas(requests=ZEROS), [])
    return allowance


def send_tests(allowance: Allowance, now: float, *outcomes: Outcome) -> None:
    """So many calls start now that the headers would keep waiting, and end so."""
    for _ in outcomes:
        assert allowance.next_at(now, 0.0) <= now
        assert allowance.started(now, 0.0)
    for outcome in outcomes:
        allowance.tested(now, outcome)


def test_headers_that_keep_calls_waiting_are_tested_by_a_few_calls() -> None:
    allowance = exhausted()

    assert allowance.next_at(0.0, 0.0) == TEST_S[0]
    for _ in range(TEST_CALLS):
        assert allowance.next_at(2.0, 0.0) == 2.0
        allowance.started(2.0, 0.0)
    assert allowance.next_at(2.0, 0.0) > 90.0


def test_headers_are_ignored_when_calls_pass_that_they_would_have_kept_waiting() -> None:
    """Azure has sent zeros; others count tokens otherwise than we do."""
    allowance = exhausted()
    allowance.next_at(0.0, 0.0)

    send_tests(allowance, 2.0, *[Outcome.ANSWERED] * TEST_CALLS)

    assert allowance.next_at(2.0, 0.0) == 2.0


def test_headers_that_prove_right_are_tested_ever_less() -> None:
    allowance = exhausted()
    now, gaps = 0.0, []
    for _ in range(8):
        test_at = allowance.next_at(now, 0.0)
        gaps.append(test_at - now)
        now = test_at
        send_tests(allowance, now, Outcome.THROTTLED)

    assert gaps == SOON([2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0])


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNKNOWN, Outcome.BROKE])
def test_a_test_that_says_nothing_is_made_again(outcome: Outcome) -> None:
    allowance = exhausted()
    allowance.next_at(0.0, 0.0)

    send_tests(allowance, 2.0, *[outcome] * TEST_CALLS)

    assert allowance.next_at(2.0, 0.0) == 2.0


def test_headers_that_were_wrong_are_believed_again_when_they_prove_right() -> None:
    allowance = exhausted()
    allowance.next_at(0.0, 0.0)
    send_tests(allowance, 2.0, *[Outcome.ANSWERED] * TEST_CALLS)

    send_tests(allowance, 2.0, Outcome.THROTTLED, Outcome.ANSWERED, *[Outcome.THROTTLED] * (TEST_CALLS - 1))
    assert allowance.next_at(2.0, 0.0) == 2.0, "not so many in a row"
    send_tests(allowance, 3.0, Outcome.THROTTLED)

    assert allowance.next_at(3.0, 0.0) > 3.0


# ---- Whatever is described ----------------------------------------------------------------------------------------

amounts = (st.floats(0, 1e12) | st.floats(0)).map(str)


@given(limit=amounts, remaining=amounts, reset=amounts, tokens=st.floats(0, 1e9))
@example(limit="60", remaining="0", reset="9" * 400 + "s", tokens=0.0)
@example(limit="5e-324", remaining="0", reset="60", tokens=10.0)
@settings(deadline=None, max_examples=300)
def test_no_header_breaks_the_mirror(limit: str, remaining: str, reset: str, tokens: float) -> None:
    """It is asked before each call: raising there would stop an upstream that works."""
    said = {"limit": limit, "remaining": remaining, "reset": reset}
    quotas = read_quotas(
        [
            (f"x-ratelimit-{part}-{what}".encode(), text.encode())
            for part, text in said.items()
            for what in WHAT
        ],
        lambda: datetime(2026, 11, 19, tzinfo=UTC),
    )
    mirror = Mirror()
    first = mirror.start(0.0)
    if quotas is not None:
        mirror.allowance.read(first, quotas, [first])

    for now in (0.0, 1.0, 3600.0):
        assert mirror.next_at(now, tokens=tokens) >= now
        mirror.start(now, tokens=tokens)


@given(
    rate=st.floats(0.5, 50),
    depth=st.integers(2, 200),
    used=st.integers(1, 200),
    gaps_s=st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
@settings(deadline=None, max_examples=200)
def test_a_provider_with_a_bucket_refuses_no_call_that_the_mirror_lets_go(
    rate: float, depth: int, used: int, gaps_s: list[float]
) -> None:
    """One answer is enough to stay below a bucket that nobody else takes from."""
    level, filled_at = depth - min(used, depth), 0.0
    mirror = Mirror()
    reset_s = (depth - level) / rate
    mirror.read(mirror.start(0.0), requests=Quota(depth, level, reset_s))
    now, left = 0.0, float(level)
    for gap_s in gaps_s:
        now = max(now + gap_s, mirror.next_at(now + gap_s))
        left, filled_at = min(depth, left + (now - filled_at) * rate), now
        mirror.start(now)
        assert left >= 1 - 1e-6
        left -= 1
