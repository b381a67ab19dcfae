"""Spacing and per-minute limits under any sequence of calls, compared with a model that simply counts."""

import itertools
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.pacing import Pacing, PacingRules, Reservation
from headgate.core.problems import InvalidSettings

MINUTE = 60.0
HAIR = 1e-6

gaps = st.sampled_from([0.0, 0.0, 0.3, 1.0, 7.5, 59.9, 60.0, 61.0]) | st.floats(0, 90)


def rules(*, interval_s: float = 0.0, requests: int | None = None, tokens: int | None = None) -> PacingRules:
    return PacingRules(interval_s=interval_s, requests_per_minute=requests, tokens_per_minute=tokens)


def spaced(interval_s: float) -> Pacing:
    return Pacing(rules(interval_s=interval_s))


def drive(pacing: Pacing, calls: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Start every call as early as it may, as a gate with free slots does."""
    now = 1000.0
    starts = []
    for gap_s, size in calls:
        now += gap_s
        now = max(now, pacing.next_at(now, size))
        # When the instant has come the call may go: a gate that asks again must not be sent away again.
        assert pacing.next_at(now, size) <= now
        pacing.start(now, size)
        starts.append((now, size))
    return starts


# ---- The promise --------------------------------------------------------------------------------------


@given(
    interval_s=st.sampled_from([0.0, 0.1, 0.7, 3.0, 100.0]),
    requests=st.none() | st.integers(1, 8),
    tokens=st.none() | st.just(100),
    calls=st.lists(st.tuples(gaps, st.integers(0, 100)), max_size=60),
)
@settings(deadline=None, max_examples=200)
def test_no_minute_holds_more_than_its_limits(
    interval_s: float, requests: int | None, tokens: int | None, calls: list[tuple[float, int]]
) -> None:
    starts = drive(Pacing(rules(interval_s=interval_s, requests=requests, tokens=tokens)), calls)

    for position, (at, _) in enumerate(starts):
        minute = [size for start, size in starts[position:] if start < at + MINUTE - HAIR]
        assert requests is None or len(minute) <= requests
        # A call above half of the window counts as half, so that no call needs an empty one.
        assert tokens is None or sum(min(size, tokens / 2) for size in minute) <= tokens
    for (earlier, _), (later, _) in itertools.pairwise(starts):
        assert later - earlier >= interval_s - HAIR


@given(calls=st.lists(st.tuples(gaps, st.integers(1, 300)), max_size=40))
@settings(deadline=None, max_examples=100)
def test_calls_of_any_size_all_go_in_the_end(calls: list[tuple[float, int]]) -> None:
    """Larger than the whole window too: waiting for a window that can never be would be waiting for ever."""
    starts = drive(Pacing(rules(tokens=100)), calls)

    assert all(math.isfinite(at) for at, _ in starts)
    for first, _, third in zip(starts, starts[1:], starts[2:], strict=False):
        if min(size for _, size in starts) > 50:
            assert third[0] >= first[0] + MINUTE - HAIR, "two of them fill a window"


def test_an_idle_upstream_is_called_at_once() -> None:
    pacing = Pacing(rules(interval_s=5, requests=1, tokens=10))

    assert pacing.next_at(3.0, 10) <= 3.0


def test_without_rules_nothing_is_paced() -> None:
    pacing = Pacing(PacingRules())

    assert not pacing.active
    assert pacing.starts_per_s == math.inf


@pytest.mark.parametrize("rule", [{"interval_s": 0.1}, {"requests": 1}, {"tokens": 1}])
def test_any_single_rule_makes_pacing_active(rule: dict[str, int]) -> None:
    assert Pacing(rules(**rule)).active


def test_spacing_counts_from_the_last_start() -> None:
    pacing = spaced(10.0)
    pacing.start(100.0, 0)

    assert pacing.next_at(104.0, 0) == 110.0
    assert pacing.next_at(110.0, 0) == 110.0
    assert pacing.next_at(200.0, 0) <= 200.0


def test_a_full_minute_opens_when_its_oldest_start_leaves() -> None:
    pacing = Pacing(rules(requests=3))
    for at in (0.0, 10.0, 20.0):
        pacing.start(at, 0)

    assert pacing.next_at(20.0, 0) == 60.0
    assert pacing.next_at(60.0, 0) <= 60.0


def test_a_large_call_waits_until_enough_tokens_have_left() -> None:
    pacing = Pacing(rules(tokens=100))
    for at, size in ((0.0, 30), (10.0, 30), (20.0, 30)):
        pacing.start(at, size)

    assert [pacing.next_at(20.0, size) for size in (10, 11, 40, 41, 50, 71)] == [20, 60, 60, 70, 70, 70]


def test_a_call_larger_than_the_window_goes_when_half_of_the_window_is_free() -> None:
    pacing = Pacing(rules(tokens=100))
    pacing.start(0.0, 50)
    assert pacing.next_at(0.0, 250) <= 0.0
    pacing.start(0.0, 1)

    assert pacing.next_at(1.0, 250) == 60.0
    assert pacing.next_at(60.0, 250) <= 60.0


def test_beside_a_call_larger_than_the_window_others_have_half_of_it() -> None:
    pacing = Pacing(rules(tokens=100))
    pacing.start(0.0, 250)

    assert pacing.next_at(1.0, 50) <= 1.0
    pacing.start(1.0, 50)
    assert pacing.next_at(1.0, 1) == 60.0


def test_the_slowest_rule_decides() -> None:
    pacing = Pacing(rules(interval_s=2.0, requests=1, tokens=100))
    pacing.start(0.0, 90)

    assert pacing.next_at(0.0, 1) == 60.0
    assert pacing.next_at(0.0, 20) == 60.0


def test_an_interval_longer_than_the_window_still_holds() -> None:
    pacing = spaced(3600.0)
    pacing.start(0.0, 0)

    assert pacing.next_at(61.0, 0) == 3600.0


# ---- Usage ----------------------------------------------------------------------------------------------


def test_reported_usage_takes_the_place_of_the_estimate() -> None:
    pacing = Pacing(rules(tokens=100))
    reservation = pacing.start(0.0, 50)
    pacing.start(0.0, 30)
    assert pacing.next_at(1.0, 30) == 60.0

    pacing.settle(reservation, 20)

    assert pacing.next_at(1.0, 30) <= 1.0


def test_usage_above_the_estimate_counts_as_well() -> None:
    pacing = Pacing(rules(tokens=100))
    pacing.settle(pacing.start(0.0, 10), 95)

    assert pacing.next_at(1.0, 10) == 60.0


def test_usage_told_twice_counts_once() -> None:
    """A stream may report its usage in two chunks; the last word counts."""
    pacing = Pacing(rules(tokens=100))
    reservation = pacing.start(0.0, 50)

    pacing.settle(reservation, 40)
    pacing.settle(reservation, 50)

    assert pacing._tokens == 50


def test_a_call_that_ended_without_usage_keeps_its_start_but_not_its_tokens() -> None:
    pacing = Pacing(rules(requests=1, tokens=100))
    pacing.release_tokens(pacing.start(0.0, 100))

    assert pacing.next_at(1.0, 100) == 60.0
    assert pacing._tokens == 0
    assert Pacing(rules(tokens=100)).next_at(1.0, 100) <= 1.0


def test_tokens_released_twice_are_released_once() -> None:
    pacing = Pacing(rules(tokens=100))
    first, second = pacing.start(0.0, 40), pacing.start(0.0, 40)
    pacing.start(0.0, 15)
    pacing.release_tokens(first)
    pacing.release_tokens(first)

    assert pacing.next_at(1.0, 45) <= 1.0
    assert pacing.next_at(1.0, 46) == 60.0
    assert second.counts


def test_usage_that_comes_after_the_minute_counts_no_more() -> None:
    """A call of ten minutes reports its usage when its start has long left the window."""
    pacing = Pacing(rules(tokens=100))
    late = pacing.start(0.0, 50)
    pacing.next_at(61.0, 0)
    pacing.start(61.0, 40)

    pacing.settle(late, 50)
    pacing.release_tokens(late)
    pacing.undo(late)

    assert pacing._tokens == 40
    assert pacing._requests == 1


def test_estimates_learn_from_usage() -> None:
    """A provider that counts twice as much as we guess must not be overrun again and again."""
    pacing = Pacing(rules(tokens=1000))
    now = 0.0
    for _ in range(100):
        now += 100.0
        pacing.next_at(now, 100)
        pacing.settle(pacing.start(now, 100), 200)

    pacing.next_at(now + 100, 100)
    assert pacing.start(now + 100, 100).tokens == pytest.approx(200, rel=0.01)


def test_an_exact_estimate_teaches_nothing() -> None:
    pacing = Pacing(rules(tokens=1000))
    pacing.settle(pacing.start(0.0, 100), 100)

    assert pacing.start(0.0, 100).tokens == 100


def test_usage_of_a_call_that_estimated_nothing_is_counted() -> None:
    pacing = Pacing(rules(tokens=100))
    pacing.settle(pacing.start(0.0, 0), 95)

    assert pacing.next_at(1.0, 10) == 60.0


# ---- Never sent -------------------------------------------------------------------------------------------


def test_a_start_that_was_never_sent_frees_the_spacing() -> None:
    """A slot handed to a caller that was just cancelled must not cost the next one an interval."""
    pacing = spaced(10.0)
    pacing.start(0.0, 0)
    pacing.undo(pacing.start(10.0, 0))

    assert pacing.next_at(10.0, 0) == 10.0


def test_undoing_the_only_start_leaves_no_trace() -> None:
    pacing = Pacing(rules(interval_s=10.0, requests=1, tokens=10))
    pacing.undo(pacing.start(0.0, 10))

    assert pacing.next_at(0.0, 10) <= 0.0


def test_undoing_an_earlier_start_keeps_the_spacing_of_the_last() -> None:
    pacing = spaced(10.0)
    earlier = pacing.start(0.0, 0)
    pacing.start(10.0, 0)

    pacing.undo(earlier)

    assert pacing.next_at(10.0, 0) == 20.0


def test_undoing_twice_undoes_once() -> None:
    pacing = Pacing(rules(requests=2, tokens=100))
    first = pacing.start(0.0, 40)
    pacing.start(0.0, 40)

    pacing.undo(first)
    pacing.undo(first)

    assert pacing._requests == 1
    assert pacing._tokens == 40


@dataclass
class Naive:
    """Every start ever, counted anew at each question."""

    rules: PacingRules
    sent: dict[Reservation, float] = field(default_factory=dict)
    """Tokens of each start that counts."""

    def totals(self, now: float) -> tuple[int, float]:
        tokens = [size for start, size in self.sent.items() if start.at > now - MINUTE]
        return len(tokens), sum(tokens)

    def opens_at(self, now: float, tokens: float, *, slack: float) -> float:
        leaves = (start.at + MINUTE for start in self.sent)
        return min(at for at in (now, *leaves) if at >= now and self.fits(at, tokens, slack=slack))

    def fits(self, now: float, tokens: float, *, slack: float) -> bool:
        requests, used = self.totals(now)
        most_requests = self.rules.requests_per_minute or math.inf
        most_tokens = self.rules.tokens_per_minute or math.inf
        # With tight slack an empty window must still take a call of its full size.
        return requests < most_requests and (
            requests == 0 or used + min(tokens, most_tokens / 2) <= most_tokens + slack
        )


steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "settle", "release", "undo"]),
        st.sampled_from([0.0, 0.5, 4.0, 20.0, 59.5]),
        st.integers(0, 120),
    ),
    max_size=60,
)


@given(requests=st.none() | st.integers(1, 5), tokens=st.none() | st.just(100), steps=steps, data=st.data())
@settings(deadline=None, max_examples=200)
def test_totals_agree_with_a_model_that_counts_anew(
    requests: int | None,
    tokens: int | None,
    steps: list[tuple[str, float, int]],
    data: st.DataObject,
) -> None:
    naive = Naive(rules(requests=requests, tokens=tokens))
    pacing = Pacing(naive.rules)
    reservations: list[Reservation] = []
    now = 0.0
    for act, gap_s, size in steps:
        now += gap_s
        if act == "start":
            now = max(now, pacing.next_at(now, size))
            reservations.append(pacing.start(now, size))
            naive.sent[reservations[-1]] = reservations[-1].tokens
        elif reservations:
            settle_one(pacing, naive, act, data.draw(st.sampled_from(reservations)), size)
        compare(pacing, naive, now, size)


def settle_one(pacing: Pacing, naive: Naive, act: str, reservation: Reservation, size: int) -> None:
    if act == "undo":
        pacing.undo(reservation)
        naive.sent.pop(reservation, None)
        return
    if act == "settle":
        pacing.settle(reservation, size)
    else:
        pacing.release_tokens(reservation)
    if reservation in naive.sent:
        naive.sent[reservation] = size if act == "settle" else 0


def compare(pacing: Pacing, naive: Naive, now: float, size: int) -> None:
    next_at = max(now, pacing.next_at(now, size))
    requests, used = naive.totals(now)
    assert pacing._requests == requests
    assert pacing._tokens == pytest.approx(used, abs=HAIR)
    tokens = size * pacing._correction
    # Rounding may tip an exact fit either way; the truth lies between the lenient and the strict model.
    earliest = naive.opens_at(now, tokens, slack=HAIR)
    latest = naive.opens_at(now, tokens, slack=-HAIR)
    assert earliest <= next_at <= latest


# ---- The rate it allows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_rules", "rate"),
    [
        (rules(interval_s=4.0), 0.25),
        (rules(requests=30), 0.5),
        (rules(interval_s=4.0, requests=6), 0.1),
        (rules(tokens=100), math.inf),
    ],
)
def test_the_sustained_rate_follows_from_the_rules(given_rules: PacingRules, rate: float) -> None:
    assert Pacing(given_rules).starts_per_s == pytest.approx(rate)


def test_the_rate_of_tokens_follows_from_the_calls_seen() -> None:
    pacing = Pacing(rules(tokens=600))
    pacing.start(0.0, 10)
    pacing.start(0.0, 30)

    assert pacing.starts_per_s == pytest.approx(0.5)


def test_calls_that_freed_their_tokens_do_not_stop_the_estimate() -> None:
    pacing = Pacing(rules(tokens=600))
    pacing.release_tokens(pacing.start(0.0, 10))

    assert pacing.starts_per_s == math.inf


# ---- Bad rules --------------------------------------------------------------------------------------------


def test_all_mistakes_of_pacing_rules_are_told_at_once() -> None:
    with pytest.raises(InvalidSettings) as refused:
        rules(interval_s=math.nan, requests=0, tokens=-1)

    assert [problem.path for problem in refused.value.problems] == [
        "interval_s",
        "requests_per_minute",
        "tokens_per_minute",
    ]


@pytest.mark.parametrize("interval_s", [-0.1, 3600.1, math.inf])
def test_an_interval_out_of_its_range_is_refused(interval_s: float) -> None:
    with pytest.raises(InvalidSettings, match="interval_s"):
        rules(interval_s=interval_s)


# ---- Tenants ------------------------------------------------------------------------------------------------------


def _of_tenants(most: int = 1000) -> Pacing:
    return Pacing(PacingRules(tokens_per_minute=most))


def test_alone_a_tenant_may_use_the_whole_window() -> None:
    pacing = _of_tenants()
    for _ in range(10):
        assert pacing.next_at(0.0, 100, "a") <= 0.0
        pacing.start(0.0, 100, "a")

    assert pacing.next_at(0.0, 100, "a") == 60.0


def test_a_tenant_leaves_others_twice_as_much_as_they_used() -> None:
    pacing = _of_tenants()
    pacing.settle(other := pacing.start(0.0, 100, "b"), 100)
    pacing.ended(other)
    for _ in range(8):
        assert pacing.next_at(1.0, 100, "a") <= 1.0
        pacing.ended(pacing.start(1.0, 100, "a"))

    assert pacing.next_at(1.0, 100, "a") > 1.0
    assert pacing.next_at(1.0, 100, "b") <= 1.0


def test_running_calls_of_one_tenant_reserve_at_most_half_while_others_call() -> None:
    """An estimate of millions costs nothing to make; it must not shut the window for the others."""
    pacing = _of_tenants()
    pacing.ended(pacing.start(0.0, 10, "b"))
    pacing.start(0.0, 300, "a")
    second = pacing.start(0.0, 200, "a")

    assert pacing.next_at(0.0, 100, "a") > 0.0
    assert pacing.next_at(0.0, 100, "b") <= 0.0
    pacing.ended(second)
    assert pacing.next_at(0.0, 100, "a") <= 0.0
