"""What an answer's status, headers and code say about the failure."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.failures import (
    AMBIGUOUS_CODES,
    KIND_BY_CODE,
    RETRYABLE,
    Failure,
    FailureKind,
    Scope,
    from_answer,
    kind_of,
    retry_after_s,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def http_date(offset_s: float) -> str:
    return format_datetime(NOW + timedelta(seconds=offset_s), usegmt=True)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, FailureKind.THROTTLED),
        (529, FailureKind.THROTTLED),
        (401, FailureKind.MISCONFIGURED),
        (402, FailureKind.MISCONFIGURED),
        (403, FailureKind.MISCONFIGURED),
        (400, FailureKind.REJECTED),
        (404, FailureKind.REJECTED),
        (409, FailureKind.REJECTED),
        (413, FailureKind.REJECTED),
        (422, FailureKind.REJECTED),
        (499, FailureKind.REJECTED),
        (408, FailureKind.TRANSIENT),
        (500, FailureKind.TRANSIENT),
        (502, FailureKind.TRANSIENT),
        (503, FailureKind.TRANSIENT),
        (504, FailureKind.TRANSIENT),
        (302, FailureKind.TRANSIENT),
        (600, FailureKind.TRANSIENT),
        (None, FailureKind.TRANSIENT),
    ],
)
def test_a_status_without_a_known_code_decides_the_kind(status: int | None, kind: FailureKind) -> None:
    assert kind_of(status) is kind
    assert kind_of(status, "a_code_nobody_knows") is kind


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, "insufficient_quota", FailureKind.MISCONFIGURED),
        (429, "enforced_spend_limit_reached", FailureKind.MISCONFIGURED),
        (404, "model_not_found", FailureKind.MISCONFIGURED),
        (404, "DeploymentNotFound", FailureKind.MISCONFIGURED),
        (404, "ResourceNotFoundException", FailureKind.MISCONFIGURED),
        (404, "not_found_error", FailureKind.REJECTED),
        (400, "billing_hard_limit_reached", FailureKind.MISCONFIGURED),
        (400, "ThrottlingException", FailureKind.THROTTLED),
        (424, "ModelErrorException", FailureKind.TRANSIENT),
        (429, "ModelNotReadyException", FailureKind.TRANSIENT),
        (500, "overloaded_error", FailureKind.THROTTLED),
        (None, "rate_limit_exceeded", FailureKind.THROTTLED),
    ],
)
def test_a_known_code_beats_the_status(status: int | None, code: str, kind: FailureKind) -> None:
    """Providers reuse 400, 404 and 429 for an operator's mistakes; repeating those calls mends nothing."""
    assert kind_of(status, code) is kind


@given(st.none() | st.integers(), st.none() | st.text() | st.sampled_from(sorted(KIND_BY_CODE)))
def test_every_answer_has_one_of_the_four_kinds_an_answer_can_have(
    status: int | None, code: str | None
) -> None:
    assert kind_of(status, code) in {
        FailureKind.THROTTLED,
        FailureKind.TRANSIENT,
        FailureKind.REJECTED,
        FailureKind.MISCONFIGURED,
    }


def test_an_answer_keeps_its_status_code_and_message() -> None:
    failure = from_answer(429, {"Retry-After": "7"}, code="rate_limit_exceeded", message="slow down", now=NOW)

    assert failure == Failure(
        kind=FailureKind.THROTTLED,
        message="slow down",
        status=429,
        code="rate_limit_exceeded",
        retry_after_s=7.0,
    )


def test_an_answer_without_headers_asks_for_no_wait() -> None:
    assert from_answer(503, now=NOW) == Failure(kind=FailureKind.TRANSIENT, status=503)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (408, None),
        (504, None),
        (424, "ModelTimeoutException"),
        (400, "RequestTimeout"),
        (400, "RequestTimeoutException"),
        (None, "timeout_error"),
    ],
)
def test_an_answer_that_means_a_timeout_says_so(status: int | None, code: str | None) -> None:
    """A timeout moves on to the next upstream at once; waiting for the same one again helps nobody."""
    failure = from_answer(status, code=code, now=NOW)

    assert failure.timed_out
    assert failure.kind is FailureKind.TRANSIENT


@pytest.mark.parametrize("status", [500, 503, 429, 400])
def test_other_answers_are_no_timeouts(status: int) -> None:
    assert not from_answer(status, now=NOW).timed_out


def test_only_codes_with_two_meanings_are_ambiguous() -> None:
    assert {"ValidationException", "not_found_error"} == AMBIGUOUS_CODES
    assert all(from_answer(400, code=code, now=NOW).ambiguous for code in AMBIGUOUS_CODES)
    assert not any(from_answer(400, code=code, now=NOW).ambiguous for code in ("model_not_found", "x", None))


