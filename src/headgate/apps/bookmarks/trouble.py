"""What a bookmark's user reads when something goes wrong: what happened, and what they can do.

Upstreams, settings and a provider's words stay in the job's `error`; addresses are only in the log. The words are
chosen where the exception is at hand, and travel as the note of the job's progress.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import headgate
from headgate.apps.bookmarks.reading import PARSER_DIED

BY_ITSELF: Final = "It is tried again by itself."
_LATER: Final = "this goes on by itself"
_BY_CLASS: Final = {
    "throttled": "The page or the model is busy.",
    "transient": "The page or the model did not answer.",
    "invalid_output": "The model did not describe the page in a usable way.",
    "rejected": "The page or the model refused the request.",
    "deferred": f"It has to wait; {_LATER}.",
}
_BY_REASON: Final = {
    "poison": "Processing was interrupted several times.",
    "expired": "It could not be processed in time.",
    "cancelled": "Processing was cancelled.",
}
_UNFORESEEN: Final = "Something unexpected went wrong."
Words = Callable[[Exception], str | None]


@contextlib.asynccontextmanager
async def told(ctx: headgate.Context, words: Words) -> AsyncIterator[None]:
    """Around a part of the task: what is raised there is told to the user, and raised on."""
    try:
        yield
    except Exception as error:
        if (note := words(error)) is not None:
            await ctx.progress(0, note=note)
        raise


def of_page(error: Exception, *, max_bytes: int) -> str | None:
    match error:
        case headgate.Skip():
            return None
        case headgate.RetryLater():
            return f"Pages cannot be read at the moment; {_LATER} once that is repaired."
        case headgate.Reject(reason=reason):
            why = reason
        case headgate.PageTooLarge():
            why = f"it has more than {max_bytes} bytes"
        case headgate.AddressRefused():
            why = "the address leads to a private network"
        case headgate.UrlRefused():
            why = "the address is not one that is read here, or it redirects too often"
        case headgate.ProviderFailure(failure=failure):
            why = _of_fetch(failure)
        case _:
            why = "something unexpected went wrong"
    return f"The page could not be read: {why}."


def _of_fetch(failure: headgate.Failure) -> str:
    if failure.status is not None:
        return f"the site answered {failure.status}"
    if failure.code == PARSER_DIED:
        return "extracting its text was interrupted"
    if failure.kind is headgate.FailureKind.MISCONFIGURED:
        return "the site's certificate is not valid"
    return "the site did not answer in time" if failure.timed_out else "the site could not be reached"


def of_description(error: Exception) -> str | None:
    match error:
        case headgate.Skip() | headgate.Draining() | headgate.Preempted() | headgate.StoreUnavailable():
            # It goes back to waiting for a moment, which says nothing to a user.
            words = None
        case headgate.RetryLater(reason=reason):
            words = reason
        case headgate.ModelPaused():
            words = f"The model is paused; {_LATER}."
        case headgate.Refused():
            words = f"The model is busy; {_LATER}."
        case headgate.UpstreamMisconfigured():
            words = f"The model cannot be used at the moment; {_LATER} once that is repaired."
        case headgate.RequestRejected():
            words = "The model refused this page."
        case headgate.OutputInvalid():
            words = _BY_CLASS["invalid_output"]
        case headgate.UpstreamUnavailable(attempts=0):
            words = f"The model is not available at the moment; {_LATER}."
        case headgate.CallFailed() | headgate.DeadlineExceeded():
            words = "The model did not answer."
        case _:
            words = _UNFORESEEN
    return words


def of_job(job: headgate.Job) -> str | None:
    """What its last failure was; for a job without such a note, as far as its class tells."""
    reason, kind = job.reason or "", job.error_class or ""
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    if job.error is None:
        return None if job.reason is None else _UNFORESEEN
    return _note(job.progress) or _BY_CLASS.get(kind, _UNFORESEEN)


def _note(progress: Any) -> str | None:
    note = progress.get("note") if isinstance(progress, dict) else None
    return note if isinstance(note, str) else None
