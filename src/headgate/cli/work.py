"""`headgate work`: a worker node, from its first line to its last."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer

from headgate.cli.logs import LogFormat, log_to_stderr
from headgate.cli.options import ConfigOption, LogFormatOption, TasksOption, read_seconds
from headgate.cli.running import reload_on_hangup, run_for_long, settings_reader
from headgate.cli.screen import say_at_the_end
from headgate.cli.signals import Signals
from headgate.cli.telling import Tally, words_for
from headgate.cli.words import count_of, one_line
from headgate.core.errors import StoreUnavailable
from headgate.core.job import JobState
from headgate.core.ports.jobs import JobFilter
from headgate.gateway import DRAIN_S, Gateway
from headgate.machine.clock import SystemClock
from headgate.runner.durable import Durable
from headgate.settings import Settings
from headgate.wiring import open as open_gateway
from headgate.wiring.alerting import alerting

logger = logging.getLogger("headgate")
LOOK_EVERY_S: Final = 0.25
LEFTOVERS_S: Final = 5.0
"""How long what a task left running may keep the process from its end."""


def command(
    context: typer.Context,
    tasks: TasksOption = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=10_000, help="Jobs at a time; default: the settings'."),
    ] = None,
    burst: Annotated[
        bool, typer.Option("--burst", help="Stop once no job is pending or running any more.")
    ] = False,
    drain: Annotated[
        float,
        typer.Option(
            "--drain",
            parser=read_seconds,
            metavar="SECONDS",
            help="How long what runs may go on after a signal, to finish.",
        ),
    ] = DRAIN_S,
    log_format: LogFormatOption = LogFormat.TEXT,
    config: ConfigOption = None,
) -> None:
    """Run jobs without serving HTTP: a worker node.

    SIGINT or SIGTERM stops it: running jobs may finish, the rest goes back to the queue. A stop takes --drain
    seconds at most, and up to 15 more where tasks do not let go: a process manager should wait that long. A
    second signal gives back at once what still runs. Jobs that are given back lose no attempt.
    """
    read = settings_reader(context, config, tasks, workers)
    # Once every job is settled, a task that would not stop, or its thread, must not keep the process alive.
    leftovers = threading.Timer(LEFTOVERS_S, os._exit, [0])
    leftovers.daemon = True
    run_for_long(_work(read, log_format, burst=burst, drain_s=drain, over=leftovers.start))
    leftovers.cancel()


async def _work(
    read: Callable[[], Settings],
    log_format: LogFormat,
    *,
    burst: bool,
    drain_s: float,
    over: Callable[[], None],
) -> None:
    with Signals(signal.SIGINT, signal.SIGTERM) as signals:
        counts = await _work_until(read, log_format, signals, burst=burst, drain_s=drain_s)
    say_at_the_end(f"headgate work: stopped; {words_for(counts)}")
    over()


async def _work_until(
    read: Callable[[], Settings], log_format: LogFormat, signals: Signals, *, burst: bool, drain_s: float
) -> Mapping[str, int]:
    settings, clock = read(), SystemClock()
    async with open_gateway(settings, clock=clock) as gateway, alerting(settings, gateway, clock):
        # Not before: the settings in force are on record with `headgate config check`.
        log_to_stderr(logging.INFO, log_format)
        tally = Tally()
        gateway.listen(tally.hear)
        reload_on_hangup(gateway, read)
        await gateway.work()
        typer.echo(_first_line(gateway.durable))
        async with tally.told():
            await _until_over(gateway, signals, burst=burst)
            tally.stopping = True
            await _drain(gateway.durable, signals, drain_s)
    return tally.counts


def _first_line(durable: Durable) -> str:
    names = durable.tasks.names()
    tasks = f"{count_of(len(names), 'task')} ({', '.join(names)})"
    workers = count_of(durable.rules.workers, "worker")
    return one_line(f"headgate work: {durable.store.name}, {durable.node.id}, {workers}, {tasks}")


async def _until_over(gateway: Gateway, signals: Signals, *, burst: bool) -> None:
    ends: list[asyncio.Task[Any]] = [asyncio.create_task(signals.first.wait())]
    if burst:
        ends.append(asyncio.create_task(_all_done(gateway)))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()


async def _all_done(gateway: Gateway) -> None:
    """Return when no job of any tenant is pending or running."""
    while True:
        try:
            if not await _any_live(gateway):
                return
        except StoreUnavailable as error:
            if not error.waiting_helps:
                raise
        await asyncio.sleep(LOOK_EVERY_S)


async def _any_live(gateway: Gateway) -> bool:
    for state in (JobState.RUNNING, JobState.PENDING):
        if await gateway.durable.store.select(JobFilter(state=state), limit=1):
            return True
    # Between the two looks a job may have gone from one to the other. One look at both settles it; it costs more.
    counts = await gateway.jobs.count(tenant=None)
    return bool(counts[JobState.RUNNING] + counts[JobState.PENDING])


async def _drain(durable: Durable, signals: Signals, drain_s: float) -> None:
    """Claim nothing more, let what runs finish; a second signal gives it back at once."""
    if durable.running:
        logger.info(
            "stopping: %s %g s to finish; a second signal gives back at once what still runs",
            f"{count_of(durable.running, 'job')} {'has' if durable.running == 1 else 'have'}",
            drain_s,
        )
    finishing = asyncio.create_task(durable.stop_working(drain_s))
    hurry = asyncio.create_task(signals.second.wait())
    await asyncio.wait({finishing, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not finishing.done():
        await durable.stop_working(0.0)
    hurry.cancel()
    await finishing
