"""The event log on a disk that hangs, is full, is not there, or was left in the middle of a line."""

import contextlib
import errno
import json
import logging
import os
import shutil
import subprocess
import threading
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from observe.log_events import noon, read, responded, retry

from headgate.core.failures import Failure, FailureKind
from headgate.observe.eventlog import EventLog


def test_a_stuck_disk_holds_up_no_call_and_the_backlog_stays_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe nobody reads stands for a disk that hangs: the writer blocks, the callers do not."""
    os.mkfifo(tmp_path / "responses.jsonl")
    pipe = os.open(tmp_path / "responses.jsonl", os.O_RDWR)
    log = EventLog(tmp_path, utc=noon, longest_backlog=10)
    with caplog.at_level(logging.WARNING, logger="headgate"):
        for _ in range(1000):
            log(responded(agent_id="x" * 10_000))
    assert not log.flush(timeout_s=0)
    # 64 KiB in the pipe, one batch in the writer's hand, ten in the queue.
    assert log.dropped > 900
    assert [record.levelname for record in caplog.records] == ["WARNING"]

    read = 0
    while read < 1000 - log.dropped:
        read += os.read(pipe, 1 << 16).count(b"\n")
    assert log.close()
    os.close(pipe)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_counted_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "responses.jsonl").symlink_to("/dev/full")
    with caplog.at_level(logging.WARNING, logger="headgate"), closing(EventLog(tmp_path, utc=noon)) as log:
        for _ in range(5):
            log(responded())
            log(retry(Failure(kind=FailureKind.TRANSIENT)))
            assert log.flush()

    assert (log.dropped, log.write_errors) == (5, 5)
    assert len(caplog.records) == 1
    assert len(read(tmp_path / "retries.jsonl")) == 5


def test_a_directory_that_cannot_be_made_hurts_nobody_and_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    with closing(EventLog(tmp_path / "data" / "logs", utc=noon)) as log:
        log(responded("lost"))
        assert log.flush()
        (tmp_path / "data").unlink()
        log(responded("kept"))
        assert log.flush()

    assert [line["request_id"] for line in read(tmp_path / "data" / "logs" / "responses.jsonl")] == ["kept"]
    assert log.dropped == 1


def test_files_rotate_and_old_ones_go(tmp_path: Path) -> None:
    with closing(EventLog(tmp_path, utc=noon, max_bytes=1000, keep=2)) as log:
        for number in range(100):
            log(responded(f"r-{number:03d}"))

    parts = [tmp_path / f"responses.jsonl{suffix}" for suffix in (".2", ".1", "")]
    ids = [line["request_id"] for part in parts for line in read(part)]
    assert sorted(tmp_path.glob("responses*")) == sorted(parts)
    assert all(part.stat().st_size <= 1000 for part in parts)
    assert ids == [f"r-{number:03d}" for number in range(100 - len(ids), 100)]


def test_a_line_torn_by_a_crash_is_ended_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "responses.jsonl").write_bytes(b'{"timestamp":"2026-')
    with closing(EventLog(tmp_path, utc=noon)) as log:
        log(responded())

    torn, whole = (tmp_path / "responses.jsonl").read_text().splitlines()
    assert torn == '{"timestamp":"2026-'
    assert json.loads(whole)["request_id"] == "r-1"


def test_a_directory_that_is_removed_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    with closing(EventLog(folder, utc=noon)) as log:
        log(responded("before"))
        assert log.flush()
        shutil.rmtree(folder)
        log(responded("after"))
        assert log.flush()

    assert _ids(folder) == ["after"]


# ---- Whatever goes wrong in the writer's thread ------------------------------------------------------------------------


def _ids(folder: Path) -> list[str]:
    return [line["request_id"] for line in read(folder / "responses.jsonl")]


def test_a_sleep_that_fails_costs_no_line_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under a faked clock every sleep fails with EINVAL."""

    def fail(_seconds: float) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    with (
        caplog.at_level(logging.WARNING, logger="headgate"),
        closing(EventLog(tmp_path, utc=noon, sleep=fail)) as log,
    ):
        for number in range(5):
            log(responded(f"r-{number}"))
            assert log.flush()

    assert _ids(tmp_path) == [f"r-{number}" for number in range(5)]
    assert log.dropped == 0
    # The rest is skipped when a flush is there before the thread wakes up.
    assert len(caplog.records) <= 1
    assert all("Invalid argument" in record.getMessage() for record in caplog.records)


def test_an_event_that_cannot_be_written_takes_no_other_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A moment before the year 1 in UTC has no name."""
    nowhen = datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))
    moments = iter([noon(), nowhen, noon(), nowhen, noon()])
    all_are_there = threading.Event()

    def rest(_seconds: float) -> None:
        assert all_are_there.wait(30)

    with (
        caplog.at_level(logging.WARNING, logger="headgate"),
        closing(EventLog(tmp_path, utc=lambda: next(moments), sleep=rest)) as log,
    ):
        for request_id in ("before", "lost", "beside", "lost too"):
            log(responded(request_id))
        all_are_there.set()
        assert log.flush()
        log(responded("after"))
        assert log.flush()

    assert _ids(tmp_path) == ["before", "beside", "after"]
    assert log.dropped == 2
    (record,) = caplog.records
    assert "OverflowError" in record.getMessage()


def test_a_path_that_no_system_takes_does_not_end_the_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="headgate"),
        closing(EventLog(tmp_path / "nul\0", utc=noon)) as log,
    ):
        for _ in range(3):
            log(responded())
            assert log.flush()

    assert log.dropped == 3
    assert "embedded null" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="to mount a small disk needs root")
def test_a_disk_that_is_full_for_a_while_loses_only_what_came_meanwhile(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", tmp_path], check=False)
    if mounted.returncode:
        pytest.skip("no disk can be mounted here")
    try:
        with closing(EventLog(tmp_path, utc=noon)) as log:
            log(responded("before"))
            assert log.flush()
            ballast = tmp_path / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            for _ in range(40):
                log(responded("lost", agent_id="x" * 1000))
            assert log.flush()
            ballast.unlink()
            log(responded("after"))
            assert log.flush()
        text = (tmp_path / "responses.jsonl").read_text()
        assert log.dropped > 0
        assert '"before"' in text.splitlines()[0]
        assert json.loads(text.splitlines()[-1])["request_id"] == "after"
    finally:
        subprocess.run(["umount", tmp_path], check=True)
