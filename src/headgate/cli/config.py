"""`headgate config`: look at the settings."""

import typer
from rich.text import Text

from headgate.cli.options import ConfigOption
from headgate.cli.running import settings_with_tasks
from headgate.cli.screen import note
from headgate.settings.summary import summary

app = typer.Typer(help="Check the settings and print those in force.", no_args_is_help=True)


@app.command("check")
def check(config: ConfigOption = None) -> None:
    """Check the settings, the modules with tasks too, and print what is in force, with each model's worst case."""
    typer.echo(summary(settings_with_tasks(config, None)))
    note(Text("No mistakes. headgate doctor also asks the database and every upstream.", "dim"))
