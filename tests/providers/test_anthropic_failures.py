"""Errors: each body's class, what the message says to do, and that no key is ever told."""

import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from providers.anthropic_stage import STAGE, anthropic_stage
from providers.http_stage import KEY, ask
from providers.stubs.anthropic import TEXT_BLOCK, error, error_body, said, whole
from providers.stubs.scripted import CUT, Reply, ScriptedServer

from headgate.core.errors import ProviderFailure
from headgate.core.failures import FailureKind
from headgate.core.ports.provider import Provider
from headgate.core.problems import InvalidSettings
from headgate.providers.anthropic import AnthropicOptions, read_options

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (400, "invalid_request_error", FailureKind.REJECTED, ""),
        (401, "authentication_error", FailureKind.MISCONFIGURED, "check api_key"),
        (402, "billing_error", FailureKind.MISCONFIGURED, "billing"),
        (403, "permission_error", FailureKind.MISCONFIGURED, "check what api_key may do"),
        (404, "not_found_error", FailureKind.REJECTED, "check the model name 'claude-test'"),
        (409, "conflict_error", FailureKind.REJECTED, ""),
        (413, "request_too_large", FailureKind.REJECTED, ""),
        (429, "rate_limit_error", FailureKind.THROTTLED, ""),
        (500, "api_error", FailureKind.TRANSIENT, ""),
        (504, "timeout_error", FailureKind.TRANSIENT, ""),
        (529, "overloaded_error", FailureKind.THROTTLED, ""),
    ],
)
def test_each_error_has_its_class(status: int, code: str, kind: FailureKind, hint: str) -> None:
    failure = STAGE.failure(error(status, code, "the reason"))

    assert (failure.kind, failure.status, failure.code) == (kind, status, code)
    assert failure.message.startswith(f"{status} from http://127.0.0.1:")
    assert "the reason" in failure.message
    assert failure.message.endswith("the reason") if not hint else hint in failure.message


def test_a_finer_code_says_more_than_its_type() -> None:
    """A 429 that no waiting will cure must not be waited for."""
    spent = error(429, "rate_limit_error", error_code="enforced_spend_limit_reached")
    ramp = error(429, "rate_limit_error", error_code="ramp_limit_exceeded")

    assert STAGE.failure(spent).kind is FailureKind.MISCONFIGURED
    assert STAGE.failure(ramp).kind is FailureKind.THROTTLED


def test_a_wrong_model_is_told_apart_later() -> None:
    assert STAGE.failure(error(404, "not_found_error", "model: claude-test")).ambiguous


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        (
            {
                "date": "Mon, 01 Jun 2026 10:00:00 GMT",
                "retry-after": format_datetime(
                    datetime(2026, 6, 1, 10, tzinfo=UTC) + timedelta(seconds=30), usegmt=True
                ),
            },
            30.0,
        ),
        ({}, None),
    ],
)
def test_the_wait_it_asks_for_is_read_in_all_its_forms(headers: dict[str, str], wait_s: float | None) -> None:
    failure = STAGE.failure(error(429, "rate_limit_error", headers=headers))

    assert failure.retry_after_s == wait_s


@pytest.mark.parametrize(
    ("reply", "kind", "status"),
    [
        (Reply(b"<html>", status=502, headers={"content-type": "text/html"}), FailureKind.TRANSIENT, 502),
        (Reply(b"", status=503), FailureKind.TRANSIENT, 503),
        (Reply(b"{", status=401, headers=JSON), FailureKind.MISCONFIGURED, 401),
        (
            Reply(b"x" * 200_000, status=403, headers={"content-type": "text/plain"}),
            FailureKind.MISCONFIGURED,
            403,
        ),
        (
            Reply(b"no such page", status=404, headers={"content-type": "text/plain"}),
            FailureKind.MISCONFIGURED,
            404,
        ),
        (Reply(status=301, headers={"location": "https://elsewhere"}), FailureKind.MISCONFIGURED, 301),
        (Reply(b'{"type"', status=429, headers=JSON, ending=CUT), FailureKind.THROTTLED, 429),
    ],
)
def test_errors_in_strange_words_keep_the_class_of_their_status(
    reply: Reply, kind: FailureKind, status: int
) -> None:
    """Proxies answer in HTML, and an error may be cut off like anything else."""
    failure = STAGE.failure(reply)

    assert (failure.kind, failure.status) == (kind, status)
    assert len(failure.message) < 700


