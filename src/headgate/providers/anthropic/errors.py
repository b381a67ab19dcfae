"""Anthropic's error bodies: where their codes stand, and what to check when the operator is at fault."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from headgate.core.failures import Failure, FailureKind
from headgate.providers.exchange import Told

# An event has no status of its own; these types stand in for the one they would have come with.
_STATUS_INSIDE_STREAM: Final[Mapping[str, int]] = {"invalid_request_error": 400, "request_too_large": 413}


def read_error(body: Any, status: int | None) -> Told | None:  # noqa: ARG001 - its codes say more
    """`{"type": "error", "error": {"type", "message", "details": {"error_code"}}}`, else None."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping) or not isinstance(error.get("type"), str):
        return None
    details = error.get("details")
    finer = details.get("error_code") if isinstance(details, Mapping) else None
    codes = [code for code in (finer, error["type"]) if isinstance(code, str)]
    stand_in = next((_STATUS_INSIDE_STREAM[code] for code in codes if code in _STATUS_INSIDE_STREAM), None)
    return Told(str(error.get("message") or ""), tuple(codes), stand_in)


def hint_for(model: str) -> Callable[[Failure], str]:
    def hint(failure: Failure) -> str:
        if failure.code == "not_found_error":
            return f"check the model name {model!r}"
        if failure.kind is not FailureKind.MISCONFIGURED:
            return ""
        return _HINTS.get(failure.status or 0, _ACCOUNT if failure.code else _URL)

    return hint


_URL: Final = "check base_url"
_ACCOUNT: Final = "check the account and its limits in Anthropic's console"
_HINTS: Final[Mapping[int, str]] = {
    401: "check api_key",
    402: "check the account's billing",
    403: "check what api_key may do, and the model name",
    407: "check the proxy's credentials",
}
