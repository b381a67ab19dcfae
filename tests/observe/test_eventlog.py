"""The event log: exactly these fields, never a provider's words, and never a call that waits for a disk."""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from observe.log_events import NOON, noon, read, responded, retry

from headgate.core.call import Lane
from headgate.core.events import AttemptEnded, Cancelled, Event, StrayAnswer
from headgate.core.failures import Failure, FailureKind
from headgate.core.problems import InvalidSettings
from headgate.observe.eventlog import EventLog
from headgate.planner import virtual
from headgate.planner.virtual import World


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(EventLog(tmp_path, utc=noon)) as log:
        yield log


def test_a_retry_is_one_line_with_exactly_these_fields(log: EventLog, tmp_path: Path) -> None:
    failure = Failure(kind=FailureKind.THROTTLED, status=429, code="rate_limit_exceeded", message="Slow down")
    log(retry(failure, request_ids=("r-1", "r-2")))
    assert log.flush()

    (line,) = read(tmp_path / "retries.jsonl")
    assert list(line.items()) == [
        ("timestamp", "2026-03-04T12:00:00.123Z"),
        ("model", "summary"),
        ("attempt", 2),
        ("request_ids", ["r-1", "r-2"]),
        ("error", "throttled 429 rate_limit_exceeded"),
        ("delay_ms", 1500.0),
        ("status", "retry"),
    ]
    assert read(tmp_path / "responses.jsonl") == []


@pytest.mark.parametrize(("error", "status"), [(None, "success"), ("upstream_unavailable", "error")])
def test_a_response_is_one_line_with_exactly_these_fields(
    log: EventLog, tmp_path: Path, error: str | None, status: str
) -> None:
    log(responded(agent_id="researcher", error=error))
    assert log.flush()

    (line,) = read(tmp_path / "responses.jsonl")
    assert list(line.items()) == [
        ("timestamp", "2026-03-04T12:00:00.123Z"),
        ("request_id", "r-1"),
        ("agent_id", "researcher"),
        ("latency_ms", 12),
        ("status", status),
    ]
    assert read(tmp_path / "retries.jsonl") == []


def test_other_events_write_nothing(log: EventLog, tmp_path: Path) -> None:
    """A caller that went away is no error and no answer; only two kinds of event belong in these files."""
    others: list[Event] = [
        Cancelled(request_id="r-1", model="summary", lane=Lane.INTERACTIVE),
        StrayAnswer(request_id="r-2"),
        AttemptEnded(request_ids=("r-1",), model="summary", upstream="main", attempt=1, duration_ms=1.0),
    ]
    for event in others:
        log(event)
    assert log.flush()

    assert (tmp_path / "retries.jsonl").read_bytes() == b""
    assert (tmp_path / "responses.jsonl").read_bytes() == b""
    assert log.dropped == 0


def test_a_providers_message_never_reaches_the_disk(tmp_path: Path) -> None:
    """Providers quote prompts and keys in their errors; a log that repeats them leaks them."""
    secret = "sk-live-123 in: my patient's name is"
    with closing(EventLog(tmp_path, utc=noon)) as log:
        log(retry(Failure(kind=FailureKind.TRANSIENT, status=500, message=secret)))
        log(responded(error="upstream_unavailable"))

    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b'"error":"transient 500"' in written
    assert b"sk-live" not in written
    assert b"patient" not in written


def test_dates_are_utc_wherever_the_clock_stands(tmp_path: Path) -> None:
    tokyo = NOON.astimezone(timezone(timedelta(hours=9)))
    with closing(EventLog(tmp_path, utc=lambda: tokyo)) as log:
        log(responded())

    assert read(tmp_path / "responses.jsonl")[0]["timestamp"] == "2026-03-04T12:00:00.123Z"


def test_events_are_stamped_when_they_happen_not_when_they_are_written(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        with closing(EventLog(tmp_path, utc=world.clock.utc)) as log:
            for _ in range(3):
                await world.clock.sleep(0.25)
                log(responded())

    virtual.run(main)
    stamps = [line["timestamp"][-7:] for line in read(tmp_path / "responses.jsonl")]
    assert stamps == ["00.250Z", "00.500Z", "00.750Z"]


def test_ten_thousand_events_from_many_threads_are_all_there_in_order(log: EventLog, tmp_path: Path) -> None:
    def caller(name: int) -> None:
        for number in range(2500):
            log(responded(f"{name}-{number:04d}"))

    threads = [threading.Thread(target=caller, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.flush()

    ids = [line["request_id"] for line in read(tmp_path / "responses.jsonl")]
    assert log.dropped == 0
    for name in range(4):
        assert [each for each in ids if each.startswith(f"{name}-")] == [
            f"{name}-{number:04d}" for number in range(2500)
        ]


def test_ids_that_are_no_text_are_escaped_and_cost_no_other_line(log: EventLog, tmp_path: Path) -> None:
    """An agent's id is anybody's string; half a surrogate pair must not end the log."""
    for agent_id in ("before", "half \ud83d", 'quote " and\nnewline', "after"):
        log(responded(agent_id=agent_id))
    assert log.flush()

    lines = read(tmp_path / "responses.jsonl")
    assert [line["agent_id"] for line in lines] == ["before", "half \ud83d", 'quote " and\nnewline', "after"]
    assert {line["timestamp"] for line in lines} == {"2026-03-04T12:00:00.123Z"}


def test_closing_writes_what_waits_and_later_events_are_dropped(tmp_path: Path) -> None:
    log = EventLog(tmp_path, utc=noon)
    for _ in range(3000):
        log(responded())
    assert log.close()
    log(responded("too late"))

    assert log.close()
    assert log.flush()
    assert len(read(tmp_path / "responses.jsonl")) == 3000
    assert log.dropped == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "headgate-eventlog"]


def test_bounds_that_make_no_sense_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="3 mistakes"):
        EventLog(tmp_path, utc=noon, max_bytes=0, keep=-1, longest_backlog=0)
