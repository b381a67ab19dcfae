"""Jobs as rows of a table: what each column says, and the few words on how a job stands."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.text import Text

from headgate.cli.screen import note, show, show_json, stdout
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.words import one_line, since
from headgate.core.job import Job, JobState

STYLES: Final = {
    JobState.PENDING: "cyan",
    JobState.RUNNING: "blue",
    JobState.COMPLETED: "green",
    JobState.SKIPPED: "dim",
    JobState.DEAD_LETTER: "red",
    JobState.CANCELLED: "yellow",
}
_JOB_COLUMNS: Final = (
    Column("id"),
    Column("task", flexible=True),
    Column("state"),
    Column("try", right=True),
    Column("model", flexible=True),
    Column("age", right=True),
)
_DEAD_COLUMNS: Final = (
    Column("id"),
    Column("task", flexible=True),
    Column("reason"),
    Column("try", right=True),
    Column("model", flexible=True),
    Column("age", right=True),
)


def show_page(jobs: Sequence[Job], *, more: bool, as_json: bool, dead: bool = False, none: str) -> None:
    """One page of a listing, in the form that was asked for; `none` says in words that there is nothing."""
    last_id = jobs[-1].id if jobs else None
    if as_json:
        show_json({"object": "list", "data": jobs, "has_more": more, "last_id": last_id})
        return
    if not jobs:
        show(none)
        return
    show_table(jobs, dead=dead)
    if more:
        note(Text(f"There are more: add --after {last_id}", "dim"))


def show_table(jobs: Sequence[Job], *, dead: bool = False) -> None:
    now = datetime.now(UTC)
    rows = [(_dead_row if dead else _job_row)(job, now) for job in jobs]
    columns, heading = (_DEAD_COLUMNS, "error") if dead else (_JOB_COLUMNS, "reason")
    show(*lay_out(columns, rows, width=stdout().width, note=heading))


def _job_row(job: Job, now: datetime) -> Row:
    cells = (
        *_front(job),
        Text(str(job.state), STYLES[job.state]),
        *_middle(job),
        Text(since(job.created_at, now)),
    )
    words = standing(job, now)
    return Row(cells, Text(words, "dim") if words else None)


def _dead_row(job: Job, now: datetime) -> Row:
    cells = (
        *_front(job),
        Text(one_line(job.reason or ""), "red"),
        *_middle(job),
        Text(since(job.finished_at or job.created_at, now)),
    )
    words = failure(job)
    return Row(cells, Text(words, "dim") if words else None)


def _front(job: Job) -> tuple[Text, Text]:
    return Text(one_line(job.id)), Text(one_line(job.task))


def _middle(job: Job) -> tuple[Text, Text]:
    return Text(f"{job.attempts}/{job.max_attempts}"), Text(one_line(job.model or "-"))


def standing(job: Job, now: datetime) -> str:
    """How the job stands beyond its state, in a few words; nothing where the state says it all."""
    match job.state:
        case JobState.PENDING:
            wait = f"in {since(now, job.run_at)}" if job.run_at > now else ""
            return "; ".join(filter(None, (wait, failure(job))))
        case JobState.RUNNING:
            return progress_words(job.progress)
        case JobState.COMPLETED:
            return ""
        case JobState.DEAD_LETTER:
            return ": ".join(filter(None, (one_line(job.reason or ""), failure(job))))
        case _:
            reason = one_line(job.reason or "")
            return "" if reason == job.state else reason


def failure(job: Job) -> str:
    """What went wrong last."""
    return failure_words(job.error_class, job.error)


def failure_words(kind: str | None, message: str | None) -> str:
    """The class and the words of a failure; most begin with their class already."""
    kind, message = one_line(kind or ""), one_line(message or "")
    return message if message.startswith(kind) else ": ".join(filter(None, (kind, message)))


def progress_words(progress: Any) -> str:
    """`3 of 10, reading` from what a task told with `ctx.progress`."""
    if not isinstance(progress, dict) or "done" not in progress:
        return ""
    done, total, said = (progress.get(name) for name in ("done", "total", "note"))
    words = f"{done:g}" if isinstance(done, int | float) else str(done)
    if isinstance(total, int | float):
        words += f" of {total:g}"
    return one_line(", ".join(filter(None, (words, str(said or "")))))
