"""Every error a caller can meet. One tree, one stable `code` per class; HTTP knows the rest.

HeadgateError
├── SettingsError                   the operator's file, environment or arguments
├── InvalidRequest                  the caller's request makes no sense
│   ├── UnknownModel
│   ├── UnknownTask
│   ├── UnknownJob                  also another tenant's
│   ├── UnknownRequest              likewise, or forgotten
│   ├── UnknownBatch                likewise
│   ├── UnknownFile                 likewise
│   ├── PayloadTooLarge
│   ├── KeyMismatch                 an idempotency key came back with another request
│   └── DuplicateRequest            the same request id is already in flight
├── Unauthorized                    no key, or none that is valid
├── NotAllowed                      the key's role does not cover it
│   └── ModelNotAllowed             the key may not use this model
├── QuotaExceeded                   the tenant stores as many bytes as it may
├── StateConflict                   not in this state: a finished job cannot be cancelled
│   └── RecordExists                another record has this unique key
├── Refused                         not now; come back after `retry_after_s`
│   ├── QueueFull
│   │   └── DeadlineUnreachable     the queue is longer than the caller's patience
│   ├── UpstreamThrottled           the provider asked everybody to wait
│   ├── ModelPaused                 an operator paused the model
│   ├── RetryBudgetSpent            too many retries lately: a job's next attempt comes later
│   ├── RateLimited                 the key has used what it may use
│   ├── BacklogFull                 too many jobs wait already
│   ├── KeyInProgress               another request with this idempotency key is still running
│   ├── StoreUnavailable            the database cannot be reached, is locked or has no room
│   └── Draining                    this process is going away
├── DeadlineExceeded                the caller's time is up
├── JobFailed                       a job that somebody waited for ended without a result: see `job`
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

from typing import TYPE_CHECKING, ClassVar, Self

from headgate.core.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headgate.core.failures import Failure
    from headgate.core.job import Job
    from headgate.core.metering import Allowance


class HeadgateError(Exception):
    """The root. `code` is stable and documented; the message is for people."""

    code: ClassVar[str] = "internal"
    queue_ms: float = 0.0
    """How long the call waited at gates before it came to this."""
    upstream_ms: float = 0.0
    """How long it was with providers, and between attempts."""
    public: str | None = None
    """What callers over HTTP read in place of the message, where that may name an upstream's address or quote a provider."""


def mark_reported(error: Exception) -> None:
    """An event has said that a call ended with this error."""
    error.__dict__["reported"] = True


def is_reported(error: Exception) -> bool:
    return "reported" in error.__dict__


class SettingsError(HeadgateError, ValueError):
    """The operator's settings are wrong; `headgate config check` shows them all."""

    code = "invalid_settings"

    @staticmethod
    def missing_extra(what: str, extra: str) -> SettingsError:
        """`what` needs packages that only this extra of Headgate installs."""
        return SettingsError(f"{what} needs its extra: pip install '.[{extra}]' in a clone of Headgate")


class InvalidRequest(HeadgateError, ValueError):
    """The request makes no sense; `param` says which part of it."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownModel(InvalidRequest):
    """No model of that name is configured."""

    code = "not_found"

    @classmethod
    def among(cls, model: str, names: Iterable[str], *, reason: str = "") -> Self:
        """With the names that there are. Who may not use all of them must be told fewer: see `narrow`."""
        names = tuple(names)
        error = cls(_no_model(model, names, reason), param="model")
        error._asked = model, names, reason
        return error

    _asked: tuple[str, tuple[str, ...], str] | None = None

    def narrow(self, may_use: Callable[[str], bool]) -> None:
        """Leave out the names that this caller may not use."""
        if self._asked is not None:
            model, names, reason = self._asked
            fewer = tuple(name for name in names if may_use(name))
            before, now = _no_model(model, names, reason), _no_model(model, fewer, reason)
            # Others may have said more: which job of a list it was, or what to do.
            self.args = (str(self).replace(before, now),)
            self._asked = model, fewer, reason


def _no_model(model: str, names: Sequence[str], reason: str) -> str:
    hint = did_you_mean(model, names)
    known = f"{hint or ';'} known: {', '.join(names)}" if names else ""
    return f"no model is called {model[:100]!r}{known}{reason}"


class DuplicateRequest(InvalidRequest):
    """A request id names one call; while it runs, nobody else may use it."""

    def __init__(self, request_id: str) -> None:
        message = f"request id {request_id!r} is already in flight; give each request its own"
        super().__init__(message, param="request_id")


class UnknownTask(InvalidRequest):
    """No task of that name is known here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="task")


class UnknownJob(InvalidRequest):
    """No such job; another tenant's looks the same."""

    code = "not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id[:100]!r}", param="id")


class UnknownRequest(InvalidRequest):
    """No such call is remembered; another tenant's looks the same."""

    code = "not_found"

    def __init__(self, request_id: str) -> None:
        message = f"no request {request_id[:100]!r} is remembered; each process keeps its last calls only"
        super().__init__(message, param="id")


