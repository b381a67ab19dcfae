"""The check that fails a test for an internal error can itself fail: real tests, run by a pytest of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAILED = "an internal error happened; mark the test provokes_internal_error if that is its purpose"
HEAD = """
import asyncio, logging, subprocess, sys
import internal_errors, pytest
import headgate
from server.http.front_stage import GET, serving

async def crashing(scope, receive, send):
    raise ZeroDivisionError

async def ask():
    async with serving(crashing) as house, house.wire() as wire:
        assert (await wire.ask(GET)).status == 500

def break_inside():
    headgate.Task.read(None, None)

@headgate.task("breaks")
async def breaks(ctx, whose):
    if whose == "ours":
        break_inside()
    raise ZeroDivisionError

async def work(folder, whose):
    async with headgate.open({"data_dir": str(folder)}, env={}, tasks=[breaks], work=True) as gateway:
        job = await (await gateway.jobs.submit(breaks, whose, max_attempts=1)).wait()
        assert job.attempts == 1
"""
CASES = {
    "a 500 in a test without the mark": ("asyncio.run(ask())", "", 1, FAILED),
    "a 500 on purpose": ("asyncio.run(ask())", "provokes_internal_error", 0, "1 passed"),
    "a mark without an error": ("pass", "provokes_internal_error", 1, "but no internal error happened"),
    "a marked test that is skipped": ("pytest.skip('not here')", "provokes_internal_error", 0, "1 skipped"),
    "no error at all": ("pass", "", 0, "1 passed"),
    "a job that failed in our own code": ("asyncio.run(work(tmp_path, 'ours'))", "", 1, FAILED),
    "a job that failed in its task": ("asyncio.run(work(tmp_path, 'its own'))", "", 0, "1 passed"),
    "a loop that survived our own mistake": (
        """
    try:
        break_inside()
    except Exception:
        logging.getLogger("headgate").exception("claiming failed")""",
        "",
        1,
        FAILED,
    ),
    "a loop that survived an error of foreign code": (
        """
    try:
        raise ZeroDivisionError
    except Exception:
        logging.getLogger("headgate").exception("a listener failed")""",
        "",
        0,
        "1 passed",
    ),
    "a process that says so in its log": (
        "internal_errors.read(b'ERROR request 1 broke (internal)')",
        "",
        1,
        FAILED,
    ),
    "a process that ends with a traceback": (
        "internal_errors.read('Traceback (most recent call last):')",
        "",
        1,
        FAILED,
    ),
    "a process that shares our stderr": (
        "subprocess.run([sys.executable, '-c', 'import sys; sys.stderr.write(\"broke (internal)\")'])",
        "",
        1,
        FAILED,
    ),
}


@pytest.mark.parametrize(("body", "mark", "code", "says"), CASES.values(), ids=CASES)
def test_an_internal_error_fails_the_test_that_is_not_marked(
    tmp_path: Path, body: str, mark: str, code: int, says: str
) -> None:
    marked = f"@pytest.mark.{mark}\n" if mark else ""
    file = tmp_path / "test_it.py"
    file.write_text(f"{HEAD}\n{marked}def test_it(tmp_path):\n    {body.strip()}\n")
    settled = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", "-p", "internal_errors"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *settled, str(file)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, says in ran.stdout) == (code, True), ran.stdout + ran.stderr