def test_redirects_are_not_followed() -> None:
    async def act(provider: Provider, server: ScriptedServer) -> None:
        with pytest.raises(ProviderFailure, match=r"301 from .*check base_url"):
            await provider.send(ask())
        assert len(server.requests) == 1

    STAGE.play(act, Reply(status=301, headers={"location": "/v1/messages"}))


def test_nothing_is_retried() -> None:
    async def act(provider: Provider, server: ScriptedServer) -> int:
        with pytest.raises(ProviderFailure, match="529"):
            await provider.send(ask())
        return len(server.requests)

    assert STAGE.play(act, error(529, "overloaded_error"), said(TEXT_BLOCK)) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b'{"type": "mess', headers=JSON),
        Reply(b"[]", headers=JSON),
        Reply(b'{"type": "message"}', headers=JSON),
        Reply(b'{"type": "message", "content": 3}', headers=JSON),
        Reply(b"Hello!", headers={"content-type": "text/plain"}),
        Reply(b""),
        Reply(b"", status=204),
    ],
)
def test_a_broken_envelope_is_transient(reply: Reply) -> None:
    failure = STAGE.failure(reply)

    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


def test_an_error_under_status_200_has_its_own_class() -> None:
    failure = STAGE.failure(whole(error_body("overloaded_error")))

    assert (failure.kind, failure.code) == (FailureKind.THROTTLED, "overloaded_error")


def test_an_answer_cut_in_its_body_is_transient() -> None:
    assert STAGE.failure(Reply(b'{"type"', headers=JSON, ending=CUT)).kind is FailureKind.TRANSIENT


def test_no_key_is_ever_told(caplog: pytest.LogCaptureFixture) -> None:
    """Not even when the provider quotes it back."""
    caplog.set_level(logging.DEBUG)
    stage = anthropic_stage(headers={"x-team": "team-secret-token"})
    quoted = error(401, "authentication_error", f"invalid x-api-key {KEY} of team-secret-token")
    failure = stage.failure(quoted)

    async def act(provider: Provider, server: ScriptedServer) -> str:
        return repr(provider) + repr(vars(provider))

    told = failure.message + caplog.text + stage.play(act, said(TEXT_BLOCK)) + str(failure)
    assert KEY not in told
    assert "team-secret" not in told
    assert KEY not in repr(AnthropicOptions(api_key=KEY))


def test_the_options_are_checked_together_and_tell_no_secret() -> None:
    with pytest.raises(InvalidSettings) as caught:
        read_options(
            {
                "base_url": "ftp://x",
                "api_key": f"{KEY}\n",
                "headers": {"a b": "c", "Connection": "close"},
                "query": {"a": 1},
                "ca_file": 3,
                "max_tokens": 0,
            }
        )

    assert [problem.path for problem in caught.value.problems] == [
        "base_url",
        "api_key",
        "headers",
        "query.a",
        "ca_file",
        "max_tokens",
    ]
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"api_kee": "x"}, "did you mean 'api_key'"),
        ({}, "ANTHROPIC_API_KEY"),
        ({"api_key": ""}, "not empty"),
        ({"api_key": KEY, "base_url": "https://x.example/?a=b"}, "base_url"),
        ({"api_key": KEY, "headers": {"a": 1}}, "put quotes around"),
        ({"api_key": KEY, "headers": {"a": "ключ"}}, "no header may hold"),
        ({"api_key": KEY, "headers": []}, "must map"),
        ({"api_key": KEY, "ca_file": "/nowhere.pem"}, "ca_file: /nowhere.pem cannot be used: No such file"),
        ({"api_key": KEY, "ca_file": __file__}, "ca_file: .* cannot be used"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(given: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        read_options(given)


@pytest.mark.parametrize(
    "given", [{"headers": {"Authorization": "Bearer x"}}, {"base_url": "http://gateway"}]
)
def test_a_key_may_come_another_way(given: dict[str, object]) -> None:
    assert read_options(given).api_key is None
