"""The commands, registered. What they do lives in the modules named here."""

import logging
import os
from typing import Annotated

import typer

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
from headgate.settings.dotenv import Dotenv

app = typer.Typer(
    name="headgate",
    help="Dependable LLM calls and jobs: honest queues, calm retries, nothing lost.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.command)
app.command("work")(work.command)
app.add_typer(jobs.app, name="jobs")
app.add_typer(dead.app, name="dead")
app.add_typer(batches.app, name="batches")
app.add_typer(keys.app, name="keys")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(models.app, name="models")
app.add_typer(requests.app, name="requests")
app.add_typer(alerts.app, name="alerts")
app.add_typer(outbox.app, name="outbox")
app.add_typer(bookmark.app, name="bookmark")
app.add_typer(newsletter.app, name="newsletter")
app.add_typer(config.app, name="config")
app.command("plan")(plan.command)
app.command("doctor")(doctor.command)
app.command("demo")(demo.command)


@app.callback(invoke_without_command=True)
def front(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"headgate {headgate.__version__}")
        raise typer.Exit
    # Into the process's own environment: AWS's and OpenTelemetry's libraries read theirs only there.
    dotenv = context.obj = Dotenv(os.environ)
    context.call_on_close(dotenv.withdraw)
    dotenv.read()
    log_to_stderr(logging.WARNING, format_by_environment())
