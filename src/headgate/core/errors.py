"""Every error a caller can meet. One tree, one stable `code` per class; HTTP knows the rest.

HeadgateError
├── SettingsError                   the operator's file, environment or arguments
├── InvalidRequest                  the caller's request makes no sense
│   ├── UnknownModel
│   └── DuplicateRequest            the same request id is already in flight
├── Refused                         not started; come back after `retry_after_s`
│   ├── QueueFull
│   │   └── DeadlineUnreachable     the queue is longer than the caller's patience
│   ├── UpstreamThrottled           the provider asked everybody to wait
│   └── Draining                    this process is going away
├── DeadlineExceeded                the caller's time is up
├── Preempted                       a batch call gave way to an interactive one
└── CallFailed                      the provider was asked, and it went wrong: see `failure`
    ├── UpstreamUnavailable
    ├── UpstreamMisconfigured
    ├── RequestRejected
    ├── OutputInvalid
    ├── StreamCut                   after the first chunk: nothing can be retried
    └── UpstreamBroken              an exception nobody foresaw; it is the `__cause__`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from headgate.core.failures import Failure


class HeadgateError(Exception):
    """The root. `code` is stable and documented; the message is for people."""

    code: ClassVar[str] = "internal"


class SettingsError(HeadgateError, ValueError):
    code = "invalid_settings"


class InvalidRequest(HeadgateError, ValueError):
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownModel(InvalidRequest):
    code = "not_found"


class DuplicateRequest(InvalidRequest):
    """A request id names one call; while it runs, nobody else may use it."""


class Refused(HeadgateError):
    """Nothing was sent to a provider. Trying again after `retry_after_s` is welcome."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(Refused):
    code = "queue_full"


class DeadlineUnreachable(QueueFull):
    """By the measured drain rate the caller's turn would come after its deadline."""


class UpstreamThrottled(Refused):
    code = "upstream_throttled"


class Draining(Refused):
    code = "draining"


class DeadlineExceeded(HeadgateError, TimeoutError):
    code = "deadline_exceeded"


class Preempted(HeadgateError):
    code = "preempted"


class CallFailed(HeadgateError):
    """A provider's failure, classified. `failure` says what it was, `attempts` how many calls were made."""

    def __init__(self, message: str, *, failure: Failure, attempts: int = 0) -> None:
        super().__init__(message)
        self.failure = failure
        self.attempts = attempts

    @property
    def retry_after_s(self) -> float | None:
        return self.failure.retry_after_s


class UpstreamUnavailable(CallFailed):
    code = "upstream_unavailable"


class UpstreamMisconfigured(CallFailed):
    code = "upstream_misconfigured"


class RequestRejected(CallFailed):
    code = "invalid_request"


class OutputInvalid(CallFailed):
    code = "unprocessable"


class StreamCut(CallFailed):
    code = "upstream_unavailable"


class UpstreamBroken(CallFailed):
    code = "upstream_unavailable"


class ProviderFailure(Exception):
    """What a provider raises when an attempt fails; never seen by callers, who get a `CallFailed`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
