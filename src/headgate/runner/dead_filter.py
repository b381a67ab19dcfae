"""Which dead letters are meant: the filters people may give, checked."""

from datetime import datetime
from typing import TypedDict

from headgate.core.errors import InvalidRequest
from headgate.core.job import JobState, Reason
from headgate.core.job_rules import ERROR_CLASSES
from headgate.core.ports.jobs import JobFilter


class DeadFilters(TypedDict, total=False):
    """What narrows a choice of dead letters; None and absent mean any. `since` and `until` look at their end."""

    task: str | None
    reason: Reason | str | None
    model: str | None
    error_class: str | None
    since: datetime | None
    until: datetime | None


def check_some(given: DeadFilters) -> None:
    """One filter at least is asked for: "all of them" must be meant."""
    if not any(given.values()):
        raise InvalidRequest("say which: task, reason, model, class, since or until", param="filter")


def read_filters(given: DeadFilters, *, tenant: str | None) -> JobFilter:
    if strange := given.keys() - DeadFilters.__annotations__.keys():
        raise TypeError(f"dead letters have no filter {sorted(strange)}")
    return JobFilter(
        tenant=tenant,
        state=JobState.DEAD_LETTER,
        task=given.get("task"),
        reason=_reason(given.get("reason")),
        model=given.get("model"),
        error_class=_error_class(given.get("error_class")),
        since=_moment("since", given.get("since")),
        until=_moment("until", given.get("until")),
    )


def check_rate(per_second: object) -> None:
    if (
        isinstance(per_second, bool)
        or not isinstance(per_second, int | float)
        or not 0 < per_second <= 10_000
    ):
        raise InvalidRequest("per_second must be a number above 0 and at most 10,000", param="per_second")


def _reason(reason: Reason | str | None) -> str | None:
    try:
        return None if reason is None else str(Reason(reason))
    except ValueError:
        raise InvalidRequest(
            f"reason must be one of {', '.join(Reason)}, not {reason!r:.60}", param="reason"
        ) from None


def _error_class(kind: str | None) -> str | None:
    if kind is not None and kind not in ERROR_CLASSES:
        known = ", ".join(ERROR_CLASSES)
        raise InvalidRequest(f"class must be one of {known}, not {kind!r:.60}", param="class")
    return kind


def _moment(name: str, moment: object) -> float | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidRequest(f"{name} must be a datetime with its time zone, not {moment!r:.60}", param=name)
    return moment.timestamp()