def test_an_ambiguous_code_is_first_taken_for_a_bad_request() -> None:
    """A healthy upstream must not be held because one caller sent nonsense."""
    assert {KIND_BY_CODE[code] for code in AMBIGUOUS_CODES} == {FailureKind.REJECTED}


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        pytest.param({}, None, id="no header"),
        pytest.param({"retry-after": "7"}, 7.0, id="seconds"),
        pytest.param({"retry-after": " 7 "}, 7.0, id="seconds with spaces"),
        pytest.param({"retry-after": "0"}, 0.0, id="zero"),
        pytest.param({"retry-after": "0.25"}, 0.25, id="fraction"),
        pytest.param({"retry-after": "-5"}, 0.0, id="negative"),
        pytest.param({"Retry-After": "7"}, 7.0, id="header in title case"),
        pytest.param({"RETRY-AFTER": "7"}, 7.0, id="header in capitals"),
        pytest.param({"retry-after-ms": "1500"}, 1.5, id="milliseconds"),
        pytest.param({"Retry-After-Ms": "1500", "retry-after": "60"}, 1.5, id="milliseconds win"),
        pytest.param({"retry-after-ms": "-1"}, 0.0, id="negative milliseconds"),
        pytest.param({"retry-after-ms": "soon", "retry-after": "60"}, 60.0, id="garbage milliseconds"),
        pytest.param({"retry-after-ms": "nan", "retry-after": "60"}, 60.0, id="milliseconds not a number"),
        pytest.param({"retry-after": ""}, None, id="empty"),
        pytest.param({"retry-after": "soon"}, None, id="garbage"),
        pytest.param({"retry-after": "nan"}, None, id="not a number"),
        pytest.param({"retry-after": "inf"}, None, id="infinite"),
        pytest.param({"retry-after": "-inf"}, None, id="minus infinite"),
        pytest.param({"retry-after": "1e400"}, None, id="too large for a float"),
        pytest.param({"retry-after": http_date(30)}, 30.0, id="date"),
        pytest.param({"retry-after": http_date(-30)}, 0.0, id="past date"),
        pytest.param({"retry-after": "Sun, 01 Mar 2026 12:00:30 -0000"}, 30.0, id="date without a zone"),
        pytest.param({"retry-after": "Sun, 01 Mar 2026 13:00:30 +0100"}, 30.0, id="date in another zone"),
        pytest.param({"retry-after": "Sun, 99 Mar 2026 12:00:30 GMT"}, None, id="impossible date"),
        pytest.param({"retry-after": http_date(30), "date": http_date(20)}, 10.0, id="date by its own clock"),
        pytest.param({"retry-after": http_date(30), "Date": http_date(90)}, 0.0, id="past by its own clock"),
        pytest.param({"retry-after": http_date(30), "date": "today"}, 30.0, id="garbage in the Date header"),
    ],
)
def test_the_wait_a_provider_asks_for_is_read_from_its_headers(
    headers: Mapping[str, str], wait_s: float | None
) -> None:
    assert retry_after_s(headers, now=NOW) == wait_s


@given(st.dictionaries(st.sampled_from(["retry-after", "Retry-After-MS", "date", "x"]), st.text()))
def test_no_header_makes_the_wait_negative_or_raises(headers: dict[str, str]) -> None:
    """A provider's header is foreign input; it must never cost the attempt its classification."""
    wait_s = retry_after_s(headers, now=NOW)

    assert wait_s is None or wait_s >= 0


@pytest.mark.parametrize("kind", FailureKind)
def test_a_throttle_or_a_wrong_set_up_concerns_everybody_and_all_else_one_request(kind: FailureKind) -> None:
    everybody = {FailureKind.THROTTLED, FailureKind.MISCONFIGURED}

    assert Failure(kind=kind).scope is (Scope.UPSTREAM if kind in everybody else Scope.REQUEST)


@pytest.mark.parametrize("kind", FailureKind)
def test_only_what_another_attempt_can_mend_is_retryable(kind: FailureKind) -> None:
    mendable = {FailureKind.THROTTLED, FailureKind.TRANSIENT, FailureKind.INVALID_OUTPUT}

    assert Failure(kind=kind).retryable is (kind in mendable)
    assert mendable == RETRYABLE


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (Failure(kind=FailureKind.BROKEN), "broken"),
        (Failure(kind=FailureKind.TRANSIENT, status=503), "transient 503"),
        (Failure(kind=FailureKind.THROTTLED, code="ThrottlingException"), "throttled ThrottlingException"),
        (
            Failure(kind=FailureKind.MISCONFIGURED, status=429, code="insufficient_quota"),
            "misconfigured 429 insufficient_quota",
        ),
    ],
)
def test_the_line_for_logs_names_kind_status_and_code(failure: Failure, line: str) -> None:
    assert failure.error == line


@given(
    st.sampled_from(FailureKind),
    st.none() | st.integers(100, 599),
    st.none() | st.sampled_from(sorted(KIND_BY_CODE)),
    st.text(),
)
def test_the_line_for_logs_never_repeats_the_providers_text(
    kind: FailureKind, status: int | None, code: str | None, message: str
) -> None:
    """Providers quote prompts and keys in their messages; logs must not."""
    with_text = Failure(kind=kind, status=status, code=code, message=message)

    assert with_text.error == Failure(kind=kind, status=status, code=code).error
