"""A bookmark: what is kept of it, and what is shown. Its state is told by its job at every look, so it can never stick."""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

import headgate
from headgate.apps.bookmarks.describing import Description
from headgate.apps.bookmarks.trouble import BY_ITSELF, of_job

COLLECTION: Final = "bookmarks"
Status = Literal["saving", "processing", "retrying", "done", "failed"]
"""`saving` is a client's word for what the gateway has not acknowledged; it is never said here."""
LlmStatus = Literal["queued", "processing", "done", "failed"]


class Given(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody said when saving. The task's input, and the fingerprint of its key."""

    url: str
    title: str | None = None
    tags: tuple[str, ...] = ()
    source_hint: str | None = None
    created_from: str | None = None


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A description and where it comes from."""

    job_id: str
    contract: str
    description: Description
    attempts: int = 1
    """How many it took. Descriptions of older versions do not say; they took one at least."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a bookmark's record. Its unique key is `given.url`."""

    given: Given
    described: Described | None = None


class Bookmark(msgspec.Struct, frozen=True, kw_only=True):
    """A bookmark as it is shown. What was said when saving stays; what was left out, the model writes."""

    id: str
    object: Literal["bookmark"] = "bookmark"
    url: str
    title: str | None
    summary: str | None
    category: str | None
    tags: list[str]
    language: str | None
    source_hint: str | None
    created_from: str | None
    status: Status
    llm_status: LlmStatus
    can_retry: bool
    error_message: str | None
    waiting_until: datetime | None
    """When it is tried again, where it has to wait."""
    attempts: int
    job_id: str | None
    created_at: datetime
    updated_at: datetime


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a bookmark is."""

    status: Status
    llm_status: LlmStatus
    error_message: str | None = None
    waiting_until: datetime | None = None
    attempts: int = 0


_GONE: Final = Standing(
    status="failed", llm_status="failed", error_message="Its processing is not on record any more. Retry it."
)


def kept_in(record: headgate.Record) -> Kept:
    return msgspec.convert(record.body, Kept)


def body_of(kept: Kept) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(kept)
    return body


def settled(record: headgate.Record, kept: Kept) -> Standing | None:
    """Described by the job it has: the two were written together, so there is no need to look at the job."""
    if kept.described is None or kept.described.job_id != record.job_id:
        return None
    return Standing(status="done", llm_status="done", attempts=kept.described.attempts)


def standing(job: headgate.Job | None, now: datetime) -> Standing:
    """What a job says about its bookmark."""
    if job is None:
        return _GONE
    match job.state:
        case headgate.JobState.PENDING:
            waits = job.error is not None and job.run_at > now
            return Standing(
                status="retrying" if job.attempts else "processing",
                llm_status="queued",
                error_message=_happened(job) if waits else None,
                waiting_until=job.run_at if waits else None,
                attempts=job.attempts,
            )
        case headgate.JobState.RUNNING:
            status: Status = "retrying" if job.attempts > 1 else "processing"
            return Standing(status=status, llm_status="processing", attempts=job.attempts)
        case headgate.JobState.COMPLETED:
            return Standing(status="done", llm_status="done", attempts=job.attempts)
        case _:
            return Standing(
                status="failed", llm_status="failed", error_message=_happened(job), attempts=job.attempts
            )


def _happened(job: headgate.Job) -> str | None:
    """What happened, and what becomes of it or what the user can do. A deferral's words say it already."""
    what = of_job(job)
    if what is None or (job.error_class == "deferred" and not job.state.final):
        return what
    if not job.state.final:
        return f"{what} {BY_ITSELF}"
    return f"{what} {'Retry it when that has changed.' if job.reason == 'permanent' else 'Retry it.'}"


def show(record: headgate.Record, kept: Kept, stands: Standing) -> Bookmark:
    given, described = kept.given, kept.described.description if kept.described else None
    title, tags = given.title, list(given.tags)
    if described is not None:
        title = title or described.title
        tags = list(dict.fromkeys((*given.tags, *described.tags)))
    return Bookmark(
        id=record.id,
        url=given.url,
        title=title,
        summary=described.summary if described else None,
        category=described.category if described else None,
        tags=tags,
        language=described.language if described else None,
        source_hint=given.source_hint,
        created_from=given.created_from,
        status=stands.status,
        llm_status=stands.llm_status,
        can_retry=stands.status == "failed",
        error_message=stands.error_message,
        waiting_until=stands.waiting_until,
        attempts=stands.attempts,
        job_id=record.job_id,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )


def search_text(kept: Kept) -> str:
    """What a search looks at: all words of the bookmark, in one text."""
    given, described = kept.given, kept.described.description if kept.described else None
    words = [given.url, given.title, *given.tags]
    if described is not None:
        words += [described.title, described.summary, described.category, *described.tags]
    return "\n".join(filter(None, words))
