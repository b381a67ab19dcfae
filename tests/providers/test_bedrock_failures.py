"""Errors of Bedrock and of the way to it: their class, what they tell people, and what they never tell."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from providers.bedrock_stage import KEYS, ask, failed, stage, streamed
from providers.stubs.bedrock import REGION, SECRET, TOKEN, Reply, refusal, said, whole

from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.timeouts import Timeouts
from headgate.providers.bedrock import BedrockOptions, BedrockProvider, read_options
from headgate.transport import Transport

ERRORS = [
    (429, "ThrottlingException", FailureKind.THROTTLED),
    (429, "ModelNotReadyException", FailureKind.TRANSIENT),
    (408, "ModelTimeoutException", FailureKind.TRANSIENT),
    (424, "ModelErrorException", FailureKind.TRANSIENT),
    (500, "InternalServerException", FailureKind.TRANSIENT),
    (503, "ServiceUnavailableException", FailureKind.TRANSIENT),
    (400, "ValidationException", FailureKind.REJECTED),
    (403, "AccessDeniedException", FailureKind.MISCONFIGURED),
    (403, "ExpiredTokenException", FailureKind.MISCONFIGURED),
    (403, "UnrecognizedClientException", FailureKind.MISCONFIGURED),
    (403, "InvalidSignatureException", FailureKind.MISCONFIGURED),
    (404, "ResourceNotFoundException", FailureKind.MISCONFIGURED),
    (400, "ServiceQuotaExceededException", FailureKind.MISCONFIGURED),
]


@pytest.mark.parametrize(("status", "code", "kind"), ERRORS, ids=[code for _, code, _ in ERRORS])
def test_each_error_has_its_class(status: int, code: str, kind: FailureKind) -> None:
    failure = failed(refusal(status, code, "it went wrong"))

    assert (failure.kind, failure.status, failure.code) == (kind, status, code)
    assert failure.ambiguous is (code == "ValidationException")
    assert failure.timed_out is (code == "ModelTimeoutException")
    assert failure.message.startswith(f"{status} from http://127.0.0.1:")
    assert "it went wrong" in failure.message


@pytest.mark.parametrize(
    "body",
    [
        {"__type": "com.amazon.coral.service#ThrottlingException", "Message": "slow down"},
        {"__type": "ThrottlingException", "message": "slow down"},
        {
            "__type": "com.amazon.coral.service#ThrottlingException:http://internal.amazon.com/",
            "message": "slow down",
        },
        {"code": "ThrottlingException", "message": "slow down"},
    ],
)
def test_the_code_may_stand_in_the_body(body: dict[str, str]) -> None:
    """Sent with a 400, so that only the code can say what it is."""
    failure = failed(whole(body, status=400))

    assert (failure.kind, failure.code) == (FailureKind.THROTTLED, "ThrottlingException")
    assert "slow down" in failure.message


def test_the_code_is_found_beside_a_long_message() -> None:
    failure = failed(whole({"message": "x" * 200_000, "code": "ThrottlingException"}, status=400))

    assert (failure.kind, failure.code) == (FailureKind.THROTTLED, "ThrottlingException")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, FailureKind.REJECTED),
        (403, FailureKind.MISCONFIGURED),
        (429, FailureKind.THROTTLED),
        (502, FailureKind.TRANSIENT),
        (302, FailureKind.MISCONFIGURED),
        (404, FailureKind.MISCONFIGURED),
    ],
)
@pytest.mark.parametrize(
    "body", [b"<html>Bad Gateway</html>", b"", b"\xff\x00", b'{"message": 3}', b"x" * 100_000]
)
def test_without_a_code_the_status_decides(status: int, kind: FailureKind, body: bytes) -> None:
    failure = failed(Reply(status=status, body=body, headers={"Content-Type": "text/html"}))

    assert (failure.kind, failure.code) == (kind, None)
    assert "html" not in failure.message


def test_an_error_cut_in_its_middle_still_has_its_status() -> None:
    assert failed(Reply(status=429, body=b'{"mess', ending="cut")).kind is FailureKind.THROTTLED


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("ExpiredTokenException", "renew them"),
        ("InvalidSignatureException", "clock"),
        ("AccessDeniedException", "may call this model"),
        ("ResourceNotFoundException", "model id and the region"),
        ("ValidationException", "inference profile"),
    ],
)
def test_an_operator_is_told_what_to_check(code: str, hint: str) -> None:
    assert hint in failed(refusal(403, code, "no")).message


def test_a_long_message_is_cut() -> None:
    assert len(failed(refusal(429, "ThrottlingException", "x" * 10_000)).message) < 600


@pytest.mark.parametrize(
    ("header", "value", "wait_s"),
    [("Retry-After", "7", 7), ("Retry-After", "0.5", 0.5), ("retry-after-ms", "250", 0.25)],
)
def test_a_wait_that_is_asked_for(header: str, value: str, wait_s: float) -> None:
    assert failed(whole({"message": "slow"}, status=429, headers={header: value})).retry_after_s == wait_s


def test_a_wait_until_a_date() -> None:
    now = datetime.now(UTC)
    headers = {
        "Date": format_datetime(now, usegmt=True),
        "Retry-After": format_datetime(now + timedelta(seconds=30), usegmt=True),
    }

    assert failed(whole({"message": "slow"}, status=429, headers=headers)).retry_after_s == 30


def test_nobody_there_is_transient() -> None:
    async def scene() -> Failure:
        transport = Transport()
        options = read_options({"region": REGION, "base_url": "http://127.0.0.1:9", **KEYS}, env={})
        provider = BedrockProvider(options, model="m", transport=transport, timeouts=Timeouts())
        try:
            with pytest.raises(ProviderFailure) as caught:
                await provider.send(ask())
            return caught.value.failure
        finally:
            await transport.aclose()

    assert asyncio.run(scene()).kind is FailureKind.TRANSIENT


def test_a_wrong_secret_is_found_out_and_not_told() -> None:
    """AWS quotes the headers it would have signed, the session token among them, and the signature that came."""
    wrong = "another+secret/that+nobody/may+see"

    failure = failed(said(), keys={**KEYS, "secret_access_key": wrong})

    assert (failure.kind, failure.code) == (FailureKind.MISCONFIGURED, "InvalidSignatureException")
    assert "Canonical String" in failure.message
    assert "***" in failure.message
    _assert_untold(failure.message, wrong)


def _assert_untold(text: str, *secrets: str) -> None:
    for secret in (SECRET, TOKEN, *secrets):
        assert secret not in text


def test_nothing_secret_reaches_logs_or_reprs(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> str:
        async with stage(said({"text": "Hi"}), refusal(403, "AccessDeniedException", "no")) as (
            stub,
            provider,
        ):
            await provider.send(ask())
            with pytest.raises(ProviderFailure) as caught:
                await provider.send(ask())
            keys = await provider._ring.keys()
            signed = await provider._sign(provider._converse, b"{}", keys, "application/json")
            said_by_all = [repr(thing) for thing in (provider, provider._options, keys, signed, caught.value)]
            signatures = [seen.headers["authorization"].rpartition("=")[2] for seen in stub.seen]
            text = "\n".join([*said_by_all, caught.value.failure.message, caplog.text])
            _assert_untold(text, *signatures)
            return text

    with caplog.at_level(logging.DEBUG):
        text = asyncio.run(scene())
    assert "BedrockOptions(region='us-east-1'" in text


def test_header_values_stay_out_of_the_options_repr() -> None:
    options = BedrockOptions(region=REGION, headers={"X-Proxy-Key": "hush"})

    assert "hush" not in repr(options)


def test_a_stream_that_is_refused_tells_no_secret_either() -> None:
    _, failure = streamed(said(), keys={**KEYS, "secret_access_key": "another"})

    assert failure is not None
    _assert_untold(failure.message)
