"""`headgate webhooks`: secret, rotate, list, redeliver, enable."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final

import typer
from rich.text import Text

from headgate.cli.listing import STYLES, show_page, standing
from headgate.cli.options import (
    AfterOption,
    ConfigOption,
    JobArgument,
    JsonOption,
    LimitOption,
    TenantOption,
)
from headgate.cli.reaching import InDatabase
from headgate.cli.running import database_is_missing, run, run_existing, settings_to_look
from headgate.cli.screen import note, show, stdout
from headgate.cli.store_backend import page_of
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.words import one_line, since
from headgate.core.errors import StateConflict
from headgate.core.job import Job

app = typer.Typer(help="Print and rotate webhook secrets; list and repeat deliveries.", no_args_is_help=True)
UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="The address, as it was given.", show_default=False)
]

_COLUMNS: Final = (
    Column("id"),
    Column("event"),
    Column("of", flexible=True),
    Column("state"),
    Column("try", right=True),
    Column("age", right=True),
)


AlertsOption = Annotated[
    bool, typer.Option("--alerts", help="The secret that alerts are signed with, in place of a tenant's.")
]


@app.command("secret")
def secret(tenant: TenantOption = "local", alerts: AlertsOption = False, config: ConfigOption = None) -> None:
    """Print the secret that receivers check signatures with: a tenant's, or that of alerts."""
    settings = settings_to_look(config)
    text = run(settings, lambda gateway: gateway.webhooks.secret(tenant=tenant, alerts=alerts))
    if settings.webhooks.secret is not None:
        note(Text("What goes to webhooks.url is signed with webhooks.secret of the settings instead.", "dim"))
    show(text)


@app.command("rotate")
def rotate(tenant: TenantOption = "local", alerts: AlertsOption = False, config: ConfigOption = None) -> None:
    """Make a new secret, and print it. For 24 hours messages are signed with the old one as well."""
    if alerts and tenant != "local":
        raise typer.BadParameter(
            "--alerts and --tenant exclude each other: alerts have a secret of their own"
        )
    text = run(
        settings_to_look(config), lambda gateway: gateway.webhooks.rotate(tenant=tenant, alerts=alerts)
    )
    of = "alerts" if alerts else f"tenant {tenant}"
    note(Text(f"The new secret of {of}; for 24 hours the old one, if there was one, signs as well.", "dim"))
    show(text)


@app.command("list")
def list_deliveries(
    limit: LimitOption = 20,
    after: AfterOption = None,
    as_json: JsonOption = False,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """List deliveries, newest first."""
    place = InDatabase(settings_to_look(config))
    found: Sequence[Job] = ()
    more = False
    if not database_is_missing(place.settings):
        found, more = run_existing(
            place.settings,
            lambda gateway: page_of(partial(gateway.webhooks.list, tenant=tenant), limit, after),
        )
    if as_json or not found:
        show_page(found, more=more, as_json=as_json, none="There are no deliveries.")
    else:
        now = datetime.now(UTC)
        show(*lay_out(_COLUMNS, [_row(job, now) for job in found], width=stdout().width, note="reason"))
        if more:
            note(Text(f"There are more: add --after {found[-1].id}", "dim"))
    place.name_it(as_json=as_json)


def _row(job: Job, now: datetime) -> Row:
    told = job.metadata
    cells = (
        Text(job.id),
        Text(one_line(told["event"])),
        Text(one_line(told["subject"])),
        Text(str(job.state), STYLES[job.state]),
        Text(f"{job.attempts}/{job.max_attempts}"),
        Text(since(job.created_at, now)),
    )
    words = standing(job, now)
    return Row(cells, Text(words, "dim") if words else None)


@app.command("redeliver")
def redeliver(job_id: JobArgument, tenant: TenantOption = "local", config: ConfigOption = None) -> None:
    """Deliver again what was told of a job, or what a delivery told; its webhook-id stays the same."""
    handle = run_existing(
        settings_to_look(config), lambda gateway: gateway.webhooks.redeliver(job_id, tenant=tenant)
    )
    show(f"{handle.id} delivers it again")


@app.command("enable")
def enable(url: UrlArgument, tenant: TenantOption = "local", config: ConfigOption = None) -> None:
    """Deliver to an address again that was disabled because it answered 410."""
    if not run_existing(
        settings_to_look(config), lambda gateway: gateway.webhooks.enable(url, tenant=tenant)
    ):
        raise StateConflict("this address is not disabled for this tenant: look at the URL, and at --tenant")
    show("This address gets deliveries again.")
