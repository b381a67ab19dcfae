"""What went wrong with an attempt: its kind, its scope, and how long the provider wants us to wait.

Status, headers, exception type and the provider's structured error code decide; message text never does.
"""

import email.utils
import enum
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec


class FailureKind(enum.StrEnum):
    """The classes of failure. What happens next depends on nothing else."""

    THROTTLED = "throttled"
    TRANSIENT = "transient"
    INVALID_OUTPUT = "invalid_output"
    REJECTED = "rejected"
    MISCONFIGURED = "misconfigured"
    BROKEN = "broken"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    EXPIRED = "expired"


class Scope(enum.StrEnum):
    """Whom a failure concerns: this request only, or everybody who uses the upstream."""

    REQUEST = "request"
    UPSTREAM = "upstream"


RETRYABLE: Final = frozenset({FailureKind.THROTTLED, FailureKind.TRANSIENT, FailureKind.INVALID_OUTPUT})
_UPSTREAM_WIDE: Final = frozenset({FailureKind.THROTTLED, FailureKind.MISCONFIGURED})


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A classified error. `message` is for people; `error` is what logs may show."""

    kind: FailureKind
    message: str = ""
    status: int | None = None
    code: str | None = None
    retry_after_s: float | None = None
    timed_out: bool = False
    ambiguous: bool = False
    """The provider uses this code both for a bad request and for a wrong set-up."""

    @property
    def retryable(self) -> bool:
        return self.kind in RETRYABLE

    @property
    def scope(self) -> Scope:
        return Scope.UPSTREAM if self.kind in _UPSTREAM_WIDE else Scope.REQUEST

    def without_text(self) -> "Failure":
        """For events and logs: a provider's message may quote the prompt, a check's the answer."""
        return msgspec.structs.replace(self, message="") if self.message else self

    @property
    def error(self) -> str:
        """Class, status and code: what may stand in a log. Never the provider's text."""
        return " ".join(str(part) for part in (self.kind, self.status, self.code) if part is not None)


_THROTTLED_STATUS: Final = frozenset({429, 529})
_MISCONFIGURED_STATUS: Final = frozenset({401, 402, 403, 407})

# Codes that say more than their status. Providers reuse 400, 404 and 429 for an operator's mistakes.
KIND_BY_CODE: Final[Mapping[str, FailureKind]] = {
    "insufficient_quota": FailureKind.MISCONFIGURED,
    "billing_not_active": FailureKind.MISCONFIGURED,
    "billing_error": FailureKind.MISCONFIGURED,
    "billing_hard_limit_reached": FailureKind.MISCONFIGURED,
    "invalid_api_key": FailureKind.MISCONFIGURED,
    "authentication_error": FailureKind.MISCONFIGURED,
    "permission_error": FailureKind.MISCONFIGURED,
    "model_not_found": FailureKind.MISCONFIGURED,
    "DeploymentNotFound": FailureKind.MISCONFIGURED,
    "rate_limit_exceeded": FailureKind.THROTTLED,
    "rate_limit_error": FailureKind.THROTTLED,
    "overloaded_error": FailureKind.THROTTLED,
    "api_error": FailureKind.TRANSIENT,
    "timeout_error": FailureKind.TRANSIENT,
    "not_found_error": FailureKind.REJECTED,
    # Anthropic's finer codes for an account that cannot be served, sent with 400 and 429.
    "enforced_spend_limit_reached": FailureKind.MISCONFIGURED,
    "organization_on_hold": FailureKind.MISCONFIGURED,
    "organization_type_not_supported": FailureKind.MISCONFIGURED,
    "cmek_key_disabled": FailureKind.MISCONFIGURED,
    "cmek_key_network_blocked": FailureKind.MISCONFIGURED,
    # AWS Bedrock and its SDK.
    "ThrottlingException": FailureKind.THROTTLED,
    "Throttling": FailureKind.THROTTLED,
    "ThrottledException": FailureKind.THROTTLED,
    "RequestThrottled": FailureKind.THROTTLED,
    "RequestThrottledException": FailureKind.THROTTLED,
    "RequestLimitExceeded": FailureKind.THROTTLED,
    "TooManyRequestsException": FailureKind.THROTTLED,
    "SlowDown": FailureKind.THROTTLED,
    "ServiceUnavailableException": FailureKind.TRANSIENT,
    "ServiceUnavailable": FailureKind.TRANSIENT,
    "ModelNotReadyException": FailureKind.TRANSIENT,
    "ModelTimeoutException": FailureKind.TRANSIENT,
    "ModelErrorException": FailureKind.TRANSIENT,
    "ModelStreamErrorException": FailureKind.TRANSIENT,
    "InternalServerException": FailureKind.TRANSIENT,
    "InternalServerError": FailureKind.TRANSIENT,
    "InternalFailure": FailureKind.TRANSIENT,
    "RequestTimeout": FailureKind.TRANSIENT,
    "RequestTimeoutException": FailureKind.TRANSIENT,
    "AccessDeniedException": FailureKind.MISCONFIGURED,
    "AccessDenied": FailureKind.MISCONFIGURED,
    "UnrecognizedClientException": FailureKind.MISCONFIGURED,
    "InvalidSignatureException": FailureKind.MISCONFIGURED,
    "SignatureDoesNotMatch": FailureKind.MISCONFIGURED,
    "ExpiredTokenException": FailureKind.MISCONFIGURED,
    "ExpiredToken": FailureKind.MISCONFIGURED,
    "MissingAuthenticationTokenException": FailureKind.MISCONFIGURED,
    "ResourceNotFoundException": FailureKind.MISCONFIGURED,
    "ServiceQuotaExceededException": FailureKind.MISCONFIGURED,
    "ValidationException": FailureKind.REJECTED,
}
# An error inside a 200 has no status of its own. These types stand in for the one it would have had; they are no codes
# of their own, because OpenAI sends `invalid_request_error` with a 401, too.
_STATUS_INSIDE: Final[Mapping[str, int]] = {"invalid_request_error": 400, "request_too_large": 413}
CLOSED: Final = "breaker_open"
"""Our own code: the upstream was not called, because it takes no calls now."""
# Bedrock says ValidationException and Anthropic not_found_error for a wrong model as well.
AMBIGUOUS_CODES: Final = frozenset({"ValidationException", "not_found_error"})
_CODE: Final = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_TIMEOUT_CODES: Final = frozenset(
    {"ModelTimeoutException", "RequestTimeout", "RequestTimeoutException", "timeout_error"}
)


