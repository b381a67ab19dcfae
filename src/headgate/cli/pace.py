"""Following something that goes on for long in steps: a bar that moves, and Ctrl-C that ends it between two steps."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from headgate.cli.screen import stderr
from headgate.cli.signals import Signals


@dataclass(slots=True)
class Course:
    """How far it came."""

    done: int = 0
    stopped: bool = False


async def follow(steps: AsyncGenerator[int, None], total: int, per_second: float) -> Course:
    """Take step after step until the last, or until Ctrl-C. Each says how many are done so far."""
    course = Course()
    async with contextlib.aclosing(steps):
        with Signals(signal.SIGINT, signal.SIGTERM) as signals, _bar() as bar:
            stop = signals.first
            line = bar.add_task("", total=total)
            rest_s = 0.0
            while not stop.is_set() and (done := await _next(steps, stop, rest_s)) is not None:
                rest_s = (done - course.done) / per_second
                course.done = done
                bar.update(line, completed=done)
            course.stopped = stop.is_set()
    return course


async def _next(steps: AsyncIterator[int], stop: asyncio.Event, rest_s: float) -> int | None:
    """The next step; None after the last, or when it was stopped.

    A step begins with a rest that keeps the pace. Only that is cut short: what is then being done gets counted.
    """
    step = asyncio.ensure_future(anext(steps, None))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        ready, _ = await asyncio.wait({step, stopping}, timeout=rest_s, return_when=asyncio.FIRST_COMPLETED)
        if stopping in ready and not step.done():
            step.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await step
            return None
        return await step
    finally:
        stopping.cancel()


def _bar() -> Progress:
    screen = stderr()
    columns = (BarColumn(bar_width=40), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
