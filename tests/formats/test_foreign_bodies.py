"""Errors and usage as OpenAI-like servers really write them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.answer import Usage
from headgate.core.failures import FailureKind
from headgate.formats.foreign_bodies import ErrorBody, error_inside, read_error, read_usage


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        (
            {
                "error": {
                    "message": "No.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "invalid_api_key",
                }
            },
            "No.",
            "invalid_api_key",
        ),
        (
            {"error": {"message": "Slow.", "type": "insufficient_quota", "code": 429}},
            "Slow.",
            "insufficient_quota",
        ),
        ({"error": {"message": "Hm.", "type": "BadRequestError", "code": 400}}, "Hm.", "BadRequestError"),
        ({"object": "error", "message": "Hm.", "type": "NotFoundError", "code": 404}, "Hm.", "NotFoundError"),
        ({"error": "model 'x' not found"}, "model 'x' not found", None),
        ({"error": "overloaded", "error_type": "overloaded"}, "overloaded", None),
        (
            [{"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED"}}],
            "Quota",
            "RESOURCE_EXHAUSTED",
        ),
        ({"detail": "Not Found"}, "Not Found", None),
        ({"detail": [{"loc": ["body"], "msg": "short"}]}, '[{"loc":["body"],"msg":"short"}]', None),
        ({"statusCode": 401, "message": "Access denied"}, "Access denied", None),
        ({"error": {}}, "", None),
        ({"error": None}, "", None),
        ("just words", "", None),
    ],
)
def test_every_known_shape_of_an_error_is_read(body: object, message: str, code: str | None) -> None:
    error = read_error(json.dumps(body).encode())

    assert (error.message, error.code) == (message, code)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"upstream connect error", "upstream connect error"),
        (b"<html><h1>502</h1></html>", ""),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 10_000, "x" * 500),
    ],
)
def test_what_is_no_json_speaks_for_itself(body: bytes, message: str) -> None:
    assert read_error(body) == ErrorBody(message)


@pytest.mark.parametrize(
    "body", [b'{"choices": []}', b'{"error": null}', b"[]", b"1", b"{", b'{"message": "hi"}']
)
def test_an_answer_is_no_error(body: bytes) -> None:
    assert error_inside(body) is None


@pytest.mark.parametrize(
    ("codes", "kind", "status"),
    [
        (("400",), FailureKind.REJECTED, 400),
        (("502",), FailureKind.TRANSIENT, 502),
        (("401",), FailureKind.MISCONFIGURED, 401),
        (("invalid_request_error",), FailureKind.REJECTED, 400),
        (("rate_limit_exceeded", "429"), FailureKind.THROTTLED, 429),
        (("200",), FailureKind.TRANSIENT, None),
        ((), FailureKind.TRANSIENT, None),
    ],
)
def test_an_error_under_a_200_has_the_class_its_codes_say(
    codes: tuple[str, ...], kind: FailureKind, status: int | None
) -> None:
    failure = ErrorBody("x", codes).failure_inside()

    assert (failure.kind, failure.status) == (kind, status)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: json.dumps({"error": text}).encode()))
def test_reading_an_error_never_fails(body: bytes) -> None:
    assert len(read_error(body).message) <= 500
    error_inside(body)


def test_nesting_without_end_is_nothing() -> None:
    assert read_error(b"[" * 100_000) is not None
    assert error_inside(b'{"error":' * 100_000) is None


def test_usage_without_an_output_is_that_of_embeddings() -> None:
    assert read_usage(b'{"prompt_tokens": 4, "total_tokens": 4}') == Usage(4, 0)