def kind_of(status: int | None, code: str | None = None) -> FailureKind:
    """The kind of an error answer. A known code beats the status; a strange status is transient."""
    if code is not None and (known := KIND_BY_CODE.get(code)) is not None:
        return known
    if status is None:
        return FailureKind.TRANSIENT
    if status in _THROTTLED_STATUS:
        return FailureKind.THROTTLED
    if status in _MISCONFIGURED_STATUS:
        return FailureKind.MISCONFIGURED
    if status != 408 and 400 <= status < 500:
        return FailureKind.REJECTED
    return FailureKind.TRANSIENT


def telling_code(codes: Iterable[str]) -> str | None:
    """The first code that decides something, else the first that is more than a repeated status."""
    said = [code for code in codes if code and not code.isdecimal()]
    return next((code for code in said if code in KIND_BY_CODE), said[0] if said else None)


def status_inside(codes: Iterable[str]) -> int | None:
    """The status an error inside a 200 would have had, where its codes tell."""
    for code in codes:
        if code in _STATUS_INSIDE:
            return _STATUS_INSIDE[code]
        # vLLM, llama.cpp and OpenRouter send the status as the code.
        if len(code) == 3 and code.isdecimal() and int(code) >= 400:
            return int(code)
    return None


def from_answer(
    status: int | None,
    headers: Mapping[str, str] | None = None,
    *,
    code: str | None = None,
    message: str = "",
    now: datetime,
) -> Failure:
    """Classify an error answer from its status, headers and structured code."""
    if code is not None and _CODE.fullmatch(code) is None:
        code = None  # Codes stand in logs; a provider's free text must not.
    kind = kind_of(status, code)
    if kind is FailureKind.REJECTED and headers and _asks_to_retry(headers):
        kind = FailureKind.TRANSIENT
    return Failure(
        kind=kind,
        message=message,
        status=status,
        code=code,
        retry_after_s=retry_after_s(headers or {}, now=now),
        timed_out=status in {408, 504} or code in _TIMEOUT_CODES,
        ambiguous=code in AMBIGUOUS_CODES,
    )


def _asks_to_retry(headers: Mapping[str, str]) -> bool:
    return any(str(name).lower() == "x-should-retry" and value == "true" for name, value in headers.items())


def retry_after_s(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """The wait a provider asks for: `retry-after-ms`, else `Retry-After` as seconds or an HTTP date."""
    lower = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    milliseconds = _finite(lower.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    value = lower.get("retry-after")
    seconds = _finite(value)
    if seconds is not None:
        return max(0.0, seconds)
    asked_for = _http_date(value)
    # The provider's own clock wrote the date, so its own Date header is the fairest "now".
    return (
        None
        if asked_for is None
        else max(0.0, (asked_for - (_http_date(lower.get("date")) or now)).total_seconds())
    )


def _finite(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _http_date(text: str | None) -> datetime | None:
    try:
        parsed = email.utils.parsedate_to_datetime(text or "")
    except (TypeError, ValueError, OverflowError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
