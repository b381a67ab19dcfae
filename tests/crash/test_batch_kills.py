"""A batch over HTTP, by the official client, while the gateway is killed again and again."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import internal_errors
import openai
import pytest
from batches.lines import CHAT, jsonl
from conftest import Figure
from crash.harness import ROUNDS, SEED
from openai import OpenAI
from openai.types import Batch

LINES: Final = 10_000 if ROUNDS else 300
KILLS: Final = 10 if ROUNDS else 3
PATIENCE_S: Final = 900.0
LOOK_S: Final = 0.02
ENDED: Final = {"completed", "failed", "expired", "cancelled"}
ORDER: Final = ("validating", "in_progress", "finalizing", "completed")


class Gateway:
    """`headgate serve` at one address, started again after every kill."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._folder = folder
        upstream = {"provider": "simulated", "latency_s": 0.02, "slots": 16, "failures": {"transient": 0.05}}
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "data_dir": str(folder / "data"),
            "models": {"m": {"upstreams": [upstream]}},
            "jobs": {"retry": {"max_attempts": 8, "first_wait_s": 0.05, "longest_wait_s": 1.0}},
        }
        (folder / "headgate.yaml").write_text(json.dumps(settings))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headgate", "serve", "--config", "headgate.yaml"],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                env=os.environ,
            )

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        internal_errors.read((self._folder / "log").read_text())


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Gateway, OpenAI]]:
    gateway = Gateway(folder)
    gateway.start()
    client = OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="any", max_retries=0)
    try:
        with client:
            yield gateway, client
    finally:
        gateway.stop()


def insist(ask: Callable[[], Any]) -> Any:
    """Again until there is an answer: the gateway may just be dead."""
    ends_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except (openai.APIConnectionError, openai.InternalServerError):
            assert time.monotonic() < ends_at
            time.sleep(LOOK_S)


class Course:
    """A batch as whoever polls sees it."""

    def __init__(self, client: OpenAI, batch: Batch) -> None:
        self._client = client
        self.batch = batch
        self.states = [batch.status]

    def look(self) -> None:
        self.batch = insist(lambda: self._client.batches.retrieve(self.batch.id))
        if self.batch.status != self.states[-1]:
            self.states.append(self.batch.status)

    def until(self, there: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + PATIENCE_S
        while not there() and self.batch.status not in ENDED:
            assert time.monotonic() < ends_at, self.batch
            time.sleep(LOOK_S)
            self.look()

    @property
    def done(self) -> int:
        counts = self.batch.request_counts
        return 0 if counts is None else counts.completed + counts.failed


def _read(client: OpenAI, file_id: str | None) -> list[str]:
    if file_id is None:
        return []
    content = insist(lambda: client.files.content(file_id)).content
    return [json.loads(line)["custom_id"] for line in content.splitlines()]


@pytest.mark.timeout(1500)
def test_each_custom_id_is_written_once_whatever_is_killed(tmp_path: Path, figure: Figure) -> None:
    """While lines are checked, submitted, run, and while the files are written."""
    chance = random.Random(SEED)
    content = jsonl(range(LINES))
    with serving(tmp_path) as (gateway, client):
        file = insist(lambda: client.files.create(file=("in.jsonl", content), purpose="batch"))
        began = time.monotonic()
        course = Course(
            client,
            client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h"),
        )
        for number in range(KILLS):
            if number == KILLS - 1:
                course.until(lambda: course.batch.status == "finalizing" or course.done >= LINES)
            elif number:
                share = LINES * number // KILLS
                course.until(lambda share=share: course.done >= share)  # type: ignore[misc]
                time.sleep(chance.random() * 0.1)
            assert course.batch.status not in ENDED, "it was over before all kills"
            gateway.kill()
            gateway.start()
        course.until(lambda: False)
        took_s = time.monotonic() - began
        batch = course.batch
        assert batch.status == "completed", batch
        output, errors = _read(client, batch.output_file_id), _read(client, batch.error_file_id)
        assert sorted((*output, *errors)) == sorted(f"line {number}" for number in range(LINES))
        counts = batch.request_counts
        assert counts is not None
        assert (counts.completed, counts.failed) == (len(output), len(errors))
        assert all(ORDER.index(one) < ORDER.index(next_one) for one, next_one in pairwise(course.states))
        assert not [one for one in (tmp_path / "data/files").iterdir() if one.name.startswith(".part-")]
    figure(
        "a batch over HTTP, the gateway killed on the way",
        f"{KILLS} kills, {LINES:,} lines, 5 % faults: {len(output):,} answered, {len(errors):,} failed,"
        f" 0 missing, 0 twice, in {took_s:.0f} s",
    )
