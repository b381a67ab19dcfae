"""A closed upstream: when it is probed, what opens it, and how calls come back."""

import pytest
from core.intake_stage import RUN, TENANT, call, calls, close, closed, own, play, started, steady
from weathers.kinds import Spells

from headgate.core.intake import GRACE_S, PROBE_S, PROBE_SHARE, Intake, Opened
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


# ---- Probes -------------------------------------------------------------------------------------------------


def probed_at(intake: Intake, probes: int, *, hint_s: float, outcome: Outcome = THROTTLED) -> list[float]:
    """The gaps between probes that are all refused at once."""
    gaps, now = [], 0.0
    for _ in range(probes):
        at = intake.opens_at(now, 0)
        gaps.append(at - now)
        now = at
        call(intake, now, outcome, took_s=0.0, hint_s=hint_s)
    return gaps


@pytest.mark.parametrize(
    ("hint_s", "gaps"),
    [
        (1.0, [0.5, 0.5, 1.0, 1.0]),
        (3.0, [1.5, 1.5, 3.0, 3.0]),
        (20.0, [1.5, 1.5, 3.0, 6.0, 10.0, 10.0]),
        (60.0, [1.5, 1.5, 3.0, 6.0, 12.0, 24.0, 30.0, 30.0]),
        (300.0, [1.5, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0, 60.0, 60.0]),
        (0.1, [0.25, 0.25, 0.25]),
    ],
)
def test_with_a_hint_the_gaps_between_probes_double_up_to_half_of_it(
    hint_s: float, gaps: list[float]
) -> None:
    """A hint is for the call that got it; others may pass sooner."""
    assert probed_at(closed(hint_s=hint_s), len(gaps), hint_s=hint_s) == pytest.approx(gaps)


@pytest.mark.parametrize("outcome", REFUSALS)
def test_without_a_hint_a_probe_goes_after_a_quarter_of_the_time_since_it_closed(outcome: Outcome) -> None:
    """So the end of an outage is found within a quarter of its length."""
    gaps = probed_at(closed(outcome=outcome), 40, hint_s=0.0, outcome=outcome)

    since_s = 0.0
    for gap_s in gaps:
        assert gap_s == pytest.approx(min(5.0, max(0.25, since_s / 4)))
        since_s += gap_s
    assert gaps[-1] == pytest.approx(5.0)


def test_the_constants_of_probes_are_the_documented_ones() -> None:
    assert PROBE_S == (0.25, 5.0)
    assert PROBE_SHARE == 0.25


def test_a_hint_is_bounded() -> None:
    intake = own(8, longest_hint_s=10.0)
    close(intake, THROTTLED, at=0.0, hint_s=86_400.0)

    assert probed_at(intake, 7, hint_s=86_400.0) == pytest.approx([1.5, 1.5, 3.0, 5.0, 5.0, 5.0, 5.0])


def test_one_probe_goes_and_the_others_wait() -> None:
    intake = closed(hint_s=1.0)

    assert may_start(intake, 0.5)
    assert started(intake, 0.5).probe

    assert not may_start(intake, 0.5)
    assert not may_start(intake, 0.6)


def test_after_a_probe_that_tells_nothing_the_next_one_goes_as_long_after_it() -> None:
    """Its caller hung up: nobody may be kept out for that, nor may every caller that hangs up be a call there."""
    intake = closed(hint_s=1.0)
    call(intake, 0.5, UNKNOWN)

    assert intake.closed
    assert intake.opens_at(0.6, 0) == pytest.approx(1.0)
    assert may_start(intake, 1.0)


def test_only_the_probe_is_believed_while_closed() -> None:
    """Calls that were in flight are refused one after the other; each would prolong it."""
    intake = own(8)
    late = [started(intake, 0.0) for _ in range(5)]
    calls(intake, THROTTLED, RUN)
    until = intake.until
    for start in late:
        intake.end(0.1, start, THROTTLED, 60.0)

    assert intake.until == until


# ---- What opens it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", REFUSALS)
def test_an_answered_probe_opens(refusal: Outcome) -> None:
    intake = closed(outcome=refusal)
    intake.news.clear()

    call(intake, 5.0, ANSWERED)

    assert not intake.closed
    assert intake.news == [Opened(refusal is not THROTTLED, TENANT)]


def test_one_that_failed_counts_as_failing_until_it_opens_though_its_probe_was_throttled() -> None:
    """Who was told that it fails must be told that this is over."""
    intake = closed(outcome=FAILED)
    call(intake, 5.0, THROTTLED)
    assert intake.failing
    intake.news.clear()

    call(intake, 15.0, ANSWERED)
    assert intake.news == [Opened(failed=True, tenant=TENANT)]

    close(intake, THROTTLED, at=30.0)
    assert not intake.failing


@pytest.mark.parametrize("refusal", [THROTTLED, FAILED])
def test_a_probe_in_flight_for_longer_than_the_grace_time_opens(refusal: Outcome) -> None:
    """Refusals return fast, so it was accepted; answers may take minutes."""
    intake = closed(outcome=refusal)
    started(intake, 5.0)
    assert not may_start(intake, 5.0 + GRACE - 0.01)
    assert intake.closed

    assert intake.opens_at(5.1, 0) == pytest.approx(5.0 + GRACE)
    assert may_start(intake, 5.0 + GRACE)

    assert intake.closed is None


