"""The commands and their arguments. What they do lives in the modules they call."""

import asyncio
import io
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

import headgate
from headgate.cli import demo, storm
from headgate.core.errors import HeadgateError
from headgate.settings.summary import summary
from headgate.wiring import read_settings

app = typer.Typer(
    name="headgate",
    help="Dependable LLM calls: honest queues, calm retries, one deadline.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
config = typer.Typer(help="Look at the settings.", no_args_is_help=True)
app.add_typer(config, name="config")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file; default ./headgate.yaml if there is one."),
]


@app.callback(invoke_without_command=True)
def front(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"headgate {headgate.__version__}")
        raise typer.Exit


@app.command("demo")
def run_demo(
    calls: Annotated[int, typer.Option(min=1, max=100_000, help="How many calls the storm has.")] = 400,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long new calls keep coming.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Where the storm's chance begins.")] = 7,
) -> None:
    """Send a storm of calls to simulated upstreams that throttle, fail and go down; then judge.

    Exit code 0 only if no call was lost and none was answered twice.
    """
    verdict = asyncio.run(demo.run(storm.Plan(calls=calls, seed=seed, seconds=seconds), Console()))
    raise typer.Exit(0 if verdict.holds else 1)


@config.command("check")
def check(config: ConfigOption = None) -> None:
    """Check the settings and print what is in force, with each model's worst case."""
    typer.echo(summary(read_settings(config)))


def main() -> NoReturn:
    """Run the command line; mistakes of the user end with a message and exit code 2, not a traceback."""
    # A terminal that cannot show a bar or a dash gets a question mark, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except HeadgateError as error:
        typer.echo(f"headgate: {error}", err=True)
        raise SystemExit(2) from None
    raise SystemExit(0)
