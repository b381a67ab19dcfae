"""`headgate dead`: list, show, replay, discard."""

from collections.abc import Sequence
from typing import Annotated

import typer

from headgate.cli import bulk
from headgate.cli.backend import Backend, Verb
from headgate.cli.details import show_job
from headgate.cli.filters import Filter
from headgate.cli.inputs import read_input
from headgate.cli.listing import show_page
from headgate.cli.options import (
    AfterOption,
    ClassFilter,
    ConfigOption,
    FileOption,
    FullOption,
    JobArgument,
    JsonOption,
    LimitOption,
    ModelFilter,
    ReasonFilter,
    SinceFilter,
    TaskFilter,
    TasksOption,
    TenantOption,
    UntilFilter,
)
from headgate.cli.reaching import reach
from headgate.cli.remote import UrlOption
from headgate.cli.running import settings_to_look, settings_with_tasks
from headgate.cli.screen import show_json
from headgate.core.errors import InvalidRequest, StateConflict
from headgate.core.job import Job, JobState, as_dead_letter
from headgate.runner.dead_letters import REPLAYS_PER_S

app = typer.Typer(
    help="List, show, replay and discard dead letters: jobs that failed.",
    no_args_is_help=True,
)
IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Dead letters by id.", show_default=False)
]
InputOption = Annotated[
    str | None, typer.Option("--input", metavar="JSON", help="Another input, for one id; - reads stdin.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
PaceOption = Annotated[
    float,
    typer.Option(
        "--per-second",
        min=0.01,
        max=10_000,
        metavar="NUMBER",
        help="How many a second at most, with filters.",
    ),
]


@app.command("list")
def list_dead(
    *,
    task: TaskFilter = None,
    reason: ReasonFilter = None,
    model: ModelFilter = None,
    error_class: ClassFilter = None,
    since: SinceFilter = None,
    until: UntilFilter = None,
    limit: LimitOption = 20,
    after: AfterOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """List dead letters, newest first."""
    which = Filter(task=task, reason=reason, model=model, error_class=error_class, since=since, until=until)

    async def page(backend: Backend) -> tuple[Sequence[Job], bool]:
        chosen = which.at(await backend.now()) if which.relative else which
        return await backend.dead(chosen, limit=limit, after=after)

    place = reach(url, tenant, config)
    found, more = place.page(page)
    none = "No dead letters match." if which.given or after else "There are no dead letters."
    show_page(found, more=more, as_json=as_json, dead=True, none=none)
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
    """Show all that is known of a dead letter."""
    job = reach(url, tenant, config).run_existing(lambda backend: backend.job(job_id))
    if job.state is not JobState.DEAD_LETTER:
        raise StateConflict(
            f"job {job_id} is {job.state}, not a dead letter. Try: headgate jobs show {job_id}"
        )
    if as_json:
        show_json(as_dead_letter(job))
    else:
        show_job(job, full=full)


@app.command("replay")
def replay(
    ids: IdsArgument = None,
    *,
    task: TaskFilter = None,
    reason: ReasonFilter = None,
    model: ModelFilter = None,
    error_class: ClassFilter = None,
    since: SinceFilter = None,
    until: UntilFilter = None,
    words: InputOption = None,
    file: FileOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    per_second: PaceOption = REPLAYS_PER_S,
    tasks: TasksOption = None,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Send dead letters back to work: some by id, or all that match the filters."""
    edited = words is not None or file is not None
    order = bulk.Order(
        verb=Verb.REPLAY,
        ids=tuple(dict.fromkeys(ids or ())),
        which=Filter(
            task=task, reason=reason, model=model, error_class=error_class, since=since, until=until
        ),
        new_input=read_input(words, file) if edited else None,
        dry_run=dry_run,
        yes=yes,
        per_second=per_second,
    )
    if edited and (len(order.ids) != 1 or order.new_input is None):
        raise InvalidRequest(
            "another input is for one dead letter: give its id, and an input that is not null"
        )
    place = reach(
        url,
        tenant,
        config,
        # A new input has to be one that its task takes.
        lambda config: settings_with_tasks(config, tasks) if edited else settings_to_look(config),
    )
    raise typer.Exit(bulk.carry_out(order, place))


@app.command("discard")
def discard(
    ids: IdsArgument = None,
    *,
    task: TaskFilter = None,
    reason: ReasonFilter = None,
    model: ModelFilter = None,
    error_class: ClassFilter = None,
    since: SinceFilter = None,
    until: UntilFilter = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    per_second: PaceOption = REPLAYS_PER_S,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Let dead letters go: some by id, or all that match the filters. They end as cancelled, discarded."""
    order = bulk.Order(
        verb=Verb.DISCARD,
        ids=tuple(dict.fromkeys(ids or ())),
        which=Filter(
            task=task, reason=reason, model=model, error_class=error_class, since=since, until=until
        ),
        dry_run=dry_run,
        yes=yes,
        per_second=per_second,
    )
    raise typer.Exit(bulk.carry_out(order, reach(url, tenant, config)))
