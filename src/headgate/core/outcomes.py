"""How the end of a caller's request counts: answered, refused, failed, or broken by the gateway itself."""

import enum
from collections.abc import Mapping
from typing import Final

from headgate.core.errors import (
    CallFailed,
    CheckBroken,
    Draining,
    HeadgateError,
    InvalidRequest,
    KeyInProgress,
    KeyMismatch,
    ModelNotAllowed,
    ModelPaused,
    NotAllowed,
    PayloadTooLarge,
    Preempted,
    QueueFull,
    RateLimited,
    RetryBudgetSpent,
    StateConflict,
    StoreUnavailable,
    Unauthorized,
    UnknownModel,
    UpstreamThrottled,
)
from headgate.core.failures import FailureKind

REFUSED: Final = frozenset(
    error.code
    for error in (
        QueueFull,
        UpstreamThrottled,
        ModelPaused,
        RetryBudgetSpent,
        RateLimited,
        StoreUnavailable,
    )
)
"""Errors of calls that we did not take, for now. What a provider answered is reported by its class instead."""


class Outcome(enum.StrEnum):
    """What an operator can do about a request that is over."""

    OK = "ok"
    REFUSED = "refused"
    """429 or 503 of our own: there was no room for it, and later there may be."""
    FAILED = "failed"
    """It was taken, and ended without an answer: 502, 504, or 422 for unusable output."""
    INTERNAL = "internal"
    """An unexpected exception: a fault in the gateway or in a provider's code."""
    OTHER = "other"
    """The caller's own mistake, a call that gave way, or a process that shuts down as it was asked to."""


_FAULTS: Final = (HeadgateError.code, FailureKind.BROKEN)
_OTHERS: Final = (
    FailureKind.REJECTED,
    FailureKind.PREEMPTED,
    FailureKind.CANCELLED,
    *(
        error.code
        for error in (
            CheckBroken,
            Draining,
            InvalidRequest,
            KeyInProgress,
            KeyMismatch,
            ModelNotAllowed,
            NotAllowed,
            PayloadTooLarge,
            Preempted,
            StateConflict,
            Unauthorized,
            UnknownModel,
        )
    ),
)
_OUTCOMES: Final[Mapping[str, Outcome]] = {
    **dict.fromkeys(map(str, _OTHERS), Outcome.OTHER),
    **dict.fromkeys(map(str, _FAULTS), Outcome.INTERNAL),
    **dict.fromkeys(REFUSED, Outcome.REFUSED),
}


def error_word(error: Exception) -> str:
    """What events say of an error: its code, or the class, status and code of a provider's failure."""
    if isinstance(error, CallFailed):
        return error.failure.error
    return error.code if isinstance(error, HeadgateError) else HeadgateError.code


def outcome_of(error: str | None) -> Outcome:
    """`error` is an error's code, or a failure's class with its status and the provider's code behind it."""
    if error is None:
        return Outcome.OK
    return _OUTCOMES.get(error.partition(" ")[0], Outcome.FAILED)


def outcome_of_answer(status: int, error: str | None) -> Outcome:
    """Of an HTTP request that was not itself a call of a model. An application may answer with a status of its own."""
    if error is not None or status < 400:
        return outcome_of(error)
    if status in {429, 503}:
        return Outcome.REFUSED
    return Outcome.FAILED if status >= 500 else Outcome.OTHER
