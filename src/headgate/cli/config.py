"""`headgate config`: look at the settings."""

import typer

from headgate.cli.options import ConfigOption
from headgate.settings.summary import summary
from headgate.wiring import read_settings

app = typer.Typer(help="Look at the settings.", no_args_is_help=True)


@app.command("check")
def check(config: ConfigOption = None) -> None:
    """Check the settings and print what is in force, with each model's worst case."""
    typer.echo(summary(read_settings(config)))
