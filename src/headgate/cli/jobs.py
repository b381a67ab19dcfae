"""`headgate jobs`: list, show, submit, wait, cancel."""

import math
from typing import Annotated

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
from headgate.cli.reaching import reach
from headgate.cli.remote import UrlOption
from headgate.cli.screen import show, show_json
from headgate.core.job import JobState

app = typer.Typer(help="Submit, list, show, wait for and cancel jobs.", no_args_is_help=True)
app.command("submit", cls=submit.SubmitCommand)(submit.command)


@app.command("list")
def list_jobs(
    *,
    state: StateFilter = None,
    task: TaskFilter = None,
    model: ModelFilter = None,
    limit: LimitOption = 20,
    after: AfterOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """List jobs, newest first."""
    place = reach(url, tenant, config)
    found, more = place.page(
        lambda backend: backend.jobs(state=state, task=task, model=model, limit=limit, after=after)
    )
    filtered = any((state, task, model, after))
    show_page(
        found,
        more=more,
        as_json=as_json,
        none="No jobs match." if filtered else "There are no jobs. Submit one: headgate jobs submit --help",
    )
    place.name_it(as_json=as_json)


@app.command("show")
def show_one(
    job_id: JobArgument,
    full: FullOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Show all that is known of a job: how it stands, its history, its input and result."""
    job = reach(url, tenant, config).run_existing(lambda backend: backend.job(job_id))
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
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Wait until a job has ended and print its result.

    Exit code 0: completed or skipped; 1: a dead letter or cancelled; 3: not over in time.
    """
    patience_s = math.inf if timeout is None else timeout
    job = reach(url, tenant, config).run_existing(
        lambda backend: waiting.wait_for(backend, job_id, patience_s=patience_s)
    )
    raise typer.Exit(waiting.conclude(job, job_id, patience_s=patience_s, as_json=as_json))


@app.command("cancel")
def cancel(
    job_id: JobArgument, url: UrlOption = None, tenant: TenantOption = "local", config: ConfigOption = None
) -> None:
    """Cancel a job: a pending one at once, a running one as soon as its task lets go."""
    state = reach(url, tenant, config).run_existing(lambda backend: backend.cancel(job_id))
    if state is JobState.CANCELLED:
        show(f"{job_id} is cancelled")
    else:
        show(f"{job_id} is being cancelled: its worker has been told")
