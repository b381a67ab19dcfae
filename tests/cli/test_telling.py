"""A worker tells of few jobs one by one and of many in numbers."""

import logging

import pytest

from headgate.cli.telling import MOST_LINES, Tally, words_for
from headgate.core.events import JobSettled, StrayAnswer


def _settled(number: int, state: str = "completed", failure: str | None = None) -> JobSettled:
    return JobSettled(
        job_id=f"job_{number}",
        task="echo",
        model=None,
        tenant="local",
        state=state,
        attempts=1,
        wait_ms=0.0,
        run_ms=1500.0,
        failure=failure,
    )


def _told(tally: Tally, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "headgate"):
        tally.tell()
    return [record.getMessage() for record in caplog.records]


def test_few_jobs_have_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally()
    tally.hear(StrayAnswer(request_id="r"))
    tally.hear(_settled(1))
    tally.hear(_settled(2, "pending", "transient"))
    tally.hear(_settled(3, "pending", "deferred"))
    tally.stopping = True
    tally.hear(_settled(4, "pending", "deferred"))
    assert _told(tally, caplog) == [
        "job_1 echo completed (1.5 s)",
        "job_2 echo failed (transient), attempt 1; it is tried again (1.5 s)",
        "job_3 echo sent back to wait, uncounted (1.5 s)",
        "job_4 echo given back, uncounted (1.5 s)",
    ]
    assert _told(tally, caplog) == []


def test_many_jobs_are_told_in_numbers(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally()
    for number in range(MOST_LINES + 1000):
        tally.hear(_settled(number))
    tally.hear(_settled(0, "dead_letter"))
    assert _told(tally, caplog) == [f"{MOST_LINES + 1000:,} completed, 1 dead letter"]
    assert words_for(tally.counts) == f"{MOST_LINES + 1000:,} completed, 1 dead letter"


def test_nothing_is_told_as_nothing() -> None:
    assert words_for({}) == "nothing done"
