"""How a task says what came of it, and what its exceptions mean for the job."""

from headgate.core.errors import (
    CallFailed,
    DeadlineExceeded,
    Draining,
    HeadgateError,
    InvalidRequest,
    Preempted,
    Refused,
    StateConflict,
    UpstreamMisconfigured,
)
from headgate.core.failures import Failure, FailureKind
from headgate.core.foreign import classify
from headgate.core.job import Claim
from headgate.core.job_rules import Deferred, Failed, Outcome
from headgate.core.ports.clock import Clock

LEAST_WAIT_S = 0.1
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
        return Deferred(wait_s, str(error))
    match error:
        case CallFailed(failure=failure, upstream=upstream):
            return Failed(failure, upstream)
        case DeadlineExceeded():
            failure = Failure(kind=FailureKind.TRANSIENT, message=str(error), code="timeout", timed_out=True)
            return Failed(failure)
        case InvalidRequest() | StateConflict():
            return Failed(Failure(kind=FailureKind.REJECTED, message=str(error), code=error.code))
        case _:
            return Failed(Failure(kind=FailureKind.BROKEN, message=str(error), code=error.code))


def _not_its_fault(error: HeadgateError, claim: Claim) -> float | None:
    """How long the job waits without losing an attempt; None when the failure is its own."""
    match error:
        case Draining() | Preempted():
            return 0.0
        case Refused(retry_after_s=wait_s):
            return wait_s
        case UpstreamMisconfigured(failure=failure) if claim.hold:
            return failure.retry_after_s or HELD_S
        # The gate's door said so, before anything was sent: the upstream is resting, not this job failing.
        case CallFailed(attempts=0, failure=failure) if failure.kind is FailureKind.TRANSIENT:
            return failure.retry_after_s or 1.0
        case _:
            return None


def _read_foreign(error: Exception, clock: Clock) -> Outcome:
    """A task's own HTTP calls and the like, by their structure; what nobody foresaw is counted and repeated."""
    failure = classify(error, now=clock.utc())
    if failure.kind is FailureKind.THROTTLED and failure.retry_after_s is not None:
        return Deferred(failure.retry_after_s, f"{failure.error}: {failure.message}")
    if failure.kind is FailureKind.BROKEN:
        failure = Failure(kind=FailureKind.BROKEN, message=str(error)[:2000], code=type(error).__name__)
    return Failed(failure)
