"""`headgate serve`: the HTTP gateway, and a worker in the same process unless told otherwise."""

import asyncio
import errno
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headgate.cli.logs import LogFormat, log_to_stderr
from headgate.cli.options import ConfigOption, LogFormatOption, TasksOption
from headgate.cli.running import reload_on_hangup, run_for_long, settings_reader
from headgate.cli.screen import say_at_the_end
from headgate.cli.signals import Signals
from headgate.cli.words import count_of, one_line
from headgate.core.errors import SettingsError
from headgate.doctor.ports import who_listens
from headgate.settings import Settings
from headgate.settings.front import Address
from headgate.settings.summary import brief

if TYPE_CHECKING:
    from headgate.wiring.serving import Served

logger = logging.getLogger("headgate")
_MOST_NAMED: Final = 5


def command(
    context: typer.Context,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Instead of the settings'.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65_535,
            metavar="PORT",
            help="Port to listen on; overrides the port of --listen and of the settings.",
        ),
    ] = None,
    no_work: Annotated[bool, typer.Option("--no-work", help="Take jobs in, but run none here.")] = False,
    tasks: TasksOption = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=10_000, help="Jobs at a time; default: the settings'."),
    ] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    config: ConfigOption = None,
) -> None:
    """Serve models over HTTP in OpenAI's format, and run jobs.

    SIGINT or SIGTERM stops it: new requests are refused, requests in flight have `limits.drain_s` seconds to
    finish, and jobs that have not ended by then go back to the queue without a lost attempt. A second signal
    stops it at once.
    """
    # First: what is left aside among the settings is told in the log.
    log_to_stderr(logging.INFO, log_format)
    read_file = settings_reader(context, config, tasks, workers)

    def read() -> Settings:
        settings = read_file()
        settings = settings if listen is None else replace(settings, listen=listen)
        return (
            settings if port is None else replace(settings, listen=str(replace(settings.address, port=port)))
        )

    settings = read()
    try:
        run_for_long(_serve(settings, read, work=not no_work))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise SettingsError(_taken(settings.address)) from error


def _taken(address: Address) -> str:
    who = who_listens(address.port)
    by = f"by {who}" if who else "by another process"
    return (
        f"{address} is taken {by}. Stop it, or use another port: --port {address.port + 1}, or `listen` in the"
        " settings."
    )


async def _serve(settings: Settings, read: Callable[[], Settings], *, work: bool) -> None:
    from headgate.wiring.serving import serve  # noqa: PLC0415 - no other command need wait for the HTTP stack

    with Signals(signal.SIGINT, signal.SIGTERM) as signals:
        async with serve(settings, work=work) as served:
            # Before the first line: who reads it may send a signal at once, and unheard it would end us.
            reload_on_hangup(served.gateway, read)
            typer.echo(_first_line(served, work=work))
            logger.info("%s", brief(settings))
            if served.note is not None:
                logger.info("%s", served.note)
            logger.info("slots, learned limits, retry budgets and the limits of keys are per process")
            await signals.first.wait()
            logger.info(
                "stopping: requests in flight have %g s to finish; a second signal stops at once",
                settings.limits.drain_s,
            )
            await _drain(served, signals, settings.limits.drain_s)
    say_at_the_end("headgate serve: stopped")


async def _drain(served: "Served", signals: Signals, drain_s: float) -> None:
    """A second signal ends the patience."""
    stopping = asyncio.create_task(served.serving.stop(drain_s))
    hurry = asyncio.create_task(signals.second.wait())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        await served.serving.stop(0.0)
    hurry.cancel()
    await stopping


def _first_line(served: "Served", *, work: bool) -> str:
    names = served.gateway.routes.names()
    named = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    models = f"{count_of(len(names), 'model')} ({named})"
    workers = count_of(served.gateway.durable.rules.workers, "worker") if work else "no worker"
    return one_line(f"headgate serve: {served.url}, {models}, {served.gateway.durable.store.name}, {workers}")
