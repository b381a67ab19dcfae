"""The file under the event log: bounded, private, and mended after a crash or a full disk."""

import json
import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.observe.jsonlines import JsonLinesFile

needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def _lines(first: int, count: int = 1) -> bytes:
    return b"".join(b'{"n":%04d}\n' % number for number in range(first, first + count))


LINE_BYTES = len(_lines(0))


def _numbers(path: Path) -> list[int]:
    return [int(line[5:9]) for line in path.read_bytes().splitlines()]


def test_lines_are_appended_to_what_is_there(tmp_path: Path) -> None:
    for first in (0, 3):
        file = JsonLinesFile(tmp_path / "x.jsonl", 1000, 5)
        file.append(_lines(first, 3))
        file.close()

    assert _numbers(tmp_path / "x.jsonl") == [0, 1, 2, 3, 4, 5]


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    """Request ids and agents are nobody else's business."""
    file = JsonLinesFile(tmp_path / "logs" / "x.jsonl", 2 * LINE_BYTES, 5)
    file.append(_lines(0, 3))
    file.close()

    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "logs").iterdir()}
    assert modes == {"x.jsonl": 0o600, "x.jsonl.1": 0o600}


def test_a_full_file_moves_up_and_the_oldest_goes(tmp_path: Path) -> None:
    file = JsonLinesFile(tmp_path / "x.jsonl", 2 * LINE_BYTES, 3)
    for number in range(11):
        file.append(_lines(number))
    file.close()

    assert {path.name: _numbers(path) for path in tmp_path.iterdir()} == {
        "x.jsonl": [10],
        "x.jsonl.1": [8, 9],
        "x.jsonl.2": [6, 7],
        "x.jsonl.3": [4, 5],
    }


def test_a_batch_larger_than_a_file_is_spread_over_files(tmp_path: Path) -> None:
    """The bound is for the disk's sake: a burst is no excuse."""
    file = JsonLinesFile(tmp_path / "x.jsonl", 4 * LINE_BYTES + 5, 100)
    file.append(_lines(0, 10))
    file.close()

    assert _numbers(tmp_path / "x.jsonl.2") == [0, 1, 2, 3]
    assert _numbers(tmp_path / "x.jsonl.1") == [4, 5, 6, 7]
    assert _numbers(tmp_path / "x.jsonl") == [8, 9]


def test_a_line_longer_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    file = JsonLinesFile(tmp_path / "x.jsonl", 5, 100)
    file.append(_lines(0, 2))
    file.close()

    assert _numbers(tmp_path / "x.jsonl.1") == [0]
    assert _numbers(tmp_path / "x.jsonl") == [1]


def test_keeping_none_starts_over(tmp_path: Path) -> None:
    file = JsonLinesFile(tmp_path / "x.jsonl", 2 * LINE_BYTES, 0)
    file.append(_lines(0, 5))
    file.close()

    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]
    assert _numbers(tmp_path / "x.jsonl") == [4]


def test_a_gap_in_the_numbers_is_filled_before_anything_is_thrown_away(tmp_path: Path) -> None:
    """A crash amid the renaming leaves a gap; counting it as a file would cost the oldest lines."""
    (tmp_path / "x.jsonl.1").write_bytes(_lines(2))
    (tmp_path / "x.jsonl.3").write_bytes(_lines(0))
    file = JsonLinesFile(tmp_path / "x.jsonl", LINE_BYTES, 3)
    file.append(_lines(3, 2))
    file.close()

    assert {path.name: _numbers(path) for path in tmp_path.iterdir()} == {
        "x.jsonl": [4],
        "x.jsonl.1": [3],
        "x.jsonl.2": [2],
        "x.jsonl.3": [0],
    }


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(_lines(0, 2) + b'{"n":00')
    file = JsonLinesFile(tmp_path / "x.jsonl", 1000, 5)
    file.append(_lines(3, 2))
    file.close()

    assert (tmp_path / "x.jsonl").read_bytes() == _lines(0, 2) + b'{"n":00\n' + _lines(3, 2)


