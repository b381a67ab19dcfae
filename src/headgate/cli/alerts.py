"""`headgate alerts`: what is wrong at a gateway that serves, and what was."""

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from headgate.cli.options import ConfigOption, JsonOption
from headgate.cli.reaching import AtGateway
from headgate.cli.remote import UrlOption, gateway_url, look_there, shaped
from headgate.cli.screen import show, show_json, stdout
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.words import one_line, since

app = typer.Typer(help="List what is wrong at a running gateway, and what to do.", no_args_is_help=True)
ActiveOption = Annotated[bool, typer.Option("--active", help="Only those that are not over.")]
_COLUMNS: Final = (
    Column("alert"),
    Column("subject", flexible=True),
    Column("state"),
    Column("since", right=True),
)


class Told(msgspec.Struct):
    """An alert as a gateway tells it."""

    rule: str
    subject: str
    message: str
    fired_at: datetime
    cleared_at: datetime | None


@app.command("list")
def list_alerts(
    *,
    active: ActiveOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    config: ConfigOption = None,
) -> None:
    """List the alerts: those that are active, then those that are over. Each process has its own."""
    there = gateway_url(url, config)
    told = look_there(there, lambda client: client.alerts())
    alerts = shaped(told, list[Told])
    if active:
        told = [one for one, alert in zip(told, alerts, strict=True) if alert.cleared_at is None]
        alerts = [alert for alert in alerts if alert.cleared_at is None]
    if as_json:
        show_json({"object": "list", "data": told, "has_more": False, "last_id": None})
    elif not alerts:
        show("No alerts.")
    else:
        now = datetime.now(UTC)
        show(
            *lay_out(
                _COLUMNS, [_row(alert, now) for alert in alerts], width=stdout().width, note="what to do"
            )
        )
    AtGateway(there).name_it(as_json=as_json)


def _row(alert: Told, now: datetime) -> Row:
    state = Text("active", "red") if alert.cleared_at is None else Text("over", "green")
    moment = alert.cleared_at or alert.fired_at
    cells = (
        Text(one_line(alert.rule)),
        Text(one_line(alert.subject or "-")),
        state,
        Text(since(moment, now)),
    )
    return Row(cells, Text(one_line(alert.message), "dim") if alert.cleared_at is None else None)