class UnknownBatch(InvalidRequest):
    """No such batch; another tenant's looks the same."""

    code = "not_found"

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"there is no batch {batch_id[:100]!r}", param="id")


class UnknownFile(InvalidRequest):
    """No such file, or its time is over; another tenant's looks the same."""

    code = "not_found"

    def __init__(self, file_id: str) -> None:
        super().__init__(f"there is no file {file_id[:100]!r}", param="id")


class PayloadTooLarge(InvalidRequest):
    """More than a job or a file may carry."""

    code = "payload_too_large"


class KeyMismatch(InvalidRequest):
    """An idempotency key names one request. A different one needs a key of its own."""

    code = "idempotency_key_mismatch"

    def __init__(self, key: str) -> None:
        message = (
            f"idempotency key {key[:100]!r} was used for a different request; use a new key for a new request"
        )
        super().__init__(message, param="idempotency_key")


class Unauthorized(HeadgateError):
    """No key came along, or none that is valid. Whether it expired, was revoked or never was is not told."""

    code = "unauthorized"


class NotAllowed(HeadgateError):
    """The key is valid, but not for this."""

    code = "not_allowed"


class ModelNotAllowed(NotAllowed):
    """The key may not use this model, whether there is one of that name or not."""

    code = "model_not_allowed"


class QuotaExceeded(HeadgateError):
    """The tenant stores as many bytes as it may. Nothing was stored."""

    code = "quota_exceeded"

    def __init__(self, tenant: str, *, stored: int, quota: int) -> None:
        super().__init__(
            f"tenant {tenant!r} stores {stored:,} bytes of at most {quota:,}: delete files, or wait until results,"
            " answers and files expire"
        )


class StateConflict(HeadgateError):
    """Not possible in the state it is in."""

    code = "state_conflict"


class RecordExists(StateConflict):
    """Another record of the collection has this unique key; `record_id` says which."""

    def __init__(self, collection: str, unique_key: str, record_id: str, *, replayed: bool = False) -> None:
        super().__init__(f"{collection} already has {unique_key[:200]!r}: record {record_id}")
        self.collection = collection
        self.unique_key = unique_key
        self.record_id = record_id
        self.replayed = replayed
        """The submission's idempotency key returned this answer: it was given before."""


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


class ModelPaused(Refused):
    """An operator paused the model: none of its upstreams is called until it is resumed."""

    code = "upstream_unavailable"


class RetryBudgetSpent(Refused):
    """An upstream's retries are used up for now; only a job's later attempts meet this."""

    code = "budget_exhausted"


class RateLimited(Refused):
    """The key has used up its requests or tokens of this minute, or has as many requests running as it may."""

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_s: float, allowances: tuple[Allowance, ...] = ()) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.allowances = allowances
        """How the key stands with its limits per minute."""


class BacklogFull(Refused):
    """As many jobs wait as are allowed to."""

    code = "queue_full"


class KeyInProgress(Refused):
    """Another request with this idempotency key is still running."""

    code = "idempotency_in_progress"


class StoreUnavailable(Refused):
    """The database cannot be reached, is locked or has no room. Nothing was stored."""

    code = "store_unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 5.0, waiting_helps: bool = True) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.waiting_helps = waiting_helps
        """False when a person must act first: the file is damaged or gone, the permissions are wrong."""


class Draining(Refused):
    """The process is shutting down."""

    code = "draining"


class DeadlineExceeded(HeadgateError, TimeoutError):
    """The caller's time is up, wherever the call was."""

    code = "deadline_exceeded"
    attempts: int = 0
    """Provider calls made before."""


class JobFailed(HeadgateError):
    """A job ended as a dead letter or was cancelled; `job` tells its whole story."""

    code = "job_failed"

    def __init__(self, job: Job) -> None:
        why = job.reason or job.state
        detail = f": {job.error}" if job.error else ""
        super().__init__(f"job {job.id} ({job.task}) ended as {job.state}, {why}{detail}")
        self.job = job


class Preempted(HeadgateError):
    """A batch call gave its slot to an interactive one."""

    code = "preempted"


class CheckBroken(HeadgateError):
    """The caller's own `check` broke; what it raised is the `__cause__`."""

    code = "check_broken"


class CallFailed(HeadgateError):
    """A provider's failure, classified. `failure` says what it was, `attempts` how many calls were made."""

    upstream: str | None = None
    """Whose failure it was, where one can be named."""

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

    def __init__(self, failure: Failure, *, own: str | None = None, said: str | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.sent = True
        """False where it is certain that nothing reached the provider."""
        self.own = own
        """The part of the message that Headgate wrote, with the upstream's address: for the log. None: it names none."""
        self.said = said
        """The part for the caller whose request it was: mostly the provider's own words."""

    @property
    def public(self) -> str:
        """What the caller may read whose request it was. It names no address of an upstream."""
        return self.failure.message if self.own is None else self.said or ""
