"""`headgate newsletter`: run it, and look at its history."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.text import Text

from headgate.apps.newsletter import NewsletterOptions
from headgate.apps.newsletter.alone import AnotherRun
from headgate.apps.newsletter.judging import Aborted
from headgate.apps.newsletter.ledger import Ledger, RunState
from headgate.apps.newsletter.opening import check_run_id, new_run_id, open_newsletter, options_of
from headgate.apps.newsletter.report import Report
from headgate.apps.newsletter.run import Plan
from headgate.apps.newsletter.smtp import NotDelivered
from headgate.cli.options import ConfigOption, JsonOption, LimitOption, read_seconds
from headgate.cli.reaching import InDatabase
from headgate.cli.running import database_is_missing, run_existing, run_for_long, settings_to_look
from headgate.cli.screen import note, show, show_json, stderr, stdout
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.words import clock_time, one_line, printable
from headgate.core.errors import InvalidRequest
from headgate.gateway import Gateway
from headgate.runner.jobs import MOST_LISTED
from headgate.settings import Settings

app = typer.Typer(help="Judge feeds against a profile, and mail what is worth it.", no_args_is_help=True)
ABORTED: Final = 3
"""Nothing was mailed."""


@app.command("run")
def run(
    config: ConfigOption = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="The interests, in YAML.")
    ] = None,
    feeds: Annotated[
        Path | None, typer.Option("--feeds", metavar="FILE", help="The feeds: OPML, or a list in YAML.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="Name the run; one of that name goes on.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the last run that was not delivered.")
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", parser=read_seconds, metavar="SECONDS", help="Deliver what is done by then."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Judge, and print the mail instead of delivering it.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where mails are written.")] = None,
) -> None:
    """Judge what is new in the feeds, and deliver what is worth reading.

    Every verdict is kept as soon as it is there: after a crash, a time limit or an abort the same run goes on
    and pays for nothing twice.
    """
    settings = settings_to_look(config)
    options = _options(settings, profile, feeds, out)
    if resume:
        run_id = run_existing(settings, lambda gateway: _unfinished(gateway, run_id))
    plan = Plan(
        run_id=new_run_id(datetime.now(UTC)) if run_id is None else check_run_id(run_id),
        dry_run=dry_run,
        time_limit_s=math.inf if time_limit is None else time_limit,
    )
    try:
        report, text = run_for_long(_run(settings, options, plan))
    except (Aborted, AnotherRun, NotDelivered) as error:
        note(printable(f"headgate newsletter: {error}"))
        note(f"Nothing was mailed. When it is mended, the same command with --run-id {plan.run_id} goes on.")
        raise typer.Exit(ABORTED) from None
    if dry_run:
        show(printable(text))
    _tell(report, note if dry_run else show)


@app.command("history")
def history(config: ConfigOption = None, limit: LimitOption = 20, as_json: JsonOption = False) -> None:
    """List the latest runs: what was judged, mailed and spent."""
    place = InDatabase(settings_to_look(config))
    reports: list[Report] = []
    has_more = False
    if not database_is_missing(place.settings):
        reports, has_more = run_existing(place.settings, lambda gateway: _history(gateway, limit))
    if as_json:
        last_id = min((report.run_id for report in reports), default=None)
        show_json({"object": "list", "data": reports, "has_more": has_more, "last_id": last_id})
    elif not reports:
        note(Text("No newsletter has run yet.", "dim"))
    else:
        columns = [Column(name) for name in ("run", "started", "state")]
        columns += [Column(name, right=True) for name in ("judged", "fallbacks", "skipped", "mailed")]
        show(
            *lay_out(
                columns, [_row(report) for report in reports], width=stdout().width, note="judge and cost"
            )
        )
    place.name_it(as_json=as_json)


def _options(
    settings: Settings, profile: Path | None, feeds: Path | None, out: Path | None
) -> NewsletterOptions:
    """Those of the settings, with what was typed on top."""
    options = options_of(settings)
    return replace(
        options, profile=profile or options.profile, feeds=feeds or options.feeds, out=out or options.out
    )


async def _run(settings: Settings, options: NewsletterOptions, plan: Plan) -> tuple[Report, str]:
    with _bar() as told:
        async with open_newsletter(settings, options, env=os.environ, told=told) as newsletter:
            report, mail = await newsletter.run(plan)
    return report, "" if mail is None else mail.text()


def _tell(report: Report, tell: Callable[[str], None]) -> None:
    for line in report.lines():
        tell(one_line(line))
    for error in report.feed_errors:
        note(one_line(f"not read: {error}"))
    if report.skipped or report.fallback:
        note(f"To judge the rest: the same command with --run-id {report.run_id}")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    screen = stderr()
    columns = ("judging", BarColumn(bar_width=40), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        line = bar.add_task("", total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)


async def _unfinished(gateway: Gateway, run_id: str | None) -> str:
    """The run that was named, or the latest that is not over."""
    ledger = Ledger(gateway)
    if run_id is not None:
        if await ledger.run(check_run_id(run_id)) is None:
            raise InvalidRequest(f"there is no run {run_id!r} to go on with", param="run_id")
        return run_id
    waiting = [run for run in await ledger.runs(MOST_LISTED) if run.state is not RunState.DELIVERED]
    if not waiting:
        raise InvalidRequest("no run waits to go on: every one was delivered", param="resume")
    return max(waiting, key=lambda run: run.started_at).id


async def _history(gateway: Gateway, limit: int) -> tuple[list[Report], bool]:
    """The latest runs, and whether there are more."""
    ledger = Ledger(gateway)
    runs = await ledger.runs(limit)
    has_more = bool(runs and await ledger.runs(1, after=runs[-1].id))
    runs.sort(key=lambda run: run.started_at, reverse=True)
    reports = [Report.of(run, await ledger.verdicts(run), selected=sum(map(len, run.parts))) for run in runs]
    return reports, has_more


def _row(report: Report) -> Row:
    words = (report.run_id, clock_time(report.started_at), str(report.state))
    numbers = (report.ok, report.fallback, report.skipped, report.mailed)
    cells = tuple(Text(printable(word)) for word in (*words, *map(str, numbers)))
    return Row(cells, Text(one_line(report.why or f"{report.judge_words}: {report.cost_words}")))
