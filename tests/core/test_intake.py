"""Which runs of refusals close an upstream and which do not; what a reload keeps, and what headers forbid."""

import math

import pytest
from core.intake_stage import RUN, TENANT, Story, call, calls, close, closed, own, play, started, steady
from weathers.kinds import Calm

from headgate.core.allowance import Quota, Quotas
from headgate.core.intake import CHANCE, GRACE_S, PROBE_S, Closed, Intake
from headgate.core.start import Outcome

GRACE = GRACE_S[0]
ANSWERED, THROTTLED, FAILED, BROKE, UNKNOWN = (
    Outcome.ANSWERED,
    Outcome.THROTTLED,
    Outcome.FAILED,
    Outcome.BROKE,
    Outcome.UNKNOWN,
)
REFUSALS = [THROTTLED, FAILED, BROKE]


def may_start(intake: Intake, now: float) -> bool:
    return intake.opens_at(now, 0) <= now


def accustomed(share: float, *, outcome: Outcome = THROTTLED) -> Intake:
    """So large a share of its calls was refused until 0, never two in a row."""
    intake = own(8)
    refused = 0.0
    for number in range(1000):
        refused += share
        call(intake, (number - 1000) / 10, outcome if refused >= 1 else ANSWERED, took_s=0.01)
        refused -= refused >= 1
    assert not intake.closed
    return intake


# ---- What closes it -----------------------------------------------------------------------------------------


def test_a_new_upstream_takes_calls_at_once() -> None:
    intake = own(8)

    assert may_start(intake, 0.0)
    assert not intake.closed


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_run_of_refusals_too_long_to_be_chance_closes(refusal: Outcome) -> None:
    intake = own(8)
    calls(intake, refusal, RUN - 1)
    assert may_start(intake, 0.02)

    calls(intake, refusal, 1)

    assert intake.closed
    assert intake.news == [Closed(refusal is not THROTTLED, PROBE_S[0], TENANT)]
    assert not may_start(intake, 0.02)


def test_a_single_refusal_holds_nobody_back() -> None:
    intake = own(8)

    call(intake, 0.0, THROTTLED, hint_s=60.0)

    assert may_start(intake, 0.02)


def test_throttles_and_failures_in_one_run_count_together() -> None:
    intake = own(8)
    for number in range(RUN):
        calls(intake, THROTTLED if number % 2 else FAILED, 1)

    assert intake.closed


def test_an_answer_between_them_ends_a_run() -> None:
    intake = own(8)
    for _ in range(50):
        calls(intake, THROTTLED, RUN - 1)
        calls(intake, ANSWERED, 1)

    assert not intake.closed


@pytest.mark.parametrize("outcome", [ANSWERED, UNKNOWN])
def test_what_is_no_refusal_never_closes(outcome: Outcome) -> None:
    intake = own(8)
    calls(intake, outcome, 200)

    assert not intake.closed


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_the_usual_share_of_refusals_makes_runs_less_of_a_proof(share: float) -> None:
    run = math.ceil(math.log(CHANCE) / math.log(share))
    intake = accustomed(share)
    assert intake.share == pytest.approx(share, abs=0.03)

    calls(intake, THROTTLED, run - 1)
    assert not intake.closed
    calls(intake, THROTTLED, 2)

    assert intake.closed


def test_a_share_of_failures_makes_runs_of_failures_less_of_a_proof() -> None:
    """Half of all calls fail: no closed door, but chance, and each call has its own retries."""
    intake = accustomed(0.5, outcome=FAILED)

    calls(intake, FAILED, 2 * RUN)

    assert not intake.closed


def test_a_closed_door_does_not_count_as_the_usual_share() -> None:
    """Otherwise each outage would make the next one harder to see."""
    intake = own(8)
    now = 0.0
    for _ in range(20):
        close(intake, THROTTLED, at=now)
        assert intake.until is not None
        now = intake.until
        call(intake, now, ANSWERED)
        calls(intake, ANSWERED, 20, at=now + 1)
        now += 10

    assert intake.share < 0.05


def crowd(upstream: Calm, *, seed: int, breaks: bool = True) -> tuple[Intake, Story]:
    intake = own(64, breaks=breaks)
    return intake, play(intake, upstream, steady(15, 100, seed=seed), seed=seed)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_throttles_by_chance_close_no_more_often_than_chance_allows(share: float) -> None:
    """Each would stop everybody; they say nothing about the next call."""
    starts = closings = 0
    limited_s = 0.0
    for seed in range(10):
        upstream = Calm(seed=seed, throttled=share)
        intake, story = crowd(upstream, seed=seed)
        starts += len(upstream.log)
        closings += len(story.closed_at(after_s=20.0))
        limited_s += story.limited_s(100.0)
        assert not any(limit.proven for limit in story.limits)
        assert intake.limit is None
        assert intake.share == pytest.approx(share, abs=0.15)

    assert closings <= 2 * CHANCE * starts
    assert limited_s <= 20, "of 1000 s: a trial now and then, which ends"


def test_failures_by_chance_hardly_ever_close() -> None:
    closings = 0
    for seed in range(10):
        _, story = crowd(Calm(seed=seed, failing=0.5), seed=seed)
        closings += len(story.closed_at(after_s=20.0))

    assert closings <= 3


