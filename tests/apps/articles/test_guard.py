"""Which articles are queued: every state that the latest job and the summary can be in."""

import pytest

from headgate import JobState
from headgate.apps.articles.guard import LastJob, Queue, SkipReason, Verdict, judge

NOW, COOLDOWN_S = 10_000.0, 3600.0
PENDING, RUNNING = LastJob(JobState.PENDING), LastJob(JobState.RUNNING)


def dead(reason: str, ago_s: float = 1.0) -> LastJob:
    return LastJob(JobState.DEAD_LETTER, reason, NOW - ago_s)


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        (None, Queue.NEW),
        (PENDING, SkipReason.IN_FLIGHT),
        (RUNNING, SkipReason.IN_FLIGHT),
        (LastJob(JobState.COMPLETED, None, NOW), Queue.NEW),
        (LastJob(JobState.SKIPPED, "content_too_short", NOW), Queue.NEW),
        (LastJob(JobState.CANCELLED, "discarded", NOW), Queue.NEW),
        (dead("permanent"), SkipReason.DEAD_LETTER_EXISTS),
        (dead("permanent", 1e9), SkipReason.DEAD_LETTER_EXISTS),
        (dead("poison"), SkipReason.DEAD_LETTER_EXISTS),
        (dead("exhausted"), SkipReason.RECENT_FAILURE_COOLDOWN),
        (dead("expired"), SkipReason.RECENT_FAILURE_COOLDOWN),
        (dead("exhausted", COOLDOWN_S - 0.1), SkipReason.RECENT_FAILURE_COOLDOWN),
        (dead("exhausted", COOLDOWN_S), Queue.AGAIN),
    ],
)
def test_without_a_summary_the_latest_job_decides(last: LastJob | None, verdict: Verdict) -> None:
    """Outages filled the dead letters with healthy articles: those only cool down, and come back."""
    assert judge(summarised=False, last=last, now=NOW, cooldown_s=COOLDOWN_S) is verdict


@pytest.mark.parametrize("last", [None, PENDING, dead("permanent"), dead("exhausted")])
def test_a_summary_comes_before_everything_else(last: LastJob | None) -> None:
    """A retry that gave up while the upstream had succeeded left dead letters with a summary."""
    assert judge(summarised=True, last=last, now=NOW, cooldown_s=COOLDOWN_S) is SkipReason.SUMMARY_EXISTS


def test_without_a_cooldown_an_exhausted_article_may_come_again_at_once() -> None:
    assert judge(summarised=False, last=dead("exhausted", 0.0), now=NOW, cooldown_s=0.0) is Queue.AGAIN
