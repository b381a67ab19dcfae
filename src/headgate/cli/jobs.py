"""`headgate jobs`: list, show, submit, wait, cancel."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headgate.cli import submit, waiting
from headgate.cli.details import show_job
from headgate.cli.listing import show_page
from headgate.cli.options import (
    AfterOption,
    ConfigOption,
    FullOption,
    JobArgument,
    JsonOption,
    LimitOption,
    ModelFilter,
    StateFilter,
    TaskFilter,
    TenantOption,
    read_seconds,
)
from headgate.cli.running import run, settings_to_look
from headgate.cli.screen import show, show_json
from headgate.core.job import Job, JobState
from headgate.gateway import Gateway

app = typer.Typer(help="Submit jobs, look at them, wait for them.", no_args_is_help=True)
app.command("submit", cls=submit.SubmitCommand)(submit.command)


@app.command("list")
def list_jobs(
    state: StateFilter = None,
    task: TaskFilter = None,
    model: ModelFilter = None,
    limit: LimitOption = 20,
    after: AfterOption = None,
    as_json: JsonOption = False,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """List jobs, newest first."""

    async def look(gateway: Gateway) -> tuple[Sequence[Job], bool]:
        which: dict[str, Any] = {"state": state, "task": task, "model": model, "tenant": tenant}
        found = await gateway.jobs.list(**which, limit=limit, after=after)
        full = len(found) == limit
        return found, full and bool(await gateway.jobs.list(**which, limit=1, after=found[-1].id))

    found, more = run(settings_to_look(config), look)
    filtered = any((state, task, model, after))
    show_page(
        found,
        more=more,
        as_json=as_json,
        none="No jobs match." if filtered else "There are no jobs. Submit one: headgate jobs submit --help",
    )


@app.command("show")
def show_one(
    job_id: JobArgument,
    full: FullOption = False,
    as_json: JsonOption = False,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Show all that is known of a job: how it stands, its history, its input and result."""
    job = run(settings_to_look(config), lambda gateway: gateway.jobs.get(job_id, tenant=tenant))
    if as_json:
        show_json(job)
    else:
        show_job(job, full=full)


@app.command("wait")
def wait(
    job_id: JobArgument,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            parser=read_seconds,
            metavar="SECONDS",
            help="How long; default: as long as it takes.",
        ),
    ] = None,
    as_json: JsonOption = False,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Wait until a job has ended and print its result.

    Exit code 0: completed or skipped; 1: a dead letter or cancelled; 3: not over in time.
    """
    patience_s = math.inf if timeout is None else timeout
    job = run(
        settings_to_look(config),
        lambda gateway: waiting.wait_for(gateway, job_id, patience_s=patience_s, tenant=tenant),
    )
    raise typer.Exit(waiting.conclude(job, job_id, patience_s=patience_s, as_json=as_json))


@app.command("cancel")
def cancel(job_id: JobArgument, tenant: TenantOption = "local", config: ConfigOption = None) -> None:
    """Cancel a job: a pending one at once, a running one as soon as its task lets go."""
    state = run(settings_to_look(config), lambda gateway: gateway.jobs.cancel(job_id, tenant=tenant))
    if state is JobState.CANCELLED:
        show(f"{job_id} is cancelled")
    else:
        show(f"{job_id} is being cancelled: its worker has been told")
