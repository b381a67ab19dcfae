"""Kill a logging process at any moment: what `flush` vouched for is in the files, once and whole.

SIGKILL takes the process, not the kernel: bytes that write(2) took stay, so the log needs no fsync for this.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

ROUNDS = min(200, int(os.environ.get("HEADGATE_CRASH_ROUNDS", "5")))
SEED = int(os.environ.get("HEADGATE_CRASH_SEED", "7"))
CHILD = Path(__file__).with_name("eventlog_child.py")
FIELDS = {
    "responses": ["timestamp", "request_id", "agent_id", "latency_ms", "status"],
    "retries": ["timestamp", "model", "attempt", "request_ids", "error", "delay_ms", "status"],
}


def _killed(directory: Path, round_number: int, chance: random.Random) -> int:
    """Let a child log and kill it; answers the last number it was promised."""
    command = [sys.executable, str(CHILD), str(directory), str(round_number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        heard = [child.stdout.readline() for _ in range(chance.choice([0, 1, 10, 100]))]
        # The one place that sleeps: the moment must fall anywhere, also amid start, write and rotation.
        time.sleep(chance.random() * (0.02 if heard else 0.3))
        child.kill()
        heard += child.stdout.readlines()
    assert child.returncode == -9, "the child ended by itself"
    return max((int(line) for line in heard if line.endswith(b"\n")), default=0)


def _lines(directory: Path, name: str) -> list[bytes]:
    return [line for path in directory.glob(f"{name}.jsonl*") for line in path.read_bytes().splitlines()]


def _id_of(line: bytes, fields: list[str]) -> str | None:
    """The request's id, or None when the line is torn."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    assert list(record) == fields
    return str(record["request_id"] if "request_id" in record else record["request_ids"][0])


@pytest.mark.timeout(3600)
def test_what_was_flushed_survives_every_kill_once_and_whole(tmp_path: Path) -> None:
    """One directory for all rounds: each start finds what the last death left behind."""
    chance = random.Random(SEED)
    promised = {number: _killed(tmp_path, number, chance) for number in range(ROUNDS)}
    expected = {f"{number}-{index}" for number, last in promised.items() for index in range(1, last + 1)}

    assert expected, "no child lived long enough to promise anything"
    torn = 0
    for name, fields in FIELDS.items():
        ids = Counter(_id_of(line, fields) for line in _lines(tmp_path, name))
        torn += ids.pop(None, 0)
        assert expected <= ids.keys(), f"{name}: lost {len(expected - ids.keys())} lines"
        assert set(ids.values()) == {1}, f"{name}: some lines are there twice"
        assert len(list(tmp_path.glob(f"{name}.jsonl.*"))) > 1, f"{name}: nothing was rotated"
    assert torn <= ROUNDS
