"""What is wrong with an answer although its status is 200: a broken envelope, a cut stream, unreadable output.

The host is an argument: operators read it in the log, callers never see it.
"""

from typing import TypeVar

import msgspec

from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.formats.foreign_bodies import UNREADABLE

T = TypeVar("T")


def decoded(payload: bytes, shape: type[T], host: str) -> T:
    try:
        return msgspec.json.decode(payload, type=shape)
    except UNREADABLE:
        raise bad_envelope(host, "not with what Bedrock answers; check base_url if it stays so") from None


def bad_envelope(host: str, what: str) -> ProviderFailure:
    return _failure(FailureKind.TRANSIENT, "bad_envelope", host, f"answered 200, but {what}")


def stream_cut(host: str) -> ProviderFailure:
    return _failure(FailureKind.TRANSIENT, "stream_cut", host, "ended its stream before the answer was whole")


def malformed(host: str, stop_reason: str) -> ProviderFailure:
    """Bedrock could not read the model's output: only generating anew helps."""
    what = f"could not read what the model wrote ({stop_reason})"
    return _failure(FailureKind.INVALID_OUTPUT, stop_reason, host, what)


def _failure(kind: FailureKind, code: str, host: str, what: str) -> ProviderFailure:
    message = f"{host} {what}"
    failure = Failure(kind=kind, message=message, code=code)
    return ProviderFailure(failure, own=message, said=f"the provider {what}")
