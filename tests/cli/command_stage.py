"""The command line in the hands of tests: in this process where it only looks, as a real process where it lives long."""

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import internal_errors
import pytest
from fixtures import cli_tasks

import headgate
from headgate.cli import main
from headgate.core.job import Job
from headgate.runner.tasks import Task

FIXTURES = Path(__file__).parent.parent / "fixtures"
TASKS = tuple(task for task in vars(cli_tasks).values() if isinstance(task, Task))
PATIENCE_S = 60.0
SETTINGS = "data_dir: data\njobs: {tasks: [cli_tasks]}\n"


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def id(self) -> str:
        return self.out.splitlines()[0]


async def _live(gateway: headgate.Gateway) -> int:
    counts = await gateway.jobs.count(tenant=None)
    return counts["pending"] + counts["running"]


class Desk:
    """A folder with settings, and somebody at the keyboard there."""

    def __init__(
        self, folder: Path, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.folder = folder
        self._capture = capture
        self._monkeypatch = monkeypatch
        (folder / "headgate.yaml").write_text(SETTINGS)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(FIXTURES)

    def run(self, *words: str, stdin: str = "", columns: int = 200) -> Answer:
        """A command, in this process."""
        self._monkeypatch.setenv("COLUMNS", str(columns))
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        self._capture.readouterr()
        with _logging_left_alone(), pytest.raises(SystemExit) as end:
            main(words)
        out, err = self._capture.readouterr()
        assert "Traceback" not in err
        assert isinstance(end.value.code, int)
        return Answer(end.value.code, out, err)

    def submit(self, task: str, text: Any, *options: str) -> str:
        answer = self.run("jobs", "submit", task, json.dumps(text), *options)
        assert answer.code == 0, answer.err
        return answer.id

    def work(self) -> None:
        """Run every job that there is."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        settings = {"data_dir": "data"}
        async with headgate.open(settings, env={}, tasks=TASKS, work=True) as gateway:
            # One look at both states: between two looks a job may go from one to the other.
            async with asyncio.timeout(PATIENCE_S):
                while await _live(gateway):  # noqa: ASYNC110 - nobody tells of the last one
                    await asyncio.sleep(0.01)

    def look(self, job_id: str) -> Job:
        async def get() -> Job:
            async with headgate.open({"data_dir": "data"}, env={}) as gateway:
                return await gateway.jobs.get(job_id)

        return asyncio.run(get())

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """A command, as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "headgate", *words],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FIXTURES), **options.pop("env", {})},
            text=True,
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                **options,
            },
        )


@contextlib.contextmanager
def _logging_left_alone() -> Iterator[None]:
    """A command logs as it likes; the tests after it must not."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:], root.level = handlers, level


@contextlib.contextmanager
def serving(desk: Desk) -> Iterator[str]:
    """A gateway at this desk's folder, in a process of its own: its URL."""
    path = os.pathsep.join((str(FIXTURES), os.environ.get("PYTHONPATH", "")))
    process = desk.start("serve", "--listen", "127.0.0.1:0", env={"PYTHONPATH": path})
    assert process.stdout is not None
    try:
        found = re.search(r"http://[0-9.:]+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
        internal_errors.read(err)


def end(process: "subprocess.Popen[str]") -> Answer:
    out, err = process.communicate(timeout=PATIENCE_S)
    internal_errors.read(err)
    return Answer(process.returncode, out, err)


def until(reached: Callable[[], bool]) -> None:
    """Look again and again: what is waited for happens in another process, in real time."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)
