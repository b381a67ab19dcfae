"""What the jobs of the crash tests do: leave a line for every run, and one recorded effect if they get to their end."""

import asyncio
import os
import signal
import time
from typing import Any

import msgspec
from crash.ledger import Ledger

import headgate
from headgate.runner.context import Context
from headgate.runner.tasks import Task

EFFECTS = "effects"
"""The ledger of runs, and the collection of the records that came of them."""
THOUGHTS = "thoughts"


class Work(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job's input."""

    run_s: float = 0.0
    only_in: int | None = None
    """The process in which it takes its time; in any other it is done at once."""
    thinks: bool = False
    """It has a durable step and tells its progress."""
    fails: bool = False
    deadly: bool = False


class Worker:
    """The task `effect`, with the ledgers it writes to. `pace` stretches or skips all waiting."""

    def __init__(self, ledgers: str, pace: float = 1.0) -> None:
        self._runs = Ledger(ledgers, EFFECTS)
        self._thoughts = Ledger(ledgers, THOUGHTS)
        self._pace = pace

    def tasks(self) -> list[Task[Any, Any]]:
        return [headgate.task("effect", timeout_s=120)(self.effect)]

    async def effect(self, ctx: Context, work: Work) -> dict[str, str]:
        run = f"{os.getpid()}-{time.time_ns()}"
        self._runs.add(job=ctx.job.id, run=run)
        if work.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if work.fails:
            raise ValueError("as asked")
        if work.thinks:
            await self._think(ctx, run)
        if work.only_in in {None, os.getpid()}:
            await asyncio.sleep(work.run_s * self._pace)
        # A name of its own for every run: two recorded runs of one job would be two records.
        ctx.save(EFFECTS, f"{ctx.job.id}.{run}", {"run": run})
        return {"run": run}

    async def _think(self, ctx: Context, run: str) -> None:
        async def think() -> str:
            return run

        thought = await ctx.step("think", think)
        self._thoughts.add(job=ctx.job.id, thought=thought)
        await ctx.progress(1, 1)
