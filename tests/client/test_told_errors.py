"""Errors keep their class on the way: what the gateway raises is what the client raises."""

from datetime import UTC, datetime

import pytest

import headgate
from headgate.client.answers import Answer, read_setback
from headgate.core.errors import (
    BacklogFull,
    CallFailed,
    DeadlineUnreachable,
    DuplicateRequest,
    HeadgateError,
    InvalidRequest,
    JobFailed,
    KeyMismatch,
    ModelPaused,
    QuotaExceeded,
    Refused,
    RequestRejected,
    StreamCut,
    UnknownBatch,
    UnknownFile,
    UnknownJob,
    UnknownRequest,
    UnknownTask,
    UpstreamBroken,
)
from headgate.core.failures import Failure, FailureKind
from headgate.server.errors import read_error

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOCAL = {"SettingsError", "InvalidSettings", "CheckBroken", "Preempted", "JobFailed", "RecordExists"}
"""What no HTTP answer tells."""
AS = {
    BacklogFull: "QueueFull",
    DeadlineUnreachable: "QueueFull",
    DuplicateRequest: "InvalidRequest",
    ModelPaused: "UpstreamUnavailable",
    UnknownTask: "InvalidRequest",
    RequestRejected: "InvalidRequest",
    StreamCut: "UpstreamUnavailable",
    UpstreamBroken: "UpstreamUnavailable",
}
"""Those that share a code with another, and are told apart by nobody."""
PATHS: dict[type[HeadgateError], str] = {
    UnknownJob: "/v1/jobs/x",
    UnknownBatch: "/v1/batches/x/cancel",
    UnknownFile: "/v1/files/x",
    UnknownRequest: "/v1/requests/x",
}
KINDS = [
    error
    for name in headgate.__all__
    if isinstance(error := getattr(headgate, name), type)
    and issubclass(error, HeadgateError)
    and error not in {HeadgateError, Refused, CallFailed, JobFailed}
    and name not in LOCAL
]


def made(kind: type[HeadgateError]) -> HeadgateError:
    if issubclass(
        kind, KeyMismatch | UnknownJob | UnknownBatch | UnknownFile | UnknownRequest | DuplicateRequest
    ):
        return kind("x")
    if issubclass(kind, CallFailed):
        return kind("words", failure=Failure(kind=FailureKind.TRANSIENT))
    if issubclass(kind, Refused):
        return kind("words", retry_after_s=9.0)
    if kind is QuotaExceeded:
        return QuotaExceeded("mine", stored=7, quota=5)
    if kind is headgate.UnknownModel:
        return headgate.UnknownModel("words", param="model")
    return kind("words")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_what_it_was(kind: type[HeadgateError]) -> None:
    error = made(kind)
    failed = read_error(error)
    headers = {name.decode(): value.decode() for name, value in failed.headers()}
    path = PATHS.get(kind, "/v1/chat/completions")
    setback = read_setback(Answer(path, failed.status, headers, failed.body), "host", now=NOW)
    told = setback.error
    assert type(told).__name__ == AS.get(kind, kind.__name__)
    assert (told.code, str(told)) == (error.code, failed.message)
    assert isinstance(told, Refused) == isinstance(error, Refused) or kind is ModelPaused
    assert not isinstance(told, Refused) or told.retry_after_s == 9.0
    assert not isinstance(error, InvalidRequest) or getattr(told, "param", None) == error.param
    assert setback.failure.retryable == ("x-should-retry" not in headers)
