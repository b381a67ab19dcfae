"""The options that several commands share, each written once, and how their values are read."""

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from headgate.cli.logs import VARIABLE, LogFormat
from headgate.core.job import JobState, Reason
from headgate.runner.jobs import MOST_LISTED

_AGE: Final = re.compile(r"\d{1,6}[smh]|\d{1,5}d")
_UNIT: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise typer.BadParameter(f"{text!r} is no number of seconds.")
    return seconds


def read_moment(text: str) -> datetime:
    """`2026-01-31T12:00:00Z`. A date without its time zone could be anybody's."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise typer.BadParameter(
            f"{text!r} is no date with its time zone: write 2026-01-31T12:00:00Z or 2026-01-31T13:00:00+01:00."
        )
    return moment


@dataclass(frozen=True, slots=True)
class When:
    """A date, or a time from now. Now is the time of the database or of the gateway: this machine's may differ."""

    moment: datetime | timedelta

    @property
    def relative(self) -> bool:
        return isinstance(self.moment, timedelta)

    def at(self, now: datetime) -> datetime:
        return now + self.moment if isinstance(self.moment, timedelta) else self.moment


def read_past(text: str) -> When:
    """A moment as above, or how long ago: `90s`, `30m`, `2h`, `7d`."""
    if (span := _span(text)) is not None:
        return When(-span)
    try:
        return When(read_moment(text))
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message} Or how long ago: 90s, 30m, 2h, 7d.") from None


def read_future(text: str) -> When:
    """A moment as above, or how long from now: `12h`, `90d`."""
    if (span := _span(text)) is not None:
        return When(span)
    try:
        return When(read_moment(text))
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message} Or how long from now: 12h, 90d.") from None


def _span(text: str) -> timedelta | None:
    if _AGE.fullmatch(text) is None:
        return None
    return timedelta(**{_UNIT[text[-1]]: int(text[:-1])})


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file; default ./headgate.yaml if there is one."),
]
TenantOption = Annotated[str, typer.Option("--tenant", help="Whose jobs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
FullOption = Annotated[bool, typer.Option("--full", help="Shorten nothing.")]
JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
TasksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        metavar="MODULE",
        help="A module with tasks (news.tasks), besides those in the settings; may be repeated.",
    ),
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", envvar=VARIABLE, help="How lines on stderr look.")
]

LimitOption = Annotated[
    int, typer.Option("--limit", min=1, max=MOST_LISTED, help="How many at most.", show_default=True)
]
AfterOption = Annotated[str | None, typer.Option("--after", metavar="ID", help="Go on after this job.")]
StateFilter = Annotated[JobState | None, typer.Option("--state", help="Only those in this state.")]
TaskFilter = Annotated[str | None, typer.Option("--task", help="Only those of this task.")]
ModelFilter = Annotated[str | None, typer.Option("--model", help="Only those of this model.")]
ReasonFilter = Annotated[Reason | None, typer.Option("--reason", help="Only those dead for this reason.")]
ClassFilter = Annotated[
    str | None,
    typer.Option("--class", metavar="CLASS", help="Only those whose last failure is of this class."),
]
SinceFilter = Annotated[
    When | None,
    typer.Option(
        "--since",
        parser=read_past,
        metavar="WHEN",
        help="Only those that died since: a date, or 2h ago as 2h.",
    ),
]
UntilFilter = Annotated[
    When | None,
    typer.Option("--until", parser=read_past, metavar="WHEN", help="Only those that died before."),
]
FileOption = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="Read the input from a file; - is stdin.")
]
