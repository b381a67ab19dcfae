"""Bells between processes that share a file: heard at once, and never anybody's trouble."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Figure
from contracts.job_stage import NOW, a_job
from stores_under_test import new_id

from headgate.core.ports.store import StoreHealth
from headgate.machine.clock import SystemClock
from headgate.stores.sqlite import SqliteStore
from headgate.stores.sqlite.doorbell import SUFFIX

PROMPT_S = 0.1
ROUNDS = 5
_CHILD = """
import asyncio, sys, time
from pathlib import Path
from stores_under_test import new_id
from headgate.machine.clock import SystemClock
from headgate.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]), clock=SystemClock(), new_id=new_id)
    await store.open()
    store.on_ready(lambda: print(time.monotonic(), flush=True))
    print("listening", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def listener(path: Path) -> "subprocess.Popen[str]":
    """Another process on the same file, which says when it hears the bell."""
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "listening\n"
    return child


def ended(child: "subprocess.Popen[str]") -> None:
    """As `kill -9` ends it: its bell stays behind."""
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


async def opened(path: Path) -> SqliteStore:
    """A store that listens for jobs, as a worker's does."""
    store = SqliteStore(path, clock=SystemClock(), new_id=new_id)
    await store.open()
    store.on_ready(lambda: None)
    return store


def bells(path: Path) -> list[Path]:
    return sorted((path.parent / "nodes").glob(f"*{SUFFIX}"))


def test_another_process_hears_of_a_job_at_once(tmp_path: Path, figure: Figure) -> None:
    """A worker that sleeps until its next look would be up to a second late, for each job."""
    path = tmp_path / "jobs.db"
    child = listener(path)

    async def main() -> list[float]:
        store, waits = await opened(path), []
        for _ in range(ROUNDS):
            begun = time.monotonic()
            await store.accept([a_job()], now=NOW)
            assert child.stdout is not None
            heard = await asyncio.to_thread(child.stdout.readline)
            waits.append(float(heard) - begun)
            await asyncio.sleep(0.1)
            _skip_echoes(child)
        await store.aclose()
        return waits

    try:
        waits = asyncio.run(main())
    finally:
        ended(child)
    figure("a job wakes another process after", f"{min(waits) * 1000:.1f} ms at best (≤ 100)")
    assert min(waits) < PROMPT_S


def _skip_echoes(child: "subprocess.Popen[str]") -> None:
    """A second ring for the same job, a few milliseconds later, is part of the deal."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    while child.stdout.readline():
        pass
    os.set_blocking(child.stdout.fileno(), True)


def test_the_bell_of_a_dead_process_is_harmless_and_cleared_away(tmp_path: Path) -> None:
    """It died without taking its bell along: ringing there must neither wait nor fail."""
    path = tmp_path / "jobs.db"
    child = listener(path)
    ended(child)
    assert len(bells(path)) == 1

    async def main() -> None:
        store = await opened(path)
        begun = time.monotonic()
        await store.accept([a_job()], now=NOW)
        assert time.monotonic() - begun < 1.0
        assert len(bells(path)) == 1, "only our own is left"
        await store.aclose()

    asyncio.run(main())
    assert bells(path) == []


def test_a_listener_that_never_listens_holds_up_nobody(tmp_path: Path) -> None:
    """A process that hangs leaves its pipe full: whoever rings goes on."""
    path = tmp_path / "jobs.db"
    child = listener(path)
    child.send_signal(signal.SIGSTOP)

    async def main() -> None:
        store = await opened(path)
        for _ in range(70_000):
            store._doorbell._ring_all()
        begun = time.monotonic()
        await store.accept([a_job()], now=NOW)
        assert time.monotonic() - begun < 1.0
        await store.aclose()

    try:
        asyncio.run(main())
    finally:
        child.send_signal(signal.SIGCONT)
        ended(child)


def _a_file(path: Path) -> None:
    path.write_text("not a pipe")


def _a_locked_file(path: Path) -> None:
    path.touch(0o000)


def _a_dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize("make", [_a_file, _a_locked_file, _a_dangling_link, Path.mkdir, os.mkfifo])
def test_odd_things_among_the_bells_are_harmless(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """The folder is on somebody's disk; anything may lie in it."""
    folder = tmp_path / "nodes"
    folder.mkdir()
    make(folder / f"odd{SUFFIX}")

    async def main() -> None:
        store = await opened(tmp_path / "jobs.db")
        assert len(await store.accept([a_job()], now=NOW)) == 1
        assert store.health is StoreHealth.OK
        await store.aclose()

    asyncio.run(main())


def test_a_folder_that_vanishes_is_harmless(tmp_path: Path) -> None:
    """Somebody tidies up: the jobs are in the file, not in the bells."""

    async def main() -> None:
        store = await opened(tmp_path / "jobs.db")
        for bell in bells(tmp_path / "jobs.db"):
            bell.unlink()
        (tmp_path / "nodes").rmdir()
        assert len(await store.accept([a_job()], now=NOW)) == 1
        (tmp_path / "nodes").write_text("now a file")
        await asyncio.sleep(0.1)
        assert len(await store.accept([a_job()], now=NOW)) == 1
        await store.aclose()

    asyncio.run(main())
