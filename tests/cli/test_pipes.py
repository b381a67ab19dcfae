"""Output into pipes that close, and out of the reach of terminals."""

import asyncio
import os
import subprocess
import sys

import pytest
from cli.command_stage import PATIENCE_S, Desk

import headgate


def _many_jobs(desk: Desk) -> None:
    """More than a pipe holds."""
    body = {"model": "simulated", "messages": [{"role": "user", "content": "x"}]}

    async def fill() -> None:
        async with headgate.open({"data_dir": "data"}, env={}) as gateway:
            await gateway.jobs.submit_many([{"task": "chat", "input": body}] * 1000)

    asyncio.run(fill())


@pytest.mark.parametrize("words", [["--json"], []])
def test_a_reader_that_leaves_early_is_no_error(words: list[str], desk: Desk) -> None:
    _many_jobs(desk)
    process = desk.start("jobs", "list", "--limit", "1000", *words)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(20)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 0


def test_head_takes_one_line(desk: Desk) -> None:
    desk.submit("echo", 1)
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m headgate jobs list | head -1"],
        cwd=desk.folder,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.split()[:2] == ["id", "task"]
    assert done.stderr == ""
