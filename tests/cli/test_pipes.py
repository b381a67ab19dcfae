"""Output into pipes that close, and out of the reach of terminals."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.command_stage import FIXTURES, PATIENCE_S, Desk

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


@pytest.mark.parametrize("words", [["serve", "--listen", "127.0.0.1:0"], ["work"]])
def test_whoever_reads_only_the_first_line_of_a_server_gets_a_clean_end(words: list[str], desk: Desk) -> None:
    """Process managers and scripts read where it listens, and then no more."""
    process = desk.start(*words)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(f"headgate {words[0]}: ")
    process.stdout.close()
    process.terminate()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize(
    "words", ["jobs list", "jobs list --json", "--help", "jobs submit echo 1", "jobs list --after x"]
)
def test_a_stream_that_is_closed_is_no_error(words: str, closed: str, desk: Desk) -> None:
    """Cron, daemons and `>&-`: who gives no stream wants no output, and no traceback either."""
    desk.submit("echo", 1)
    done = _shell(f"{words} {closed}", desk)
    assert "Traceback" not in done.stderr + done.stdout
    if "--after" in words:
        assert done.returncode == 2
    else:
        read = f"Read from {desk.folder}/data/headgate.db\n" if words == "jobs list" else ""
        assert (done.returncode, done.stderr) == (0, "" if "2>&-" in closed else read)
    assert bool(done.stdout) is (">&- " not in f"{closed} ".replace("2>&-", "") and "--after" not in words)


@pytest.mark.parametrize("words", ["jobs list", "jobs list --json", "--help"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_that_finds_no_room_is_told_in_one_line(words: str, desk: Desk) -> None:
    done = _shell(f"{words} > /dev/full", desk)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "headgate: [Errno 28] No space left on device\n"


def _shell(words: str, desk: Desk) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", "-c", f"{sys.executable} -m headgate {words}"],
        cwd=desk.folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FIXTURES)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


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
    # Where it was read is said at the end, which it may not reach.
    assert done.stderr in {"", f"Read from {desk.folder / 'data' / 'headgate.db'}\n"}