def test_an_upstream_that_closes_again_before_any_call_has_surely_passed_is_closed() -> None:
    """It opened a moment ago; those who started since are in flight, and may yet be refused."""
    intake = closed()
    call(intake, 1.0, ANSWERED)
    in_flight = [started(intake, 1.03) for _ in range(20)]

    close(intake, THROTTLED, at=1.06)

    assert intake.closed
    assert intake.in_flight == len(in_flight)


# ---- Without the breaker --------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [FAILED, BROKE])
def test_without_the_breaker_failures_never_close(failure: Outcome) -> None:
    intake = own(8, breaks=False)
    calls(intake, failure, 200)

    assert not intake.closed
    assert may_start(intake, 1.0)


def test_without_the_breaker_throttles_close_all_the_same() -> None:
    intake = own(8, breaks=False)
    calls(intake, THROTTLED, RUN)

    assert intake.closed
    assert not intake.failing


def test_without_the_breaker_a_probe_that_fails_lets_the_next_one_go() -> None:
    intake = own(8, breaks=False)
    calls(intake, THROTTLED, RUN)
    for _ in range(10):
        assert intake.until is not None
        call(intake, intake.until, FAILED)

    assert not intake.failing
    assert intake.until is not None
    assert intake.until <= 20 * PROBE_S[0]


# ---- In order of start, not of return -----------------------------------------------------------------------


def test_refusals_that_return_first_are_no_run() -> None:
    """Every second call is refused after 20 ms; the others take 10 s. Twenty refusals return before the first answer."""
    intake = own(64)
    starts = [started(intake, number / 10) for number in range(40)]
    for start in starts[1::2]:
        intake.end(start.at + 0.02, start, THROTTLED)
        assert not intake.closed
    for start in starts[::2]:
        intake.end(start.at + 10.0, start, ANSWERED)

    assert not intake.closed
    assert intake.limit is None


@pytest.mark.parametrize("answer_s", [3.0, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_refusals_that_overtake_slow_answers_fabricate_neither_a_run_nor_a_limit(
    answer_s: float, seed: int
) -> None:
    """While the calls in flight grow, those that have been answered all started at a low load."""
    upstream = Calm(seed=seed, throttled=0.3, answer_s=answer_s, spread=0.1)
    story = play(own(1000), upstream, steady(15, 30, seed=seed), slots=1000, seed=seed)

    assert upstream.max_in_flight > 10 * answer_s
    assert not story.limits
    assert len(story.closed_at(after_s=10.0)) <= 1


def test_answers_that_return_in_between_do_not_hide_a_run() -> None:
    """They were started before the door closed."""
    intake = own(8)
    old = [started(intake, 0.0) for _ in range(RUN)]
    new = [started(intake, 1.0) for _ in range(RUN)]
    for before, after in zip(old, new, strict=True):
        intake.end(1.02, after, THROTTLED)
        intake.end(1.03, before, ANSWERED)

    assert intake.closed


def test_a_run_closes_also_if_its_refusals_return_in_another_order() -> None:
    intake = own(8)
    accepted, first, *others = [started(intake, number / 100) for number in range(RUN + 1)]
    for start in reversed(others):
        intake.end(0.1, start, THROTTLED)
        assert not intake.closed

    intake.end(0.2, first, THROTTLED)

    assert intake.closed
    assert accepted.outcome is None


def test_calls_that_were_refused_before_a_later_one_was_answered_do_not_close() -> None:
    """Four calls hang until they time out; meanwhile all others are answered. The door is known to be open."""
    intake = own(8)
    hanging = [started(intake, 0.0) for _ in range(RUN)]
    for second in range(1, 30):
        call(intake, float(second), ANSWERED, took_s=0.4)

    for start in hanging:
        intake.end(30.0, start, BROKE)

    assert not intake.closed


def test_stragglers_of_an_outage_that_is_over_do_not_close_again() -> None:
    intake = own(64)
    hanging = [started(intake, number / 10) for number in range(12)]
    for start in hanging[:RUN]:
        intake.end(start.at + 5.0, start, BROKE)
    assert intake.until is not None
    probe = started(intake, intake.until)
    intake.end(probe.at + 0.2, probe, ANSWERED)
    assert not intake.closed

    for start in hanging[RUN:]:
        intake.end(max(probe.at + 0.3, start.at + 5.0), start, BROKE)

    assert not intake.closed


# ---- A reload, and headers ----------------------------------------------------------------------------------------


def test_a_reload_keeps_the_usual_share() -> None:
    fresh = own(8)
    fresh.inherit(accustomed(0.3))

    calls(fresh, THROTTLED, RUN)

    assert not fresh.closed


def test_no_call_starts_that_the_headers_say_would_be_refused() -> None:
    intake = own(8)
    first = started(intake, 0.0)
    intake.read(first, Quotas(requests=Quota(limit=60, remaining=0, reset_s=60)))
    intake.end(0.4, first, ANSWERED)

    assert intake.opens_at(0.4, 0) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    "reset_s", [1e6, 1_763_553_600.0], ids=["eleven days", "a date in seconds since 1970"]
)
def test_no_header_keeps_everybody_out_for_longer_than_the_longest_hint(reset_s: float) -> None:
    """The setting bounds what a provider may ask for, whichever header it asks in."""
    intake = own(8, longest_hint_s=300.0)
    first = started(intake, 0.0)
    intake.read(first, Quotas(requests=Quota(limit=60, remaining=0, reset_s=reset_s)))
    intake.end(0.4, first, ANSWERED)

    assert intake.opens_at(0.4, 0) <= 300.4
