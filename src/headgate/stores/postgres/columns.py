"""Jobs and settlements as rows and columns. Shapes only, no statements."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from headgate.core.job import Entry, NewJob, Settlement
from headgate.stores.postgres.base import sayable_or_none
from headgate.stores.rows import entry_line

JOB_COLUMNS: Final = (
    "id",
    "tenant",
    "task",
    "model",
    "state",
    "lane",
    "priority",
    "max_attempts",
    "hold",
    "revivable",
    "timeout_s",
    "created_at",
    "run_at",
    "due",
    "expires_at",
    "dedup_key",
    "metadata",
    "input",
    "batch_id",
    "webhook",
    "access_key",
)
"""Also the order of `insert_jobs`' arguments."""


def job_row(job: NewJob, now: float) -> tuple[Any, ...]:
    """A job on its way in; whether it is ready or scheduled is decided by its time."""
    return (
        job.id,
        job.tenant,
        job.task,
        job.model,
        "ready" if job.run_at <= now else "scheduled",
        job.lane,
        job.priority,
        job.max_attempts,
        job.hold,
        job.revivable,
        job.timeout_s,
        now,
        job.run_at,
        job.due,
        job.expires_at,
        job.dedup_key,
        job.metadata,
        job.input,
        job.batch_id,
        job.webhook,
        job.access_key,
    )


def final_row(number: int, one: Settlement, now: float) -> tuple[Any, ...]:
    """The order of `settle_final`."""
    return (
        number,
        one.id,
        one.lease,
        one.state,
        one.attempts,
        one.crashes,
        one.deferrals,
        now if one.finished_at is None else one.finished_at,
        one.revive_at,
        one.result,
        sayable_or_none(one.reason),
        sayable_or_none(one.error),
        one.error_class,
        entry_line(one.entry),
    )


def back_row(number: int, one: Settlement, now: float) -> tuple[Any, ...]:
    """The order of `settle_back`."""
    return (
        number,
        one.id,
        one.lease,
        _waiting_state(one, now),
        one.attempts,
        one.crashes,
        one.deferrals,
        one.run_at,
        one.due,
        sayable_or_none(one.error),
        one.error_class,
        entry_line(one.entry),
    )


def cancelled_row(number: int, one: Settlement, now: float) -> tuple[Any, ...]:
    """The order of `settle_cancelled`."""
    stopped = Entry(outcome="cancelled", at=now, message="cancelled")
    return (
        number,
        one.id,
        one.lease,
        one.attempts,
        one.crashes,
        one.deferrals,
        one.run_at,
        sayable_or_none(one.error),
        one.error_class,
        entry_line(one.entry) + entry_line(stopped),
        now,
    )


def settled_row(number: int, one: Settlement) -> tuple[Any, ...]:
    """The order of `settled_already`."""
    return number, one.id, one.lease, one.state, one.attempts, one.crashes, one.deferrals


def columns(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows turned by 90 degrees: an array per column, as `unnest` wants them beside each other.

    The shorter of them are filled up with nulls, so a column of nothing else costs nothing.
    """
    return [() if column.count(None) == len(column) else column for column in zip(*rows, strict=True)]


def _waiting_state(one: Settlement, now: float) -> str:
    if one.run_at > now:
        return "scheduled"
    return "suspect" if one.suspect else "ready"
