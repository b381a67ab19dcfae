"""The commands, registered. What they do lives in the modules named here."""

import logging
import os
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import headgate
from headgate.cli import (
    alerts,
    batches,
    bookmark,
    config,
    dead,
    demo,
    doctor,
    jobs,
    keys,
    models,
    newsletter,
    outbox,
    plan,
    requests,
    serve,
    webhooks,
    work,
)
from headgate.cli.logs import format_by_environment, log_to_stderr
from headgate.core.problems import InvalidSettings
from headgate.settings.dotenv import Dotenv

_LONGEST_SUMMARY: Final = 1000
_GROUPS: Final = {
    "Set up": {"config": config.app},
    "Work": {"jobs": jobs.app, "dead": dead.app, "batches": batches.app, "outbox": outbox.app},
    "Operate": {
        "models": models.app,
        "requests": requests.app,
        "alerts": alerts.app,
        "keys": keys.app,
        "webhooks": webhooks.app,
    },
    "Applications": {"bookmark": bookmark.app, "newsletter": newsletter.app},
}
"""The groups of commands, by the panel of the front page."""


class _Group(TyperGroup):
    """A group whose help shows the whole first sentence of each command, under the heading of its panel.

    It reads `.env` before a command is parsed: options may come from the environment.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, _Group):
            return name, command, rest
        # Into the process's own environment: AWS's and OpenTelemetry's libraries read theirs only there.
        dotenv = ctx.obj = Dotenv(os.environ)
        ctx.call_on_close(dotenv.withdraw)
        try:
            dotenv.read()
        except InvalidSettings:
            if command is not None:
                # Shows the command's help if that is what was asked for, and exits.
                command.make_context(name, list(rest), parent=ctx)
            raise
        log_to_stderr(logging.WARNING, format_by_environment())
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            panels.setdefault(panel, []).append((name, command.get_short_help_str(_LONGEST_SUMMARY)))
        column = max(map(len, self.commands))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(column), summary) for name, summary in rows])


app = typer.Typer(
    name="headgate",
    cls=_Group,
    help="Dependable LLM calls and jobs: bounded queues, calm retries, nothing lost.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("serve", rich_help_panel="Run")(serve.command)
app.command("work", rich_help_panel="Run")(work.command)
app.command("demo", rich_help_panel="Run")(demo.command)
app.command("plan", rich_help_panel="Set up")(plan.command)
app.command("doctor", rich_help_panel="Set up")(doctor.command)
for _panel, _groups in _GROUPS.items():
    for _name, _group in _groups.items():
        app.add_typer(_group, name=_name, cls=_Group, rich_help_panel=_panel)


@app.callback(invoke_without_command=True)
def front(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"headgate {headgate.__version__}")
        raise typer.Exit
