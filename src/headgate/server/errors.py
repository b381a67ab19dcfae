"""The one place that turns errors into HTTP: status, code, headers and OpenAI's error body."""

import logging
import math
import random
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final

import msgspec

from headgate.core.errors import (
    CallFailed,
    Draining,
    HeadgateError,
    InvalidRequest,
    KeyInProgress,
    ProviderFailure,
    RateLimited,
    RequestRejected,
    StoreUnavailable,
    UpstreamThrottled,
)
from headgate.core.failures import FailureKind
from headgate.core.metering import Allowance
from headgate.core.outcomes import error_word
from headgate.server.allowance import allowance_headers

logger = logging.getLogger("headgate")
Header = tuple[bytes, bytes]
STATUS_BY_CODE: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "unauthorized": 401,
    "model_not_allowed": 403,
    "not_allowed": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "idempotency_key_mismatch": 409,
    "idempotency_in_progress": 409,
    "state_conflict": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "unprocessable": 422,
    "queue_full": 429,
    "rate_limited": 429,
    "upstream_throttled": 429,
    "budget_exhausted": 429,
    "internal": 500,
    "upstream_unavailable": 502,
    "upstream_misconfigured": 502,
    "draining": 503,
    "store_unavailable": 503,
    "deadline_exceeded": 504,
    "quota_exceeded": 507,
}
INVITES: Final = frozenset({429, 503})
"""Come back later. Everything else has been tried as often as it helps: a client's own retries would only storm."""
LONGEST_RETRY_AFTER_S: Final = 60
ERROR: Final = "headgate.error"
"""In the scope of a request that failed: its error, in the words of events."""
_BROKEN: Final = "something unexpected broke while the upstream was called; the gateway's log says what"
_STORE_AWAY: Final = "the database does not answer; try again in a moment"
_STORE_BROKEN: Final = "the database cannot be used until an operator acts; the gateway's log says what to do"
_JSON: Final = (b"content-type", b"application/json")
_FINAL: Final = (b"x-should-retry", b"false")


class Failed(msgspec.Struct, frozen=True):
    """An error, ready to be sent."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    final: bool = False
    """The call was retried here for as long as its deadline allows, so the client must not retry it at once."""
    allowances: tuple[Allowance, ...] = ()

    @property
    def body(self) -> bytes:
        return msgspec.json.encode({"error": self.error})

    @property
    def error(self) -> dict[str, Any]:
        return {"message": self.message, "type": _type(self.status), "param": self.param, "code": self.code}

    def headers(self) -> list[Header]:
        if self.retry_after_s is None:
            return [_JSON, _FINAL]
        retry_after_s = min(max(self.retry_after_s, 1.0), LONGEST_RETRY_AFTER_S)
        return [
            _JSON,
            (b"retry-after", b"%d" % math.ceil(retry_after_s)),
            (b"retry-after-ms", b"%d" % (retry_after_s * 1000)),
            *allowance_headers(self.allowances),
            *([_FINAL] if self.final else ()),
        ]


def read_error(error: Exception, *, mismatch_status: int = 409) -> Failed:
    """What a client is told. What is unforeseen, and where the database is, stays in our log."""
    if not isinstance(error, HeadgateError):
        return Failed(500, "internal", "something broke inside the gateway; its log says what")
    status = _status(error, mismatch_status)
    invites = status in INVITES or isinstance(error, KeyInProgress)
    retry_after_s = getattr(error, "retry_after_s", None) if invites else None
    if status in INVITES and retry_after_s is None:
        retry_after_s = 1.0
    param = error.param if isinstance(error, InvalidRequest) else None
    allowances = error.allowances if isinstance(error, RateLimited) else ()
    final = isinstance(error, UpstreamThrottled) and error.attempts > 0
    return Failed(status, error.code, _message(error), param, retry_after_s, final, allowances)


def going_away() -> Draining:
    return Draining(
        "this process is shutting down; ask another, or again in a moment",
        retry_after_s=random.uniform(1.0, 3.0),  # Soon, but not all at once.
    )


def is_crash(error: Exception) -> bool:
    """Nobody foresaw it, so nobody knows what its text repeats: a prompt, a key."""
    if isinstance(error, CallFailed):
        return error.failure.kind is FailureKind.BROKEN
    return not isinstance(error, HeadgateError)


def log_error(what: str, error: Exception) -> None:
    """What the client is not told. That the database went away is an ERROR of its own, once."""
    if is_crash(error):
        logger.error("%s broke (%s)\n%s", what, read_error(error).code, crash_story(error))
    elif isinstance(error, StoreUnavailable):
        logger.info("%s was refused: %s", what, error)
    elif isinstance(error.__cause__, ProviderFailure) and error.__cause__.own is not None:
        # Without the provider's words: they may quote the prompt.
        code = getattr(error, "code", "internal")
        logger.info("%s failed with %s: %s", what, code, error.__cause__.own)


def note_error(scope: MutableMapping[str, Any], error: Exception) -> None:
    """Keep what the event of this answer says."""
    scope[ERROR] = error_word(error)


def crash_story(error: BaseException) -> str:
    """What broke and where, for the log: kinds and lines of code, and none of the words."""
    return "".join(_crash_lines(error))


def _crash_lines(error: BaseException) -> Iterator[str]:
    if error.__cause__ is not None:
        yield from _crash_lines(error.__cause__)
    yield f"{type(error).__name__}:\n"
    yield from traceback.format_tb(error.__traceback__)


def _message(error: HeadgateError) -> str:
    if isinstance(error, StoreUnavailable) and error.public is None:
        return _STORE_AWAY if error.waiting_helps else _STORE_BROKEN
    return _BROKEN if is_crash(error) else error.public or str(error)


def _status(error: HeadgateError, mismatch_status: int) -> int:
    if isinstance(error, RequestRejected):
        upstream = error.failure.status
        # Under its own status, but never as one that speaks of the caller's key or of us.
        return upstream if upstream in {400, 404, 409, 413, 415, 422} else 400
    if error.code == "upstream_unavailable" and getattr(error, "retry_after_s", None) is not None:
        return 503
    if error.code == "idempotency_key_mismatch":
        return mismatch_status
    return STATUS_BY_CODE.get(error.code, 500)


def _type(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _:
            return "server_error" if status >= 500 else "invalid_request_error"
