"""A task that blocks the event loop is named in the log, while it does. In real time: virtual time does not lag."""

import asyncio
import logging
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import Context
from headgate.runner.lag import LagWatch


@headgate.task("blocks")
async def blocks(ctx: Context, seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - the mistake


@headgate.task("counts")
async def counts(ctx: Context, seconds: float) -> None:
    """In C, and without letting any other thread run."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(20_000_000))


@headgate.task("waits")
async def waits(ctx: Context, seconds: float) -> None:
    await asyncio.to_thread(time.sleep, seconds)


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "event loop" in record.getMessage()]


async def _run(folder: Path, task: Any, seconds: float) -> str:
    async with headgate.open({"data_dir": str(folder)}, work=True, tasks=[blocks, counts, waits]) as gateway:
        handle = await gateway.jobs.submit(task, seconds)
        await handle.result(timeout=30)
        return handle.id


@pytest.mark.parametrize("task", [blocks, counts], ids=lambda task: task.name)
def test_a_task_that_blocks_the_loop_is_named_with_its_job_and_the_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, task: headgate.Task[Any, Any]
) -> None:
    told: list[str] = []
    # On a busy machine the watching thread may not get its turn within the first block.
    for seconds in (1.5, 3.0, 6.0):
        job_id = asyncio.run(_run(tmp_path, task, seconds))
        told = [one for one in _told(caplog) if job_id in one]
        if told:
            break
    assert f"in task {task.name!r} of job {job_id}" in told[0]
    assert "test_lag.py" in told[0]
    assert "asyncio.to_thread" in told[0]


def test_a_task_that_waits_in_a_thread_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job_id = asyncio.run(_run(tmp_path, waits, 0.5))
    assert not [one for one in _told(caplog) if job_id in one]


def test_a_long_block_is_told_while_it_lasts_and_once_a_second_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A loop that stands still for longer than the lease loses its jobs: it must not be told only afterwards."""

    async def main() -> None:
        watch = LagWatch(lambda name: f"task {name!r}", busy=lambda: True)
        watch.start()
        asyncio.current_task().set_name("stuck")  # type: ignore[union-attr]
        await asyncio.sleep(0.2)
        time.sleep(2.5)  # noqa: ASYNC251 - the mistake
        for _ in range(5):
            time.sleep(0.2)  # noqa: ASYNC251 - the mistake
            await asyncio.sleep(0.01)
        watch.stop()

    with caplog.at_level(logging.WARNING, "headgate"):
        asyncio.run(main())
    records = [record for record in caplog.records if "event loop" in record.getMessage()]
    assert 3 <= len(records) <= 4
    assert all("in task 'stuck'" in record.getMessage() for record in records)
    times = [record.created for record in records]
    assert all(later - earlier > 0.95 for earlier, later in pairwise(times))


def test_it_leaves_no_thread_behind_and_stopping_twice_does_nothing() -> None:
    async def main() -> None:
        watch = LagWatch(lambda name: name, busy=lambda: True)
        watch.stop()
        watch.start()
        watch.stop()
        watch.stop()

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == before
