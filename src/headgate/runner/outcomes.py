"""How a task says what came of it, and what its exceptions mean for the job."""

import msgspec

from headgate.core.errors import (
    CallFailed,
    DeadlineExceeded,
    Draining,
    HeadgateError,
    InvalidRequest,
    Preempted,
    ProviderFailure,
    QuotaExceeded,
    Refused,
    StateConflict,
    UnknownModel,
    UpstreamMisconfigured,
)
from headgate.core.failures import CLOSED, Failure, FailureKind
from headgate.core.foreign import classify
from headgate.core.job import Claim
from headgate.core.job_rules import Deferred, Failed, Outcome
from headgate.core.ports.clock import Clock

LEAST_WAIT_S = 0.1
OVER_QUOTA_S = 60.0
"""How long a job waits that stores more than its tenant may, until something has expired or was deleted."""
UNSENT_S = 5.0
"""Before a job that waited in vain for its turn tries again."""
HELD_S = 30.0
"""How long a job waits before it looks whether the operator has mended an upstream."""


class Skip(Exception):
    """Raise or return it: there is nothing to do, for a reason that is no error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason)


class Reject(Exception):
    """Raise or return it: this input can never work. The job becomes a `permanent` dead letter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason)


class RetryLater(Exception):
    """Raise or return it: not now, through nobody's fault. The job waits and loses no attempt."""

    def __init__(self, seconds: float, reason: str = "asked to wait") -> None:
        super().__init__(reason)
        # A job that comes back at once, for ever, would be a storm of its own. NaN is no time at all.
        self.seconds = max(LEAST_WAIT_S, float(seconds)) if seconds == seconds else LEAST_WAIT_S  # noqa: PLR0124
        self.reason = str(reason)


class ClaimLost(Exception):
    """Somebody else runs this job by now; whatever this run still does, none of it counts."""


def read_error(error: Exception, claim: Claim, clock: Clock) -> Outcome:
    """What an exception out of a task means for its job."""
    match error:
        case Reject(reason=reason):
            return Failed(Failure(kind=FailureKind.REJECTED, message=reason))
        case RetryLater(seconds=seconds, reason=reason):
            return Deferred(seconds, reason)
        case HeadgateError():
            return _read_own(error, claim)
        case _:
            return _read_foreign(error, clock)


def _read_own(error: HeadgateError, claim: Claim) -> Outcome:
    wait_s = _not_its_fault(error, claim)
    if wait_s is not None:
        return Deferred(wait_s, _words(error))
    match error:
        case CallFailed(failure=failure, upstream=upstream):
            if isinstance(error.__cause__, ProviderFailure):
                failure = msgspec.structs.replace(failure, message=error.__cause__.public)
            return Failed(failure, upstream)
        case DeadlineExceeded():
            failure = Failure(
                kind=FailureKind.TRANSIENT, message=_words(error), code="timeout", timed_out=True
            )
            return Failed(failure)
        case UnknownModel():
            # Nobody remembers which models the key may use that submitted it.
            error.narrow(lambda _: False)
            return Failed(Failure(kind=FailureKind.REJECTED, message=str(error), code=error.code))
        case InvalidRequest() | StateConflict():
            return Failed(Failure(kind=FailureKind.REJECTED, message=str(error), code=error.code))
        case _:
            return Failed(Failure(kind=FailureKind.BROKEN, message=str(error), code=error.code))


def _words(error: HeadgateError) -> str:
    """The job is its tenant's to read: what the provider said of this call, and no address of an upstream."""
    if not isinstance(error.__cause__, ProviderFailure):
        return str(error)
    return ": ".join(filter(None, (error.public or "", error.__cause__.public)))


def _not_its_fault(error: HeadgateError, claim: Claim) -> float | None:
    """How long the job waits without losing an attempt; None when the failure is its own."""
    wait_s: float | None = None
    match error:
        case Draining() | Preempted():
            wait_s = 0.0
        case Refused(retry_after_s=seconds):
            wait_s = seconds
        case QuotaExceeded():
            wait_s = OVER_QUOTA_S
        case UpstreamMisconfigured(failure=failure) if claim.hold:
            wait_s = failure.retry_after_s or HELD_S
        case DeadlineExceeded(attempts=0):
            # It waited for its turn until its time was up, and was not sent.
            wait_s = UNSENT_S
        case CallFailed(failure=failure) if failure.code == CLOSED:
            # The gate rejected it: the upstream is closed, for all jobs alike.
            wait_s = failure.retry_after_s or 1.0
    return wait_s


def _read_foreign(error: Exception, clock: Clock) -> Outcome:
    """A task's own HTTP calls and the like, by their structure; what nobody foresaw is counted and repeated."""
    failure = classify(error, now=clock.utc())
    if failure.kind is FailureKind.THROTTLED and failure.retry_after_s is not None:
        return Deferred(failure.retry_after_s, f"{failure.error}: {failure.message}")
    if failure.kind is FailureKind.BROKEN:
        failure = Failure(kind=FailureKind.BROKEN, message=str(error)[:2000], code=type(error).__name__)
    return Failed(failure)
