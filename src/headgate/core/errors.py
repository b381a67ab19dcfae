"""Every error a caller can meet. One tree, one stable `code` per class; HTTP knows the rest.

HeadgateError
├── SettingsError                   the operator's file, environment or arguments
├── InvalidRequest                  the caller's request makes no sense
│   ├── UnknownModel
│   └── DuplicateRequest            the same request id is already in flight
├── Refused                         not now; come back after `retry_after_s`
│   ├── QueueFull
│   │   └── DeadlineUnreachable     the queue is longer than the caller's patience
│   ├── UpstreamThrottled           the provider asked everybody to wait
│   └── Draining                    this process is going away
├── DeadlineExceeded                the caller's time is up
├── Preempted                       a batch call gave way to an interactive one
├── CheckBroken                     the caller's own check raised something else than ValueError
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
    """The operator's settings are wrong; `headgate config check` shows them all."""

    code = "invalid_settings"


class InvalidRequest(HeadgateError, ValueError):
    """The request makes no sense; `param` says which part of it."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownModel(InvalidRequest):
    """No model of that name is configured."""

    code = "not_found"


class DuplicateRequest(InvalidRequest):
    """A request id names one call; while it runs, nobody else may use it."""

    def __init__(self, request_id: str) -> None:
        message = f"request id {request_id!r} is already in flight; give each request its own"
        super().__init__(message, param="request_id")


class Refused(HeadgateError):
    """Not now. Trying again after `retry_after_s` is welcome."""

    def __init__(self, message: str, *, retry_after_s: float, attempts: int = 0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.attempts = attempts
        """Provider calls made before; 0 when the call never got through a gate."""


class QueueFull(Refused):
    """There is no room to wait. The queue is bounded on purpose."""

    code = "queue_full"


class DeadlineUnreachable(QueueFull):
    """By the measured drain rate the caller's turn would come after its deadline."""


class UpstreamThrottled(Refused):
    """The provider asked everybody to wait, longer than this caller can."""

    code = "upstream_throttled"


class Draining(Refused):
    """The process is shutting down."""

    code = "draining"


class DeadlineExceeded(HeadgateError, TimeoutError):
    """The caller's time is up, wherever the call was."""

    code = "deadline_exceeded"


class Preempted(HeadgateError):
    """A batch call gave its slot to an interactive one."""

    code = "preempted"


class CheckBroken(HeadgateError):
    """The caller's own `check` broke; what it raised is the `__cause__`."""

    code = "check_broken"


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
    """Transient failures to the end, or an open breaker."""

    code = "upstream_unavailable"


class UpstreamMisconfigured(CallFailed):
    """The operator's key, model name or permissions are wrong upstream."""

    code = "upstream_misconfigured"


class RequestRejected(CallFailed):
    """The provider refused the request itself."""

    code = "invalid_request"


class OutputInvalid(CallFailed):
    """Blank, or failing its check, to the last attempt."""

    code = "unprocessable"


class StreamCut(CallFailed):
    """A stream broke after its first content: it cannot be retried."""

    code = "upstream_unavailable"


class UpstreamBroken(CallFailed):
    """An exception nobody foresaw; it is the `__cause__`."""

    code = "upstream_unavailable"


class ProviderFailure(Exception):
    """What a provider raises when an attempt fails; never seen by callers, who get a `CallFailed`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
