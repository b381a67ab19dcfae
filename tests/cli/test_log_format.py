"""Log lines for machines: JSON, one object a line, each with the request or the job it is about."""

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.test_serve_command import serving

import headgate
from headgate.cli.logs import LogFormat, log_to_stderr

logger = logging.getLogger("an.application")
HELLO = [{"role": "user", "content": "hello"}]
MODELS = {
    "wrong-key": {"upstreams": [{"provider": "simulated", "model": "simulated/misconfigured"}]},
    "picky": {"upstreams": [{"provider": "simulated", "model": "simulated/rejecting"}]},
}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Standard error, while lines are logged to it as JSON."""
    stderr, root = io.StringIO(), logging.getLogger()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    log_to_stderr(logging.INFO, LogFormat.JSON)
    ours = root.handlers[0]
    yield stderr
    root.removeHandler(ours)
    root.setLevel(level)


def read(written: io.StringIO) -> list[dict[str, Any]]:
    """Each line must be an object of its own."""
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_line_says_when_how_bad_who_and_what(written: io.StringIO) -> None:
    logger.warning("%s is late", "a train")

    (line,) = read(written)
    assert line.pop("timestamp")[-5] == "."
    assert line == {"level": "WARNING", "logger": "an.application", "message": "a train is late"}


def test_hostile_words_stay_inside_their_line(written: io.StringIO) -> None:
    """Line breaks, escapes and half characters must neither forge a line nor reach a terminal."""
    words = 'a\nb\r\x1b[31m"}\u2028\ud800\x85'
    record = logging.makeLogRecord({"msg": words, "exc_info": (ValueError, ValueError(words), None)})
    # To the handler itself: whatever else listens here could not write it down.
    logging.getLogger().handlers[0].handle(record)

    err = written.getvalue()
    assert err.count("\n") == 1
    assert err.isascii()
    line = json.loads(err)
    assert line["message"] == words
    assert "ValueError" in line["exception"]


def test_lines_of_a_call_carry_its_request_and_no_other_does(written: io.StringIO, tmp_path: Path) -> None:
    """A caller's check runs deep inside the dispatcher. Two calls at a time must not mix."""

    async def scene() -> None:
        async with headgate.open({"data_dir": str(tmp_path)}, env={}) as gateway:

            async def ask(request_id: str) -> None:
                await gateway.complete(
                    model="simulated/instant",
                    messages=HELLO,
                    request_id=request_id,
                    check=lambda _: logger.info("checking %s", request_id),
                )
                logger.info("after %s", request_id)

            await asyncio.gather(ask("r-1"), ask("r-2"))
            async with gateway.hold_slot("simulated/instant") as slot:
                await slot.generate_raw(HELLO)

    asyncio.run(scene())

    told = {
        line["message"]: line.get("request_id") for line in read(written) if line["logger"] == logger.name
    }
    assert told == {"checking r-1": "r-1", "checking r-2": "r-2", "after r-1": None, "after r-2": None}


def test_lines_of_a_task_carry_its_job_and_its_call(written: io.StringIO, tmp_path: Path) -> None:
    """The line about its end is written in a task that settles many jobs: it names its own all the same."""

    @headgate.task("chatty", model="simulated/instant")
    async def chatty(ctx: headgate.Context, given: str) -> None:
        logger.info("begun %s", given)
        await ctx.llm.complete(messages=HELLO, check=lambda _: logger.info("checking %s", given))
        raise headgate.Reject("as asked")

    async def scene() -> list[str]:
        settings = {"data_dir": str(tmp_path)}
        async with headgate.open(settings, env={}, tasks=[chatty], work=True) as gateway:
            handles = [await gateway.jobs.submit(chatty, given) for given in ("a", "b")]
            async with asyncio.timeout(20):
                for handle in handles:
                    await handle.wait()
            return [handle.id for handle in handles]

    first, second = asyncio.run(scene())
    lines = read(written)
    told = {line["message"]: line for line in lines if line["logger"] == logger.name}
    for given, job_id in (("a", first), ("b", second)):
        assert told[f"begun {given}"]["job_id"] == job_id
        assert "request_id" not in told[f"begun {given}"]
        assert told[f"checking {given}"]["job_id"] == job_id
        assert told[f"checking {given}"]["request_id"]
    letters = {line["job_id"]: line["message"] for line in lines if line["message"].startswith("dead_letter")}
    assert {job_id: f"job={job_id}" in message for job_id, message in letters.items()} == {
        first: True,
        second: True,
    }


def test_serve_writes_them_with_the_id_its_answers_have(tmp_path: Path) -> None:
    """Who holds an answer with an `x-request-id` finds its lines."""
    models = {**MODELS, "slow": {"upstreams": [{"provider": "simulated"}]}}
    with serving(tmp_path, "--log-format", "json", models=models) as served:
        for _ in range(3):
            assert served.ask("wrong-key")[0] == 502
        served.process.terminate()
        _, told = served.process.communicate(timeout=30)

    lines = [json.loads(line) for line in told.splitlines()]
    assert all({"timestamp", "level", "logger", "message"} <= set(line) for line in lines)
    (held,) = [line for line in lines if "is held back" in line["message"]]
    assert held["level"] == "ERROR"
    assert held["request_id"].startswith("req_")
    assert not [line for line in lines if line["message"].startswith("stopping") and "request_id" in line]


def work(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headgate", "work", "--burst", *words],
        cwd=folder,
        env={**os.environ, "HEADGATE_LOG_FORMAT": "json"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_work_takes_the_variable(tmp_path: Path) -> None:
    async def submit() -> str:
        async with headgate.open({"data_dir": str(tmp_path / ".headgate")}, env={}) as gateway:
            given = {"model": "simulated/rejecting", "messages": HELLO}
            return (await gateway.jobs.submit("chat", given)).id

    job_id = asyncio.run(submit())
    ended = work(tmp_path)

    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["job_id"] for line in lines if line["message"].startswith("dead_letter")] == [job_id]
    assert "headgate work: stopped" in ended.stdout


def test_a_format_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    ended = work(tmp_path, "--log-format", "xml")

    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
