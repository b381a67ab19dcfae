"""A command's gateway: the settings it works with, the tasks it needs, the loop it runs on."""

import asyncio
import getpass
import importlib
import logging
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import typer

from headgate import wiring
from headgate.core.errors import HeadgateError, SettingsError
from headgate.gateway import Gateway
from headgate.settings import DEFAULT_FILE, Settings
from headgate.settings.dotenv import Dotenv
from headgate.wiring.stores import database_file, database_name

logger = logging.getLogger("headgate")
T = TypeVar("T")


def settings_to_look(config: Path | None) -> Settings:
    """Settings for commands that run no task: they work where the tasks' code is not, or is broken."""
    settings = wiring.read_settings(config)
    return replace(settings, jobs=replace(settings.jobs, tasks=()))


def settings_with_tasks(
    config: Path | None, tasks: Sequence[str] | None, workers: int | None = None
) -> Settings:
    """Settings for commands that must know the tasks: the file's, and those named on the command line."""
    settings = wiring.read_settings(config)
    known = tuple(dict.fromkeys((*settings.jobs.tasks, *(tasks or ()))))
    jobs = replace(settings.jobs, tasks=known, workers=workers or settings.jobs.workers)
    if known:
        _find_modules_here()
    for path in known:
        _load(path)
    return replace(settings, jobs=jobs)


def settings_reader(
    context: typer.Context, config: Path | None, tasks: Sequence[str] | None, workers: int | None
) -> Callable[[], Settings]:
    """Reads the settings of a command that reads them again on SIGHUP, `.env` first."""
    # A file that exists now is required from here on: if it vanishes, a reload must not take all models.
    source = config or (Path(DEFAULT_FILE) if Path(DEFAULT_FILE).exists() else None)

    dotenv: Dotenv = context.obj

    def read() -> Settings:
        dotenv.read()
        return settings_with_tasks(source, tasks, workers)

    return read


def user_name() -> str:
    """Who is asking, for the job's history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "local"


def run(settings: Settings, action: Callable[[Gateway], Awaitable[T]]) -> T:
    """Open the gateway, without a worker, and do this with it. A database that is missing is created."""

    async def main() -> T:
        async with wiring.open(settings) as gateway:
            return await action(gateway)

    return asyncio.run(main())


def run_existing(settings: Settings, action: Callable[[Gateway], Awaitable[T]]) -> T:
    """The same with a database that must exist: the command is refused where it is missing."""
    if database_is_missing(settings):
        raise SettingsError(
            f"{database_name(settings)} does not exist, so there is nothing in it. Run this in the folder of the"
            " gateway's headgate.yaml, or name that file with --config"
        )
    return run_creating_nothing(settings, action)


def run_creating_nothing(settings: Settings, action: Callable[[Gateway], Awaitable[T]]) -> T:
    """Build the gateway and do this with it. Nothing is written unless the action does."""

    async def main() -> T:
        gateway = wiring.build(settings)
        try:
            return await action(gateway)
        finally:
            await gateway.aclose()

    return asyncio.run(main())


def database_is_missing(settings: Settings) -> bool:
    """False where its folder cannot be one: opening it says what is wrong."""
    file = database_file(settings)
    if file is None or file.exists():
        return False
    return file.parent.is_dir() or not file.parent.exists()


def run_for_long(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop where there is one."""
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(main)


def reload_on_hangup(gateway: Gateway, read: Callable[[], Settings]) -> None:
    """At SIGHUP, where there is such a signal."""
    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, gateway, read)


def _reload(gateway: Gateway, read: Callable[[], Settings]) -> None:
    """Read the settings again. If they are wrong, those in force stay in force."""
    try:
        gateway.reload(read())
    except HeadgateError as error:
        logger.error("the settings are not reloaded, the old ones stay in force: %s", error)  # noqa: TRY400 - one's own mistake
    else:
        names = ", ".join(gateway.routes.names())
        logger.info("the models are reloaded: %s. Everything else in the settings needs a new start.", names)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - not everywhere
    except ImportError:
        return None
    return new_event_loop


def _find_modules_here() -> None:
    """`--tasks tasks` finds ./tasks.py, also when headgate is a script of another folder."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _load(path: str) -> None:
    try:
        importlib.import_module(path.partition(":")[0])
    except SettingsError:
        raise
    except Exception as error:  # A module of tasks is anybody's code.
        what = f"{type(error).__name__}: {error}"
        raise SettingsError(f"the tasks of {path!r} cannot be loaded: {what}{_place_of(error)}") from error


def _place_of(error: Exception) -> str:
    """The line of theirs that broke, not one of the import system's or ours."""
    ours = (__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<")
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
