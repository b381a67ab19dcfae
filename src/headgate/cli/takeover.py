"""The demo's second act: durable jobs, whose worker is killed with kill -9 halfway. Another takes over; then judge."""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from headgate import wiring
from headgate.core.job import Job, JobState
from headgate.gateway import Gateway

MODEL: Final = "articles"
PATIENCE_S: Final = 60.0
LOOK_EVERY_S: Final = 0.05


def _settings(folder: str, seed: int) -> dict[str, Any]:
    upstream = {
        "provider": "simulated",
        "slots": 16,
        "latency_s": 0.4,
        "latency": "exponential",
        "failures": {"transient": 0.1, "throttled": 0.02},
        "retry_after_s": 0.2,
        "seed": seed,
    }
    return {
        "data_dir": folder,
        "models": {MODEL: {"upstreams": [upstream]}},
        "jobs": {"workers": 32, "retry": {"first_wait_s": 0.2, "longest_wait_s": 1.0}},
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the store says of the jobs in the end."""

    accepted: int
    finished: int
    doubled: int
    ran_again: int
    """Were running when their worker was killed."""

    @property
    def holds(self) -> bool:
        return self.finished == self.accepted and not self.doubled


async def run(console: Console, *, jobs: int, seed: int) -> Outcome:
    console.print(
        f"\n[bold]{jobs} durable jobs[/] in one SQLite file; their worker, another process, is killed with kill -9"
        " halfway.\n"
    )
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder:
        settings = _settings(folder, seed)
        config = Path(folder) / "headgate.yaml"
        config.write_text(json.dumps(settings), encoding="utf-8")
        async with wiring.open(settings, env={}) as gateway:
            ids = await _submit(gateway, jobs)
            with _progress(console) as progress:
                bar = progress.add_task("", total=jobs)
                await _worker_that_dies(gateway, config, jobs // 2, progress, bar)
                await _worker_that_lives(gateway, config, jobs, progress, bar)
            outcome = judge([await gateway.jobs.get(job_id) for job_id in ids], jobs)
    _conclude(console, outcome)
    return outcome


async def _submit(gateway: Gateway, jobs: int) -> list[str]:
    handles = []
    for number in range(jobs):
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"article {number}"}]}
        handles.append(await gateway.jobs.submit("chat", body, idempotency_key=f"article {number}"))
    return [handle.id for handle in handles]


async def _worker_that_dies(
    gateway: Gateway, config: Path, enough: int, progress: Progress, bar: TaskID
) -> None:
    async with _worker(config) as process:
        await _until_done(gateway, enough, progress, bar, f"worker {process.pid} at work")
        process.kill()
        await process.wait()
    running = (await gateway.jobs.count())[JobState.RUNNING]
    progress.console.print(f"worker {process.pid}: kill -9, while {running} jobs were running")


async def _worker_that_lives(
    gateway: Gateway, config: Path, jobs: int, progress: Progress, bar: TaskID
) -> None:
    started = time.monotonic()
    async with _worker(config) as process:
        await _until_done(gateway, jobs, progress, bar, f"worker {process.pid} took over")
        progress.console.print(
            f"worker {process.pid}: took over and finished {time.monotonic() - started:.1f} s later"
        )


@contextlib.asynccontextmanager
async def _worker(config: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headgate",
        "work",
        "--config",
        str(config),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _until_done(gateway: Gateway, enough: int, progress: Progress, bar: TaskID, words: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    done = 0
    while done < enough and time.monotonic() < give_up_at:
        counts = await gateway.jobs.count()
        done = sum(counts[state] for state in JobState if state.final)
        progress.update(bar, completed=done, description=words)
        await asyncio.sleep(LOOK_EVERY_S)


def judge(jobs: list[Job], accepted: int) -> Outcome:
    """Every job has ended as completed, and its history tells of exactly one end."""
    ends = [sum(entry.outcome == "completed" for entry in job.history) for job in jobs]
    return Outcome(
        accepted=accepted,
        finished=sum(job.state is JobState.COMPLETED and job.result is not None for job in jobs),
        doubled=sum(max(0, count - 1) for count in ends),
        ran_again=sum(job.crashes > 0 for job in jobs),
    )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<26}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:.0f} of {task.total:.0f} done"),
        console=console,
        disable=not console.is_terminal,
    )


def _conclude(console: Console, outcome: Outcome) -> None:
    counts = f"{outcome.accepted} accepted, {outcome.finished} finished, {outcome.ran_again} ran again after the kill"
    if outcome.holds:
        console.print(f"[bold green]PASS[/] {counts}, each result stored once")
    else:
        console.print(f"[bold red]FAIL[/] {counts}, {outcome.doubled} stored twice")
