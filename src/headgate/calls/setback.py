"""Why an upstream could not serve a call, and what the caller is told if no other can."""

from headgate.calls.call import Setback
from headgate.calls.upstream import Failed
from headgate.core.errors import (
    CallFailed,
    DeadlineExceeded,
    HeadgateError,
    ModelPaused,
    OutputInvalid,
    ProviderFailure,
    QueueFull,
    RequestRejected,
    UpstreamBroken,
    UpstreamMisconfigured,
    UpstreamThrottled,
    UpstreamUnavailable,
)
from headgate.core.failures import Failure, FailureKind

_ERRORS: dict[FailureKind, type[CallFailed]] = {
    FailureKind.TRANSIENT: UpstreamUnavailable,
    FailureKind.INVALID_OUTPUT: OutputInvalid,
    FailureKind.REJECTED: RequestRejected,
    FailureKind.MISCONFIGURED: UpstreamMisconfigured,
    FailureKind.BROKEN: UpstreamBroken,
}
_ADVICE: dict[FailureKind, str] = {
    FailureKind.REJECTED: "the request itself is wrong; repeating it will not help",
    FailureKind.MISCONFIGURED: "check this upstream's key, model name and permissions",
    FailureKind.BROKEN: "an unexpected error; see the cause",
}


def from_refusal(error: HeadgateError, *, spill: bool) -> Setback:
    # A pause holds for all of a model's upstreams. Overflow to a (paid) next upstream must be asked for. Every other
    # refusal moves on by itself.
    moves_on = not isinstance(error, ModelPaused) and (spill or not isinstance(error, QueueFull))
    return Setback(error, moves_on=moves_on, reason=error.code)


def from_failure(failed: Failed, *, upstream: str, attempts: int, why: str, expired: bool = False) -> Setback:
    failure = failed.failure
    error = _error(failure, upstream, attempts, why, expired=expired)
    error.__cause__ = failed.cause
    error.public = _public(failed, upstream, attempts, why, expired=expired)
    if isinstance(error, CallFailed):
        error.upstream = upstream
    moves_on = failure.kind not in {FailureKind.REJECTED, FailureKind.BROKEN}
    return Setback(error, moves_on=moves_on, reason=str(failure.kind))


def soonest(setbacks: list[Setback]) -> HeadgateError:
    """What to tell the caller after every upstream said no: the soonest promise, else the last failure."""
    promises = [setback.error for setback in setbacks if setback.refused]
    if promises:
        return min(promises, key=lambda error: getattr(error, "retry_after_s", None) or 0.0)
    return setbacks[-1].error


def _error(failure: Failure, upstream: str, attempts: int, why: str, *, expired: bool) -> HeadgateError:
    what = f"{upstream}: {failure.error} after {count_attempts(attempts)}"
    detail = f": {failure.message}" if failure.message else ""
    if failure.kind is FailureKind.THROTTLED:
        return UpstreamThrottled(
            f"{what}; {why}{detail}", retry_after_s=max(1.0, failure.retry_after_s or 0.0), attempts=attempts
        )
    if expired:
        return DeadlineExceeded(f"{what}; {why}{detail}")
    advice = _ADVICE.get(failure.kind, why)
    kind = _ERRORS.get(failure.kind, UpstreamUnavailable)
    return kind(f"{what}; {advice}{detail}", failure=failure, attempts=attempts)


def _public(failed: Failed, upstream: str, attempts: int, why: str, *, expired: bool) -> str:
    """Without the upstream's address, the provider's words and what only an operator can do.

    A caller whose request is wrong needs the provider's words, and one whose own check failed needs what it said.
    """
    failure = failed.failure
    what = f"{upstream}: {failure.error} after {count_attempts(attempts)}"
    if expired:
        return f"{what}; {why}"
    match failure.kind:
        case FailureKind.REJECTED:
            detail = failed.cause.public if isinstance(failed.cause, ProviderFailure) else failure.message
            return f"{what}; {_ADVICE[failure.kind]}" + (f": {detail}" if detail else "")
        case FailureKind.INVALID_OUTPUT if failed.cause is None and failure.message:
            return f"{what}; {why}: {failure.message}"
        case FailureKind.MISCONFIGURED:
            return f"{what}; the gateway's operator has to check this upstream"
        case _:
            return f"{what}; {why}"


def count_attempts(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
