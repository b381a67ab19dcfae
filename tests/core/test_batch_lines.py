"""What makes a line bad, and what is written of one that ran."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from headgate.core.batch_lines import (
    CANCELLED,
    EXPIRED,
    MOST_ERRORS,
    LineChecks,
    Stop,
    never_run,
    too_long,
    written,
    wrong_whole,
)
from headgate.core.call import Lane
from headgate.core.job import Job, JobState
from headgate.runner.builtin import chat

URL = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": URL, "body": BODY}


def _checks(**options: Any) -> LineChecks:
    return LineChecks(endpoint=URL, read_body=chat.read, **options)


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key != name}


def test_a_good_line_gives_its_model() -> None:
    checks = _checks()
    assert checks.check(1, json.dumps(GOOD).encode()) == "m"
    assert (checks.total, checks.errors) == (1, [])


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b"null", "invalid_json_line", None),
        (_without("custom_id"), "missing_required_parameter", "custom_id"),
        (_without("method"), "missing_required_parameter", "method"),
        (_without("url"), "missing_required_parameter", "url"),
        (_without("body"), "missing_required_parameter", "body"),
        ({**GOOD, "custom_id": 7}, "invalid_type", "custom_id"),
        ({**GOOD, "custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({**GOOD, "custom_id": "x" * 513}, "invalid_custom_id", "custom_id"),
        ({**GOOD, "method": "GET"}, "invalid_method", "method"),
        ({**GOOD, "url": "/v1/embeddings"}, "url_mismatch", "url"),
        ({**GOOD, "url": "https://api.openai.com/v1/chat/completions"}, "url_mismatch", "url"),
        ({**GOOD, "body": None}, "invalid_type", "body"),
        ({**GOOD, "body": [1]}, "invalid_type", "body"),
        ({**GOOD, "body": {"model": "m"}}, "invalid_request", "body.messages"),
        ({**GOOD, "body": {**BODY, "stream": True}}, "invalid_request", "body.stream"),
        ({**GOOD, "body": {"messages": BODY["messages"]}}, "missing_required_parameter", "body.model"),
        ({**GOOD, "body": {**BODY, "model": 4}}, "invalid_request", "body.model"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: Any, code: str, param: str | None) -> None:
    checks = _checks()
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    assert checks.check(17, data) is None
    (error,) = checks.errors
    assert (error.code, error.line, error.param) == (code, 17, param)
    assert error.message


def test_a_custom_id_may_stand_there_once() -> None:
    """Two answers under one name could not be told apart."""
    checks = _checks()
    for number, name in enumerate(("a", "b", "a", "a"), 1):
        checks.check(number, json.dumps({**GOOD, "custom_id": name}).encode())
    assert [(error.code, error.line) for error in checks.errors] == [
        ("duplicate_custom_id", 3),
        ("duplicate_custom_id", 4),
    ]
    assert "line 1" in checks.errors[0].message


def test_a_retry_looks_only_at_the_lines_it_is_for() -> None:
    checks = _checks(only={"b"})
    for number, name in enumerate(("a", "b", "c"), 1):
        checks.check(number, json.dumps({**GOOD, "custom_id": name}).encode())
    assert checks.total == 1


def test_nobody_reads_more_than_a_hundred_errors() -> None:
    checks = _checks()
    while not checks.hopeless:
        checks.check(len(checks.errors) + 1, b"x")
    assert len(checks.errors) == MOST_ERRORS


def test_a_file_as_a_whole_may_be_wrong() -> None:
    found = [wrong_whole(*lines) for lines in ((0, 0), (50_001, 0), (1, 50_001))]
    assert [one and one.code for one in found] == ["empty_file", "too_many_tasks", "too_many_tasks"]
    assert wrong_whole(50_000, 50_000) is None
    assert too_long(4).line == 4


STOPPED = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def _job(state: JobState, **fields: Any) -> Job:
    now = STOPPED
    given: dict[str, Any] = {
        "id": "job_1",
        "task": "chat",
        "state": state,
        "tenant": "local",
        "model": "m",
        "lane": Lane.BATCH,
        "created_at": now,
        "run_at": now,
        "expires_at": now,
        "history": (),
        "hold": True,
        "timeout_s": 1.0,
        **dict.fromkeys(("priority", "attempts", "max_attempts", "generation", "crashes"), 1),
        **dict.fromkeys(("deferrals", "revivals"), 0),
    }
    for field in msgspec.structs.fields(Job):
        given.setdefault(field.name, None)
    return Job(**{**given, **fields})


def test_an_answer_is_written_with_its_status() -> None:
    one = written(
        _job(JobState.COMPLETED, result={"id": "chatcmpl-1"}), "a", stop=Stop(STOPPED.timestamp(), CANCELLED)
    )
    assert one.completed
    assert one.data.endswith(b"\n")
    assert json.loads(one.data) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "req_1", "body": {"id": "chatcmpl-1"}},
        "error": None,
    }


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("rejected", 400, "invalid_request"),
        ("throttled", 429, "upstream_throttled"),
        ("invalid_output", 422, "unprocessable"),
        ("transient", 502, "upstream_unavailable"),
        ("misconfigured", 502, "upstream_misconfigured"),
        ("broken", 500, "internal"),
        ("crashed", 500, "internal"),
    ],
)
def test_a_failure_is_written_as_a_direct_call_would_have_been_answered(
    kind: str, status: int, code: str
) -> None:
    """OpenAI keeps `error` for lines that were never run: who reads only that would take this for an answer."""
    job = _job(JobState.DEAD_LETTER, reason="exhausted", error="it broke", error_class=kind)
    one = written(job, "a", stop=Stop(STOPPED.timestamp(), CANCELLED))
    told = json.loads(one.data)
    assert not one.completed
    assert told["error"] is None
    assert told["response"]["status_code"] == status
    assert told["response"]["body"]["error"]["code"] == code
    assert told["response"]["body"]["error"]["message"] == "it broke"


@pytest.mark.parametrize(
    ("job", "why", "code", "expired"),
    [
        (_job(JobState.DEAD_LETTER, reason="expired"), CANCELLED, "batch_expired", True),
        (_job(JobState.CANCELLED, finished_at=STOPPED), EXPIRED, "batch_expired", True),
        (_job(JobState.CANCELLED, finished_at=STOPPED), CANCELLED, "batch_cancelled", False),
        (_job(JobState.CANCELLED, finished_at=STOPPED - MINUTE), EXPIRED, "request_cancelled", False),
        (_job(JobState.CANCELLED, finished_at=STOPPED - MINUTE), CANCELLED, "request_cancelled", False),
    ],
)
def test_a_line_that_was_never_run_says_why(job: Job, why: tuple[str, str], code: str, expired: bool) -> None:
    """One that its owner cancelled before is not the batch's doing."""
    one = written(job, "a", stop=Stop(STOPPED.timestamp(), why))
    told = json.loads(one.data)
    assert told["response"] is None
    assert told["error"]["code"] == code
    assert one.expired is expired


def test_a_line_that_never_became_a_job_is_written_too() -> None:
    told = json.loads(never_run("x_7", "a", EXPIRED).data)
    assert (told["id"], told["custom_id"], told["error"]["code"]) == ("batch_req_x_7", "a", "batch_expired")
