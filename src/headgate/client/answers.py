"""What a gateway answered: a whole answer as a value, and an error body as the error it stands for."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from headgate.client.errors import COME_BACK_S, GatewayUnreachable, NotFound
from headgate.core import errors
from headgate.core.errors import CallFailed, HeadgateError, InvalidRequest, Refused
from headgate.core.failures import Failure, FailureKind, retry_after_s

T = TypeVar("T")
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same request may fare better, unless the answer says that it will not."""
_LONGEST_TEXT: Final = 200


class Answer(NamedTuple):
    """A whole answer."""

    path: str
    """What was asked for."""
    status: int
    headers: Mapping[str, str]
    body: bytes

    def read(self, kind: type[T]) -> T:
        return read_json(self.body, kind, self.path)

    def read_object(self, shape: type[Any]) -> dict[str, Any]:
        """The whole object, once it is known to have what the shape demands."""
        self.read(shape)
        return self.read(dict[str, Any])


def read_json(text: bytes | msgspec.Raw, kind: type[T], path: str) -> T:
    """JSON of this shape; whoever answers with anything else is no gateway."""
    try:
        return msgspec.json.decode(text, type=kind)
    except _UNREADABLE as error:
        raise unlike_a_gateway(path, error) from error


def unlike_a_gateway(path: str, why: object) -> GatewayUnreachable:
    message = f"{path} was answered, and not as a headgate does: {why}."
    return GatewayUnreachable(message, sent=True, waiting_helps=False)


class _Told(msgspec.Struct):
    code: str
    message: str = ""
    param: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Told


_Refusal = Callable[..., Refused]
_REFUSALS: Final[Mapping[str, _Refusal]] = {
    "queue_full": errors.QueueFull,
    "rate_limited": errors.RateLimited,
    "upstream_throttled": errors.UpstreamThrottled,
    "budget_exhausted": errors.RetryBudgetSpent,
    "idempotency_in_progress": errors.KeyInProgress,
    "store_unavailable": errors.StoreUnavailable,
    "draining": errors.Draining,
    "too_many_connections": errors.QueueFull,
}
_MISTAKES: Final[Mapping[str, type[InvalidRequest]]] = {
    "invalid_request": InvalidRequest,
    "idempotency_key_mismatch": errors.KeyMismatch,
    "payload_too_large": errors.PayloadTooLarge,
}
_MISSING: Final[Mapping[str, type[InvalidRequest]]] = {
    "jobs": errors.UnknownJob,
    "dead-letters": errors.UnknownJob,
    "batches": errors.UnknownBatch,
    "files": errors.UnknownFile,
    "requests": errors.UnknownRequest,
}
"""By the route that was asked: `/v1/jobs/…`."""
_PLAIN: Final[Mapping[str, type[HeadgateError]]] = {
    "unauthorized": errors.Unauthorized,
    "not_allowed": errors.NotAllowed,
    "model_not_allowed": errors.ModelNotAllowed,
    "quota_exceeded": errors.QuotaExceeded,
    "state_conflict": errors.StateConflict,
    "deadline_exceeded": errors.DeadlineExceeded,
}
_CALLS: Final[Mapping[str, tuple[type[CallFailed], FailureKind]]] = {
    "upstream_unavailable": (errors.UpstreamUnavailable, FailureKind.TRANSIENT),
    "upstream_misconfigured": (errors.UpstreamMisconfigured, FailureKind.MISCONFIGURED),
    "unprocessable": (errors.OutputInvalid, FailureKind.INVALID_OUTPUT),
}


class Setback(Exception):
    """One try that failed: the error for the caller, and what it means for the next try."""

    def __init__(self, error: HeadgateError, failure: Failure) -> None:
        super().__init__(str(error))
        self.error = error
        self.failure = failure


def read_setback(answer: Answer, host: str, *, now: datetime) -> Setback:
    """An answer that is no success."""
    wait_s = retry_after_s(answer.headers, now=now)
    final = answer.headers.get("x-should-retry") == "false"
    # Whoever says when to come back invites: also a key whose first request is still running.
    again = not final and (answer.status in _AGAIN or wait_s is not None)
    kind = FailureKind.THROTTLED if answer.status == 429 else FailureKind.TRANSIENT
    failure = Failure(
        kind=kind if again else FailureKind.REJECTED, status=answer.status, retry_after_s=wait_s
    )
    return Setback(read_error(answer, host, wait_s=wait_s), failure)


def read_error(answer: Answer, host: str, *, wait_s: float | None = None) -> HeadgateError:
    """The error that the gateway told, as the class it has there."""
    try:
        told = msgspec.json.decode(answer.body, type=_ErrorBody).error
    except _UNREADABLE:
        return _foreign(answer, host, wait_s)
    code = told.code
    if code in _REFUSALS:
        return _REFUSALS[code](told.message, retry_after_s=1.0 if wait_s is None else wait_s)
    if code in _CALLS:
        return _failed_call(told, answer, wait_s)
    if code in _PLAIN:
        return _in_its_words(_PLAIN[code], told.message)
    if code in _MISTAKES or 400 <= answer.status < 500:
        return _mistake(told, answer.path)
    return HeadgateError(told.message)


def error_in_stream(data: bytes, host: str) -> HeadgateError:
    """The last event of a stream that broke."""
    return read_error(Answer("", 500, {}, data), host)


def _in_its_words(kind: type[HeadgateError], message: str) -> HeadgateError:
    """The gateway's message: some of these classes would write their own."""
    error = kind.__new__(kind)
    HeadgateError.__init__(error, message)
    return error


def _mistake(told: _Told, path: str) -> InvalidRequest:
    """The same, with the part of the request that is wrong."""
    kind = _MISTAKES.get(told.code, InvalidRequest)
    if told.code == "not_found" and told.param == "model":
        kind = errors.UnknownModel
    elif told.code == "not_found":
        kind = _MISSING.get(path.removeprefix("/v1/").partition("/")[0], NotFound)
    mistake = kind.__new__(kind)
    InvalidRequest.__init__(mistake, told.message, param=told.param)
    return mistake


def _failed_call(told: _Told, answer: Answer, wait_s: float | None) -> CallFailed:
    error, kind = _CALLS[told.code]
    failure = Failure(kind=kind, message=told.message, status=answer.status, retry_after_s=wait_s)
    attempts = answer.headers.get("x-headgate-attempts", "")
    return error(told.message, failure=failure, attempts=int(attempts) if attempts.isdecimal() else 0)


def _foreign(answer: Answer, host: str, wait_s: float | None) -> GatewayUnreachable:
    """A proxy in between, or another server altogether."""
    words = answer.body[:_LONGEST_TEXT].decode("utf-8", "replace").strip()
    message = f"{host} answered {answer.status}, and not as a headgate does: {words!r}"
    return GatewayUnreachable(
        f"{message}.",
        sent=True,
        retry_after_s=COME_BACK_S if wait_s is None else wait_s,
        waiting_helps=answer.status in _AGAIN,
    )
