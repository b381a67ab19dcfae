"""The last failures of each upstream: a few of each, only those that are the upstream's, and no words of its."""

from datetime import UTC, datetime

from server.dashboard.dashboard_stage import failed_attempt

from headgate.core.failures import Failure, FailureKind
from headgate.observe.failures import MOST_EACH, MOST_UPSTREAMS, RecentFailures


def _recent() -> RecentFailures:
    return RecentFailures(lambda: datetime(2026, 1, 1, tzinfo=UTC))


def test_the_latest_come_first_and_only_a_few_are_kept() -> None:
    recent = _recent()
    for number in range(20):
        recent(failed_attempt(f"r{number}"))
    kept = recent.of("m", "simulated")
    assert [past.request_id for past in kept] == ["r19", "r18", "r17", "r16", "r15"]
    assert len(kept) == MOST_EACH
    assert kept[0].error == "transient 503"


def test_what_succeeded_or_was_stopped_by_us_is_no_failure_of_the_upstream() -> None:
    recent = _recent()
    recent(failed_attempt(failure=None))
    for kind in (FailureKind.CANCELLED, FailureKind.PREEMPTED, FailureKind.EXPIRED):
        recent(failed_attempt(failure=Failure(kind=kind)))
    assert recent.of("m", "simulated") == ()


def test_upstreams_are_bounded_and_those_that_failed_last_stay() -> None:
    recent = _recent()
    for number in range(MOST_UPSTREAMS + 1):
        recent(failed_attempt(model=f"m{number}"))
    assert recent.of("m0", "simulated") == ()
    assert len(recent.of("m1", "simulated")) == 1
