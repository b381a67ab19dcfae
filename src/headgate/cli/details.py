"""One job on a screen: all that is known of it, its history as a timeline, its input and result."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.text import Text

from headgate.cli.listing import STYLES, failure, failure_words, progress_words
from headgate.cli.screen import show, stdout
from headgate.cli.words import clock_time, count_of, one_line, readable_json, short_json, when
from headgate.core.job import Attempt, Job, JobState

MOST_LINES: Final = 24
MOST_ENTRIES: Final = 20
MOST_VALUE_LINES: Final = 4
LABEL: Final = 10
ENTRY: Final = 23
"""Where an entry's words begin: after its time."""


def show_job(job: Job, *, full: bool) -> None:
    now = datetime.now(UTC)
    width = None if full else stdout().width
    show(Text(job.id, "bold"))
    for label, value in _facts(job, now):
        show(*_fact(label, value, width))
    show(*_history(job, width))
    show(*_block("input", job.input, width))
    if job.state is JobState.COMPLETED:
        show(*_block("result", job.result, width))


def _facts(job: Job, now: datetime) -> Iterator[tuple[str, Text]]:
    yield "task", Text(one_line(job.task))
    yield "state", _state(job)
    if words := failure(job):
        yield "error", Text(words)
    if words := progress_words(job.progress):
        yield "progress", Text(words)
    yield "model", Text(one_line(job.model or "-"))
    yield "attempts", Text(_attempts(job))
    yield "lane", Text(f"{job.lane}, priority {job.priority}")
    yield from ((label, Text(words)) for label, words in _times(job, now))
    yield "timeout", Text(f"{job.timeout_s:g} s")
    if not job.hold:
        yield "hold", Text("no: a misconfigured upstream ends it at once")
    if job.dedup_key is not None:
        yield "dedup key", Text(one_line(job.dedup_key))
    if job.batch_id is not None:
        yield "batch", Text(one_line(job.batch_id))
    if job.webhook is not None:
        yield "webhook", Text(one_line(job.webhook))
    yield "tenant", Text(one_line(job.tenant))
    if job.metadata is not None:
        yield "metadata", Text(short_json(job.metadata))


def _fact(label: str, value: Text, width: int | None) -> Iterator[Text]:
    """A label and its value; a long one goes on under itself for a few lines."""
    lines = [value] if width is None else list(value.wrap(stdout(), max(1, width - LABEL)))
    if len(lines) > MOST_VALUE_LINES:
        lines = [*lines[: MOST_VALUE_LINES - 1], Text("… --full shows all", "dim")]
    for number, line in enumerate(lines):
        yield Text.assemble((("" if number else label).ljust(LABEL), "dim"), line)


def _state(job: Job) -> Text:
    words = Text.assemble((str(job.state), STYLES[job.state]))
    reason = one_line(job.reason or "")
    return words if reason in {"", job.state} else words.append(f", {reason}")


def _attempts(job: Job) -> str:
    words = [f"{job.attempts} of {job.max_attempts}"]
    if job.deferrals:
        words.append(f"sent back {count_of(job.deferrals, 'time')} uncounted")
    if job.crashes:
        words.append(count_of(job.crashes, "crash", "crashes"))
    if job.revivals:
        words.append(f"revived {count_of(job.revivals, 'time')}")
    if job.generation > 1:
        words.append(f"generation {job.generation}")
    return ", ".join(words)


def _times(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    yield "created", when(job.created_at, now)
    if job.state is JobState.PENDING:
        yield "due", when(job.run_at, now)
    if job.started_at is not None:
        yield "started", when(job.started_at, now)
    if job.finished_at is not None:
        yield "finished", when(job.finished_at, now)
    else:
        yield "expires", when(job.expires_at, now)


def _history(job: Job, width: int | None) -> Iterator[Text]:
    if not job.history:
        return
    entries = job.history if width is None else job.history[-MOST_ENTRIES:]
    yield Text("\nhistory", "dim")
    if hidden := len(job.history) - len(entries):
        yield Text(f"  … {count_of(hidden, 'earlier entry', 'earlier entries')}: --full shows all", "dim")
    for entry in entries:
        yield _line(_entry(entry), width)
        if words := failure_words(entry.kind, entry.message):
            yield _line(Text(" " * ENTRY + words), width)


def _entry(entry: Attempt) -> Text:
    words = [one_line(entry.outcome)]
    if entry.attempt:
        words.append(f"attempt {entry.attempt}")
    if entry.generation is not None and entry.generation > 1:
        words.append(f"generation {entry.generation}")
    if entry.started_at is not None:
        words.append(f"{max(0.0, (entry.at - entry.started_at).total_seconds()):.1f} s")
    if entry.upstream:
        words.append(f"at {one_line(entry.upstream)}")
    if entry.by:
        words.append(f"by {one_line(entry.by)}")
    if entry.input is not msgspec.UNSET:
        words.append(f"the input was {short_json(entry.input)}")
    return Text.assemble((f"  {clock_time(entry.at)}  ", "dim"), ", ".join(words))


def _block(label: str, value: Any, width: int | None) -> Iterator[Text]:
    yield Text(f"\n{label}", "dim")
    lines = readable_json(value).splitlines()
    # Hiding a line or two behind a line that says so would help nobody.
    shown = lines if width is None or len(lines) <= MOST_LINES + 2 else lines[:MOST_LINES]
    for line in shown:
        yield _line(Text(f"  {line}"), width)
    if hidden := len(lines) - len(shown):
        yield Text(f"  … {count_of(hidden, 'more line')}: --full shows all", "dim")


def _line(text: Text, width: int | None) -> Text:
    if width is not None:
        text.truncate(width, overflow="ellipsis")
    return text
