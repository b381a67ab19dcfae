"""`headgate demo`: its options, its end."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.entry import INTERRUPTED
from headgate.cli.running import run_for_long
from headgate.cli.screen import stdout

if TYPE_CHECKING:
    from headgate.cli.demo.plan import Plan

_STOPS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def command(
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long new calls keep coming.")] = 60.0,
    calls: Annotated[int, typer.Option(min=4, max=100_000, help="How many interactive calls.")] = 400,
    jobs: Annotated[int, typer.Option(min=1, max=2000, help="How many durable jobs.")] = 100,
    lines: Annotated[int, typer.Option(min=1, max=2000, help="How many lines the batch file has.")] = 40,
    keys: Annotated[int, typer.Option(min=1, max=1000, help="How many keys are used several times.")] = 10,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Where the storm's chance begins.")] = 7,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep the gateway open afterwards, to look at.")
    ] = False,
) -> None:
    """Run a failure demo on real processes, with a verdict.

    Upstreams throttle and fail, a worker is killed with kill -9, a job kills its workers. Everything runs on
    this machine: no keys, no network, nothing left behind. Exit code 0 only if nothing was lost, nothing was
    done twice and every promise was kept.
    """
    # Here: the other commands need not wait for the HTTP stack.
    from headgate.cli.demo.plan import Plan  # noqa: PLC0415
    from headgate.cli.demo.processes import forget_surroundings  # noqa: PLC0415

    forget_surroundings()
    plan = Plan(calls=calls, jobs=jobs, lines=lines, keys=keys, seconds=seconds, seed=seed)
    raise typer.Exit(run_for_long(_until_stopped(_play(plan, stay=stay))))


async def _until_stopped(playing: Coroutine[Any, Any, int]) -> int:
    """However often Ctrl-C is pressed, what was started is ended in peace: that takes a moment."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOPS:
        loop.add_signal_handler(number, stopped.set)
    play, stop = asyncio.create_task(playing), asyncio.create_task(stopped.wait())
    await asyncio.wait({play, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    play.cancel()
    await asyncio.wait({play})
    return INTERRUPTED if play.cancelled() else _result(play)


def _result(play: "asyncio.Task[int]") -> int:
    """Of several things that failed at once, the first is told."""
    error: BaseException | None = play.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
    return play.result()


async def _play(plan: "Plan", *, stay: bool) -> int:
    from headgate.cli.demo import report, storm  # noqa: PLC0415 - as above
    from headgate.cli.demo.scene import open_scene  # noqa: PLC0415 - as above
    from headgate.cli.demo.screen import Screen  # noqa: PLC0415 - as above

    screen = Screen(stdout())
    screen.show(
        f"A storm on a gateway of its own: {plan.calls} calls, {plan.jobs} jobs, a batch of {plan.lines} lines.\n"
        "Upstreams throttle, fail and go down; workers are killed. No keys, no network.\n"
    )
    async with open_scene(plan, screen.tell) as scene:
        async with screen.showing(scene):
            verdict = await storm.blow(scene)
        screen.show("", report.figures(scene.books, verdict), "")
        screen.show(report.sentence(verdict), *report.findings(verdict))
        if stay:
            screen.show(report.what_to_look_at(scene.url))
            with contextlib.suppress(
                asyncio.CancelledError
            ):  # Ctrl-C is how staying ends; the verdict stands.
                await storm.stay(scene)
    return 0 if verdict.holds else 1
