"""Jobs in words: states, reasons, progress, what went wrong. The same on every page that tells of jobs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headgate.core.job import Job, JobState, Reason
from headgate.server.dashboard.foreign import word
from headgate.server.dashboard.html import Child, Markup, el, group
from headgate.server.dashboard.lists import add_tenants, id_link
from headgate.server.dashboard.moments import amount
from headgate.server.dashboard.page import Visit
from headgate.server.dashboard.parts import badge, table

JOBS: Final = "/jobs"
DEAD_LETTERS: Final = "/dead-letters"
BATCHES: Final = "/batches"
_TONES: Final[Mapping[JobState, str]] = {
    JobState.COMPLETED: "good",
    JobState.RUNNING: "busy",
    JobState.DEAD_LETTER: "bad",
}
REASONS: Final[Mapping[str, str]] = {
    Reason.EXHAUSTED: "All its attempts failed. If the cause is gone, replay it as it is.",
    Reason.PERMANENT: "The request itself was refused: as it stands it will be refused again. Edit the input, then replay it.",
    Reason.POISON: "It was running each time a worker died. Find out why before you replay it.",
    Reason.EXPIRED: "Its time was up before it could be done. Replay it if it is still wanted.",
}


def state_badge(job: Job) -> Markup:
    if job.state is JobState.PENDING and job.attempts:
        return badge("retrying", "warn")
    return badge(job.state.replace("_", " "), _TONES.get(job.state, "plain"))


def outcome(job: Job) -> Markup:
    """Its state, and a few words on why or how far."""
    return group(state_badge(job), " ", _why(job))


def _why(job: Job) -> Child:
    if job.state is JobState.RUNNING and job.progress is not None:
        return progress(job.progress)
    if job.state is JobState.CANCELLED and job.reason not in {None, "cancelled"}:
        return word(job.reason)
    return job.error_class if job.state in {JobState.PENDING, JobState.DEAD_LETTER} else None


def progress(told: Any) -> Markup | None:
    """What a task told with `ctx.progress`: a bar where there is a total, and its words."""
    if not isinstance(told, dict) or not isinstance(done := told.get("done"), int | float):
        return None
    words, bar, note = amount(done), None, told.get("note")
    if isinstance(total := told.get("total"), int | float):
        words = f"{words} of {amount(total)}"
        bar = progress_bar(done, total, words)
    return el("span", bar, " ", words, [" · ", word(str(note))] if note else None, class_="progress")


def progress_bar(done: float, total: float, label: str) -> Markup | None:
    if total <= 0:
        return None
    return el("progress", value=min(max(done, 0), total), max=total, aria_label=label)


def job_table(found: Sequence[Job], visit: Visit) -> Markup:
    """The newest first."""
    heads = ["Job", "Task", "State", "Model", "Attempts", "Created"]
    rows: list[list[Child]] = [
        [
            id_link(JOBS, job.id),
            word(job.task),
            outcome(job),
            word(job.model),
            f"{job.attempts} of {job.max_attempts}",
            visit.tell.ago(job.created_at),
        ]
        for job in found
    ]
    add_tenants(heads, rows, [job.tenant for job in found], visit)
    return table(heads, rows, numeric=frozenset({len(heads) - 2, len(heads) - 1}))