def test_refusals_that_take_long_lengthen_the_grace_time() -> None:
    """A server that refuses after a second would let every probe pass."""
    intake = own(8)
    for start in [started(intake, 0.0) for _ in range(RUN)]:
        intake.end(1.0, start, THROTTLED)
    assert intake.until is not None
    probe = started(intake, intake.until)

    assert not may_start(intake, probe.at + 1.5)
    assert may_start(intake, probe.at + 2.0)


@pytest.mark.parametrize("outcome", [BROKE, FAILED])
def test_where_calls_took_long_to_fail_a_probe_in_flight_passes_after_twice_as_long(outcome: Outcome) -> None:
    """They time out: that a call is in flight for a moment proves nothing."""
    intake = own(8)
    starts = [started(intake, 0.0) for _ in range(RUN)]
    for start in starts:
        intake.end(20.0, start, outcome)
    assert intake.closed
    started(intake, 30.0)

    assert intake.opens_at(31.0, 0) == 70.0
    assert not may_start(intake, 69.0)
    assert may_start(intake, 70.0)
    assert intake.closed is None


def test_a_call_that_was_started_after_those_that_closed_it_opens_it() -> None:
    intake = own(8)
    refused = [started(intake, 0.0) for _ in range(RUN)]
    later = started(intake, 0.01)
    for start in refused:
        intake.end(0.02, start, THROTTLED, 20.0)
    assert intake.closed

    intake.end(0.4, later, ANSWERED)

    assert intake.closed is None


def test_an_answer_to_a_call_from_before_does_not_open_it() -> None:
    intake = own(8)
    before = started(intake, 0.0)
    calls(intake, THROTTLED, RUN, hint_s=20.0)

    intake.end(0.4, before, ANSWERED)

    assert intake.closed


# ---- Coming back ------------------------------------------------------------------------------------------------


def in_flight_after(intake: Intake, now: float, for_s: float) -> int:
    """Everybody who may starts and nobody returns: how many are in flight then?"""
    end = now + for_s
    while (at := intake.opens_at(now, 0)) <= end:
        if at > now:
            now = at
        else:
            started(intake, now)
            if intake.in_flight > 10_000:
                break
    return intake.in_flight


def test_after_it_opened_calls_in_flight_may_double_every_grace_time() -> None:
    """All who waited at once would close it again."""
    intake = closed(slots=8)
    call(intake, 5.0, ANSWERED)
    counts = [in_flight_after(intake, 5.0 + step * GRACE, GRACE) for step in range(5)]

    for step, count in enumerate(counts, start=1):
        assert 0.5 * 2**step <= count <= 2 * 2**step + 1


def test_what_was_usual_before_may_nearly_come_back_at_once() -> None:
    intake = own(8)
    old = [started(intake, 0.0) for _ in range(200)]
    for start in old[:160]:
        intake.end(1.0, start, ANSWERED)
    calls(intake, THROTTLED, RUN, at=2.0)
    for start in old[160:]:
        intake.end(3.0, start, ANSWERED)
    call(intake, 5.0, ANSWERED)

    assert in_flight_after(intake, 5.0, GRACE) >= 30


def test_the_ramp_ends() -> None:
    intake = closed()
    call(intake, 5.0, ANSWERED)

    assert in_flight_after(intake, 5.0, 20 * GRACE + 5.0) > 1000


@pytest.mark.parametrize("seed", range(3))
def test_an_outage_costs_few_calls_and_ends_soon(seed: int) -> None:
    upstream = Spells(seed=seed, times=((3.0, 33.0),))
    intake = own(64)
    story = play(intake, upstream, steady(15, 60, seed=seed), seed=seed)

    refused = [at for at, status in upstream.log if status != 200]
    assert len(refused) <= 30
    assert min(at for at in story.answered_at if at > 33.0) < 33.0 + 30.0 / 4 + 1.0
    assert not intake.closed


# ---- Whose call probes --------------------------------------------------------------------------------------------


def closed_by_two() -> Intake:
    intake = Intake(8)
    for number in range(2 * RUN):
        tenant = "ab"[number % 2]
        intake.end(0.02, intake.start(0.0, 0.0, tenant), FAILED)
    assert intake.until is not None
    return intake


def test_after_a_probe_that_failed_the_next_one_is_another_tenants() -> None:
    """One whose requests always fail would keep the upstream closed for the others."""
    intake = closed_by_two()
    at = intake.next_at(0.02, 0.0, "a")
    intake.end(at, intake.start(at, 0.0, "a"), FAILED)

    again = intake.next_at(at, 0.0, "b")
    assert again == intake.until
    assert intake.next_at(at, 0.0, "a") > again
    intake.end(again + 0.1, intake.start(again, 0.0, "b"), ANSWERED)
    assert intake.until is None


def test_a_tenant_that_is_alone_probes_as_usual() -> None:
    intake = closed()
    at = intake.next_at(0.02, 0.0, TENANT)
    intake.end(at, intake.start(at, 0.0, TENANT), THROTTLED)

    assert intake.next_at(at, 0.0, TENANT) == intake.until
