"""The failures a simulated provider raises. The real classification makes them, as for a real answer."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from headgate.core.failures import Failure, FailureKind, from_answer, kind_of
from headgate.providers.simulated.script import Outcome, ScriptedOutcome

_CODE_BY_STATUS: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "invalid_api_key",
    429: "rate_limit_exceeded",
}


def failure_of(
    fate: ScriptedOutcome, *, model: str, throttle_retry_after_s: float | None, now: datetime
) -> Failure:
    """The failure that a failing fate ends in."""
    if fate.outcome is Outcome.BROKEN:
        return Failure(kind=FailureKind.BROKEN, message=broken_message(model))
    status = fate.error_status
    if status is None:
        return from_answer(None, message=f"{model}: the connection broke (simulated)", now=now)
    code = fate.code if fate.code is not None else _CODE_BY_STATUS.get(status)
    wait_s = fate.retry_after_s
    if wait_s is None and kind_of(status, code) is FailureKind.THROTTLED:
        wait_s = throttle_retry_after_s
    headers = {} if wait_s is None else {"retry-after": str(wait_s)}
    return from_answer(status, headers, code=code, message=f"{model}: {status} (simulated)", now=now)


def connect_timed_out(model: str, waited_s: float) -> Failure:
    return Failure(
        kind=FailureKind.TRANSIENT,
        message=f"{model}: no connection within {waited_s:g} s (simulated)",
        timed_out=True,
    )


def broken_message(model: str) -> str:
    return f"{model}: an exception nobody foresaw (simulated)"
