"""How a gate's refusal is told to the caller: one error per door, with when to come back."""

from typing import assert_never

from headgate.core.drain import spread
from headgate.core.errors import (
    DeadlineExceeded,
    DeadlineUnreachable,
    Draining,
    HeadgateError,
    ModelPaused,
    QueueFull,
    UpstreamMisconfigured,
    UpstreamThrottled,
    UpstreamUnavailable,
)
from headgate.core.failures import CLOSED, Failure, FailureKind
from headgate.core.gate_rules import Door, Refusal
from headgate.core.operator_pause import OperatorPause

DRAINING_RETRY_S = 5.0
STOPPED_RETRY_S = 30.0
"""It is unknown when an operator will resume a model."""


def to_error(
    refusal: Refusal,
    *,
    upstream: str,
    mistake: Failure | None,
    stopped: OperatorPause | None,
    chance: float,
) -> HeadgateError:
    match refusal.door:
        case Door.FULL | Door.DEADLINE | Door.LATE:
            return _crowded(refusal.door, upstream, spread(refusal.retry_in_s, chance))
        case Door.PAUSED:
            retry_s = _after(refusal, chance)
            return UpstreamThrottled(
                f"{upstream}: closed because it throttles; try again in {retry_s:.1f} s",
                retry_after_s=retry_s,
            )
        case Door.CLOSED:
            return Draining(f"{upstream}: shutting down, no new calls", retry_after_s=DRAINING_RETRY_S)
        case Door.STOPPED:
            return _paused(upstream, stopped, spread(STOPPED_RETRY_S, chance))
        case Door.UNHEALTHY:
            return _unavailable(upstream, _after(refusal, chance))
        case Door.MISCONFIGURED:
            return _misconfigured(upstream, mistake, _after(refusal, chance))
        case _:
            assert_never(refusal.door)


def _crowded(door: Door, upstream: str, retry_s: float) -> HeadgateError:
    if door is Door.LATE:
        return DeadlineExceeded(f"{upstream}: waited until too little time was left for an answer")
    if door is Door.FULL:
        return QueueFull(
            f"{upstream}: the queue is full; try again in {retry_s:.1f} s", retry_after_s=retry_s
        )
    return DeadlineUnreachable(
        f"{upstream}: the queue is longer than the deadline allows; try again in {retry_s:.1f} s or allow more time",
        retry_after_s=retry_s,
    )


def _after(refusal: Refusal, chance: float) -> float:
    """Never before the stated end: coming back early would only be refused again."""
    return max(1.0, refusal.retry_in_s or 0.0) * (1 + 0.25 * chance)


def _paused(upstream: str, stopped: OperatorPause | None, retry_s: float) -> ModelPaused:
    # It may have been resumed since the caller was dismissed.
    what, since = (stopped.model, f" at {stopped.since:%Y-%m-%d %H:%M:%S} UTC") if stopped else (upstream, "")
    return ModelPaused(
        f"model {what} was paused by an operator{since}; it answers again once it is resumed",
        retry_after_s=retry_s,
    )


def _unavailable(upstream: str, retry_s: float) -> UpstreamUnavailable:
    return UpstreamUnavailable(
        f"{upstream}: not called, it keeps failing; the next probe goes in {retry_s:.1f} s",
        failure=Failure(
            kind=FailureKind.TRANSIENT,
            message="it is closed until a probe is answered",
            code=CLOSED,
            retry_after_s=retry_s,
        ),
    )


def _misconfigured(upstream: str, mistake: Failure | None, retry_s: float) -> UpstreamMisconfigured:
    answered = f" It answered {mistake.error}." if mistake else ""
    error = UpstreamMisconfigured(
        f"{upstream}: held back, its key, model or permissions are wrong; check them.{answered}",
        failure=Failure(
            kind=FailureKind.MISCONFIGURED,
            message="held back",
            status=mistake.status if mistake else None,
            code=mistake.code if mistake else None,
            retry_after_s=retry_s,
        ),
    )
    error.public = f"{upstream}: held back until the gateway's operator has checked it.{answered}"
    return error
