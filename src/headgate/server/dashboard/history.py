"""A job's history as a timeline: submitted, every attempt, replays, its end or what it waits for."""

from collections.abc import Iterator
from typing import Final

import msgspec

from headgate.core.job import Attempt, Job, JobState
from headgate.server.dashboard.foreign import joined, json_block, message, word
from headgate.server.dashboard.html import Child, Markup, el, group
from headgate.server.dashboard.moments import milliseconds
from headgate.server.dashboard.page import Visit
from headgate.server.dashboard.parts import badge, heading

MOST_ENTRIES: Final = 100
MOST_OLD_INPUT_BYTES: Final = 4000
_TONES: Final = {
    "completed": "good",
    "replayed": "busy",
    "revived": "busy",
    "cancelled": "plain",
    "discarded": "plain",
    "skipped": "plain",
}


def history(job: Job, visit: Visit, whole: str) -> Markup:
    """The oldest first. Of very many entries the last are shown; `whole` is where all are."""
    hidden = len(job.history) - MOST_ENTRIES
    cut = None
    if hidden > 0:
        told = f"{hidden:,} earlier entries are not shown. "
        cut = el("li", told, el("a", "All as JSON", href=whole), class_="faint")
    entries = [_entry(entry, visit) for entry in job.history[-MOST_ENTRIES:]]
    submitted = _item("plain", badge("submitted"), " ", visit.tell.ago(job.created_at))
    items = [submitted, cut, entries, *_now(job, visit)]
    return group(heading("History"), el("ol", items, class_="story"))


def _entry(entry: Attempt, visit: Visit) -> Markup:
    tone = _TONES.get(entry.outcome, "bad")
    words = joined([*_words(entry), visit.tell.ago(entry.at)], " · ")
    named = badge(entry.outcome.replace("_", " "), tone)
    return _item(tone, named, " ", words, _failure(entry), _old_input(entry))


def _words(entry: Attempt) -> Iterator[Child]:
    if entry.attempt:
        yield f"attempt {entry.attempt}"
    if entry.generation is not None and entry.generation > 1:
        yield f"generation {entry.generation}"
    if entry.started_at is not None:
        yield f"took {milliseconds(max(0.0, (entry.at - entry.started_at).total_seconds()) * 1000)}"
    if entry.upstream:
        yield group("at ", word(entry.upstream))
    if entry.by:
        yield group("by ", word(entry.by))


def _failure(entry: Attempt) -> Child:
    # Its message begins with the class, where there is one.
    told = entry.message or entry.kind
    return None if told == entry.outcome else message(told)


def _old_input(entry: Attempt) -> Markup | None:
    if entry.input is msgspec.UNSET:
        return None
    block = json_block(entry.input, most=MOST_OLD_INPUT_BYTES)
    return el("details", el("summary", "The input was changed. Before, it was:"), block)


def _now(job: Job, visit: Visit) -> Iterator[Markup]:
    if job.state is JobState.RUNNING:
        words = (f" attempt {job.attempts} · began ", visit.tell.ago(job.started_at))
        yield _item("busy", badge("running", "busy"), words)
    elif job.state is JobState.PENDING:
        due = (" until its time comes in ", visit.tell.until(job.run_at))
        yield _item("plain", badge("waiting"), due if job.run_at > visit.tell.now else " for a free place")
    elif not job.history or job.history[-1].outcome not in {job.state, "discarded"}:
        yield _end(job, visit)


def _end(job: Job, visit: Visit) -> Markup:
    """Not every end has an entry: one that completed at once says so by its state."""
    tone = (
        "good" if job.state is JobState.COMPLETED else "bad" if job.state is JobState.DEAD_LETTER else "plain"
    )
    words = ", ".join(filter(None, [job.state.replace("_", " "), job.reason if tone == "bad" else None]))
    return _item(tone, badge(words, tone), " ", visit.tell.ago(job.finished_at))


def _item(tone: str, *content: Child) -> Markup:
    return el("li", content, class_=tone)