def test_a_torn_last_line_is_ended_even_if_nothing_follows(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"torn")
    file = JsonLinesFile(tmp_path / "x.jsonl", 1000, 5)
    file.append(b"")
    file.close()

    assert (tmp_path / "x.jsonl").read_bytes() == b"torn\n"


@needs_dev_full
def test_a_full_disk_is_counted_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.jsonl"
    path.symlink_to("/dev/full")
    file = JsonLinesFile(path, 1000, 5)

    with caplog.at_level(logging.WARNING, logger="headgate"):
        for first in (0, 2, 4):
            file.append(b"")
            file.append(_lines(first, 2))
    assert (file.errors, file.lost, len(caplog.records)) == (3, 6, 1)

    path.unlink()
    file.append(_lines(6, 2))
    file.close()

    assert (file.errors, file.lost) == (3, 6)
    assert _numbers(path) == [6, 7]


def test_a_disk_that_fills_up_amid_a_line_loses_only_what_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel writes what still fits and refuses the rest: half a line stands there, and is ended later."""
    room = [LINE_BYTES * 2 + 4]
    write = os.write

    def scarce(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = write(file, data[: room[0]])
        room[0] -= written
        return written

    file = JsonLinesFile(tmp_path / "x.jsonl", 1000, 5)
    monkeypatch.setattr(os, "write", scarce)
    file.append(_lines(0, 5))
    assert (file.errors, file.lost) == (1, 3)

    room[0] = 1000
    file.append(_lines(5))
    file.close()

    assert (tmp_path / "x.jsonl").read_bytes() == _lines(0, 2) + _lines(2)[:4] + b"\n" + _lines(5)


def test_a_directory_that_cannot_be_made_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    file = JsonLinesFile(tmp_path / "logs" / "x.jsonl", 1000, 5)
    file.append(_lines(0))
    assert (file.errors, file.lost) == (1, 1)

    (tmp_path / "logs").unlink()
    file.append(_lines(1))
    file.close()

    assert _numbers(tmp_path / "logs" / "x.jsonl") == [1]


@pytest.mark.parametrize("how", ["renamed", "deleted", "folder deleted"])
def test_a_file_taken_away_while_running_is_begun_anew(how: str, tmp_path: Path) -> None:
    """Log rotators rename; people clean up. Writing on into the old file would lose everything after."""
    folder = tmp_path / "logs"
    lines = JsonLinesFile(folder / "x.jsonl", max_bytes=1000, keep=2)
    lines.append(b'{"n": 1}\n')
    if how == "renamed":
        (folder / "x.jsonl").rename(folder / "x.old")
    elif how == "deleted":
        (folder / "x.jsonl").unlink()
    else:
        shutil.rmtree(folder)
    lines.append(b'{"n": 2}\n')
    lines.close()

    assert (folder / "x.jsonl").read_bytes() == b'{"n": 2}\n'


WRITER = """
import sys
from pathlib import Path
from headgate.observe.jsonlines import JsonLinesFile

file = JsonLinesFile(Path(sys.argv[1]), 2000, 1000)
for number in range(400):
    file.append(b'{"who":%s,"n":%d}\\n' % (sys.argv[2].encode(), number))
file.close()
assert file.lost == file.errors == 0
"""


def test_processes_that_share_a_file_lose_and_tear_nothing(tmp_path: Path) -> None:
    """A server and a worker on one data folder: both fill the file and put it away, at the same time."""
    path = tmp_path / "logs" / "x.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(who)]) for who in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    files = list((tmp_path / "logs").iterdir())
    assert max(file.stat().st_size for file in files) <= 2000
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted((line["who"], line["n"]) for line in lines) == [
        (w, n) for w in range(3) for n in range(400)
    ]
