"""Whether an article is queued, and why not. Skip reasons are answers, not errors."""

import enum
from dataclasses import dataclass
from typing import TypeAlias

import headgate


class SkipReason(enum.StrEnum):
    """Why nothing is queued."""

    CONTENT_TOO_SHORT = "content_too_short"
    SUMMARY_EXISTS = "summary_exists"
    IN_FLIGHT = "in_flight"
    DEAD_LETTER_EXISTS = "dead_letter_exists"
    """It can never work as it is, or has taken workers down with it: a person must look first."""
    RECENT_FAILURE_COOLDOWN = "recent_failure_cooldown"
    """Its attempts or its time were used up a moment ago, most likely through an outage."""


@dataclass(frozen=True, slots=True)
class LastJob:
    """How the latest job of an article stands. Times are epoch seconds."""

    state: headgate.JobState
    reason: str | None = None
    ended_at: float | None = None


class Queue(enum.Enum):
    """What to do for an article that is let in."""

    NEW = "new"
    AGAIN = "again"
    """Its dead letter goes back to work: a second job beside it could come back to life as well."""


Verdict: TypeAlias = SkipReason | Queue
_NEEDS_A_PERSON = frozenset({headgate.Reason.PERMANENT, headgate.Reason.POISON})


def judge(*, summarised: bool, last: LastJob | None, now: float, cooldown_s: float) -> Verdict:
    """In this order: there is a summary, one is being made, a dead letter waits for a person, it failed just now."""
    if summarised:
        return SkipReason.SUMMARY_EXISTS
    if last is not None and not last.state.final:
        return SkipReason.IN_FLIGHT
    if last is None or last.state is not headgate.JobState.DEAD_LETTER:
        return Queue.NEW
    if last.reason in _NEEDS_A_PERSON:
        return SkipReason.DEAD_LETTER_EXISTS
    if last.ended_at is not None and now < last.ended_at + cooldown_s:
        return SkipReason.RECENT_FAILURE_COOLDOWN
    return Queue.AGAIN
