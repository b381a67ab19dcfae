"""Standard Webhooks on the wire, held against the specification's own library."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from headgate.core.failures import FailureKind
from headgate.core.webhook_wire import (
    LONGEST_ASKED_WAIT_S,
    SCHEDULE,
    Verdict,
    derived_secret,
    failure_of,
    secret_mistake,
    signed_headers,
    verdict,
)

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
BODY = json.dumps({"type": "job.completed", "data": {"text": "grün"}}, ensure_ascii=False).encode()
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def headers(secret: str = SECRET, at: float | None = None, body: bytes = BODY) -> dict[str, str]:
    now = datetime.now(UTC).timestamp() if at is None else at
    return {
        name.decode(): value.decode()
        for name, value in signed_headers("msg_1", body, secrets=[secret], now=now)
    }


def test_the_official_library_accepts_a_signature() -> None:
    assert Webhook(SECRET).verify(BODY, headers()) == json.loads(BODY)


def test_the_headers_are_those_of_the_specification() -> None:
    """Computed with the library for this secret, id, time and body."""
    told = headers(at=1_674_087_231.9)
    at = datetime.fromtimestamp(1_674_087_231, UTC)
    assert told == {
        "content-type": "application/json",
        "webhook-id": "msg_1",
        "webhook-timestamp": "1674087231",
        "webhook-signature": Webhook(SECRET).sign("msg_1", at, BODY.decode()),
    }


def test_what_was_changed_on_its_way_does_not_pass() -> None:
    for changed in (
        {**headers(), "webhook-id": "msg_2"},
        {**headers(), "webhook-timestamp": f"{int(datetime.now(UTC).timestamp()) + 60}"},
        headers(body=BODY + b" "),
        headers(secret=derived_secret("acme", b"s")),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(BODY, changed)


def test_each_tenant_has_a_secret_of_its_own_that_the_library_takes() -> None:
    secrets = {tenant: derived_secret(tenant, b"the store's") for tenant in ("local", "acme", "grün")}
    assert len(set(secrets.values())) == 3
    assert derived_secret("acme", b"another store's") != secrets["acme"]
    for secret in secrets.values():
        assert secret_mistake(secret) is None
        assert Webhook(secret).verify(BODY, headers(secret)) == json.loads(BODY)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_C2FVsBQI", "whsec_grün"]
)
def test_what_is_no_secret_is_told_without_quoting_it(secret: str) -> None:
    mistake = secret_mistake(secret)
    assert mistake is not None
    assert secret.removeprefix("whsec_") == "" or secret.removeprefix("whsec_") not in mistake


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, Verdict.DELIVERED) for status in (200, 201, 202, 204, 299)),
        *((status, Verdict.FAILED) for status in (300, 301, 302, 307, 308, 400, 401, 404, 409, 429, 500, 503, 599)),
        (410, Verdict.GONE),
    ],
)  # fmt: skip
def test_what_an_answer_means(status: int, expected: Verdict) -> None:
    assert verdict(status) is expected


@pytest.mark.parametrize("status", [302, 400, 401, 404, 429, 503])
def test_every_failure_may_be_mended_and_is_tried_again(status: int) -> None:
    """A receiver that answers 404 is most likely being deployed; only three days later it is given up."""
    failure = failure_of(status, {}, receiver="https://a.example", now=NOW)
    assert (failure.kind, failure.status, failure.retry_after_s) == (FailureKind.TRANSIENT, status, None)
    assert f"https://a.example answered {status}" in failure.message
    assert ("redirects are not followed" in failure.message) is (status == 302)


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("120", 120.0),
        ("Thu, 01 Jan 2026 00:10:00 GMT", 600.0),
        ("31536000", LONGEST_ASKED_WAIT_S),
        ("soon", None),
    ],
)
def test_a_receiver_may_say_when_to_come_back(value: str, wait_s: float | None) -> None:
    failure = failure_of(503, {"retry-after": value}, receiver="a", now=NOW)
    assert failure.retry_after_s == wait_s


def test_the_schedule_is_the_one_that_the_specification_suggests() -> None:
    starts = [timedelta(0)]
    for attempt in range(1, SCHEDULE.max_attempts):
        starts.append(starts[-1] + timedelta(seconds=SCHEDULE.backoff_s(attempt, 0.0)))
    assert [str(start) for start in starts] == [
        "0:00:00",
        "0:00:05",
        "0:05:05",
        "0:35:05",
        "2:35:05",
        "7:35:05",
        "17:35:05",
        "1 day, 7:35:05",
        "2 days, 3:35:05",
        "3 days, 3:35:05",
    ]


def test_chance_stretches_each_wait_by_a_tenth_at_most() -> None:
    """Receivers that come back to life are not met by everybody at one instant."""
    for attempt, wait_s in enumerate(SCHEDULE.waits_s, start=1):
        assert SCHEDULE.backoff_s(attempt, 0.5) == pytest.approx(wait_s * 1.05)
        assert SCHEDULE.backoff_s(attempt, 0.999999) < wait_s * 1.1
