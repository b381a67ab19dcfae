"""What went wrong at an OpenAI-like server: its class, its wait, and words that help the operator."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from contracts.provider_stage import KEY, TIMEOUTS
from providers.asking import a_call
from providers.openai_stage import chunks_of, failure_from, on_stub, send, streamed
from providers.stubs.openai import EVENTS, JSON, OpenAIStub, completion, error, stream, whole
from providers.stubs.scripted import CUT, HANG, Reply

from headgate.core.errors import ProviderFailure
from headgate.core.failures import FailureKind
from headgate.providers import exchange
from headgate.providers.openai import OpenAIProvider

K = FailureKind


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        pytest.param(error(400, code="context_length_exceeded"), K.REJECTED, "context_length_exceeded", id="too long"),
        pytest.param(error(400, code="content_filter", kind=None), K.REJECTED, "content_filter", id="azure filter"),
        pytest.param(error(401, code="invalid_api_key"), K.MISCONFIGURED, "invalid_api_key", id="key"),
        pytest.param(whole({"statusCode": 401, "message": "Access denied"}, status=401), K.MISCONFIGURED, None, id="azure key"),
        pytest.param(error(402, kind="billing_error"), K.MISCONFIGURED, "billing_error", id="credit"),
        pytest.param(error(403, code="unsupported_country_region_territory"), K.MISCONFIGURED, "unsupported_country_region_territory", id="country"),
        pytest.param(error(404, code="model_not_found"), K.MISCONFIGURED, "model_not_found", id="model"),
        pytest.param(error(404, code="DeploymentNotFound", kind=None), K.MISCONFIGURED, "DeploymentNotFound", id="azure deployment"),
        pytest.param(
            whole({"object": "error", "message": "no `x`", "type": "NotFoundError", "param": None, "code": 404}, status=404),
            K.MISCONFIGURED, "NotFoundError", id="vllm model",
        ),
        pytest.param(error(404, kind="not_found_error"), K.MISCONFIGURED, "not_found_error", id="ollama model"),
        pytest.param(whole({"detail": "Not Found"}, status=404), K.MISCONFIGURED, None, id="wrong path"),
        pytest.param(whole({"detail": "Method Not Allowed"}, status=405), K.MISCONFIGURED, None, id="no such method"),
        pytest.param(error(413), K.REJECTED, "invalid_request_error", id="too large"),
        pytest.param(whole({"detail": [{"msg": "bad"}]}, status=422), K.REJECTED, None, id="fastapi"),
        pytest.param(error(429, code="rate_limit_exceeded", kind="tokens"), K.THROTTLED, "rate_limit_exceeded", id="limit"),
        pytest.param(error(429, code="insufficient_quota", kind="insufficient_quota"), K.MISCONFIGURED, "insufficient_quota", id="quota"),
        pytest.param(error(429, code="429", kind=None), K.THROTTLED, None, id="azure limit"),
        pytest.param(error(408), K.TRANSIENT, "invalid_request_error", id="timeout"),
        pytest.param(error(500, kind="server_error"), K.TRANSIENT, "server_error", id="server"),
        pytest.param(error(501, code=501, kind="not_supported_error"), K.MISCONFIGURED, "not_supported_error", id="llama.cpp feature"),
        pytest.param(error(503, "Loading model", code=503, kind="unavailable_error"), K.TRANSIENT, "unavailable_error", id="llama.cpp loading"),
        pytest.param(error(503, kind="overloaded_error"), K.THROTTLED, "overloaded_error", id="overloaded"),
        pytest.param(Reply(status=502, headers={"Content-Type": "text/html"}, body=b"<html>Bad</html>"), K.TRANSIENT, None, id="proxy page"),
        pytest.param(Reply(status=307, headers={"Location": "https://elsewhere/v1"}), K.MISCONFIGURED, None, id="redirect"),
        pytest.param(Reply(status=500), K.TRANSIENT, None, id="no words"),
        pytest.param(whole({"error": {"message": "disconnected", "code": 502}}), K.TRANSIENT, None, id="openrouter in a 200"),
        pytest.param(whole({"error": {"message": "slow", "code": 429}}), K.THROTTLED, None, id="openrouter limit in a 200"),
        pytest.param(completion(error={"message": "x", "code": 400}), K.REJECTED, None, id="an error beside an answer"),
        pytest.param(whole({"choices": []}), K.TRANSIENT, "bad_envelope", id="no choices"),
        pytest.param(whole({"choices": [{}]}), K.TRANSIENT, "bad_envelope", id="no message"),
        pytest.param(whole({"object": "list"}), K.TRANSIENT, "bad_envelope", id="another object"),
        pytest.param(whole([]), K.TRANSIENT, "bad_envelope", id="a list"),
        pytest.param(Reply(), K.TRANSIENT, "bad_envelope", id="nothing"),
        pytest.param(Reply(body=completion().body[:-20]), K.TRANSIENT, "bad_envelope", id="truncated"),
        pytest.param(Reply(body=b"[" * 100_000), K.TRANSIENT, "bad_envelope", id="bottomless"),
        pytest.param(Reply(body=b'{"choices": [{"message": {"content": "\xff"}}]}'), K.TRANSIENT, "bad_envelope", id="no UTF-8"),
        pytest.param(Reply(status=204), K.TRANSIENT, "bad_envelope", id="no content"),
    ],
)  # fmt: skip
def test_every_answer_that_is_none_has_its_class(reply: Reply, kind: FailureKind, code: str | None) -> None:
    failure = failure_from(send, reply)

    assert (failure.kind, failure.code) == (kind, code)
    assert not failure.ambiguous


def test_the_words_say_who_what_and_what_to_do() -> None:
    failure = failure_from(send, error(404, "The model `x` does not exist", code="model_not_found"))

    assert failure.message.startswith("404 from http://127.0.0.1:")
    assert ": The model `x` does not exist (check model and base_url" in failure.message
    assert failure.status == 404


def test_long_words_are_cut_and_lines_joined() -> None:
    failure = failure_from(send, error(400, "so\nlong " * 1000))

    assert len(failure.message) < 600
    assert "\n" not in failure.message


def test_a_page_without_words_says_its_status() -> None:
    reply = Reply(status=502, headers={"Content-Type": "text/html"}, body=b"<html>nginx</html>")

    assert "nginx" not in failure_from(send, reply).message


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "0.25"}, 0.25),
        ({"Retry-After": "7", "retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_the_wait_a_server_asks_for_is_read(headers: Mapping[str, str], wait_s: float | None) -> None:
    assert failure_from(send, error(429, headers=headers)).retry_after_s == wait_s


def test_a_wait_until_a_date_is_read() -> None:
    until = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)

    wait_s = failure_from(send, error(503, headers={"Retry-After": until})).retry_after_s

    assert wait_s is not None
    assert 25 < wait_s <= 30


def test_an_error_whose_words_are_too_many_keeps_its_class() -> None:
    reply = Reply(status=429, headers={**JSON, "Retry-After": "3"}, body=b"x" * 2_000_000)

    failure = failure_from(send, reply)

    assert (failure.kind, failure.retry_after_s) == (K.THROTTLED, 3)


def test_an_error_that_quotes_a_long_prompt_keeps_its_code() -> None:
    """Without it an empty account would look like a limit, and be asked again and again."""
    failure = failure_from(send, error(429, "x" * 200_000, code="insufficient_quota"))

    assert (failure.kind, failure.code) == (K.MISCONFIGURED, "insufficient_quota")


@pytest.mark.parametrize("changes", [{"ending": CUT}, {"ending": HANG}])
def test_an_error_whose_words_never_end_keeps_its_class(
    changes: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot must not hang on an explanation."""
    monkeypatch.setattr(exchange, "ERROR_BODY_S", 0.1)

    assert failure_from(send, Reply(status=500, body=b'{"err', **changes)).status == 500


def test_no_secret_of_ours_is_in_what_a_server_says() -> None:
    secrets = {"headers": {"X-Token": "header-secret"}, "query": {"sig": "query-secret"}}
    echo = f"{KEY} header-secret query-secret"
    replies = [error(401, echo), whole({"error": {"message": echo}}), stream([event_of(echo)])]

    said = [
        failure_from(send, replies[0], **secrets).message,
        failure_from(send, replies[1], **secrets).message,
        failure_from(streamed, replies[2], **secrets).message,
    ]

    assert all(message.endswith("*** *** ***") or "*** *** *** (" in message for message in said), said


def test_a_secret_at_the_place_where_a_long_message_is_cut_is_struck_too() -> None:
    """Half a key would be no key to look for any more, and still most of a key."""
    for length in range(480, 510):
        message = failure_from(send, error(401, "x" * length + KEY)).message
        assert KEY[:8] not in message, length


def event_of(message: str) -> bytes:
    return b"data: %b\n\n" % json.dumps({"error": {"message": message}}).encode()


# ---- Streams that do not begin ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        pytest.param(error(429), K.THROTTLED, "invalid_request_error", id="by its status"),
        pytest.param(
            whole({"error": {"message": "x", "code": 503}}), K.TRANSIENT, None, id="an error in a 200"
        ),
        pytest.param(
            whole({"error": {"message": "x", "code": 400}}), K.REJECTED, None, id="a refusal in a 200"
        ),
        pytest.param(completion(), K.TRANSIENT, "bad_envelope", id="a whole answer"),
        pytest.param(Reply(headers={}, body=b"data: [DONE]\n\n"), K.TRANSIENT, "bad_envelope", id="no type"),
        pytest.param(
            Reply(headers=JSON, body=b"{", ending=HANG), K.TRANSIENT, "bad_envelope", id="an endless 200"
        ),
    ],
)
def test_a_stream_that_is_none_has_its_class(
    reply: Reply, kind: FailureKind, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "ERROR_BODY_S", 0.1)

    failure = failure_from(streamed, reply)

    assert (failure.kind, failure.code) == (kind, code)


def test_a_stream_that_never_begins_ends_by_first_token_s() -> None:
    patience = type(TIMEOUTS)(first_token_s=0.1, idle_s=5)

    failure = failure_from(streamed, Reply(headers=EVENTS, ending=HANG), timeouts=patience)

    assert failure.kind is K.TRANSIENT
    assert failure.timed_out


def test_a_stream_that_falls_silent_ends_by_idle_s() -> None:
    patience = type(TIMEOUTS)(first_token_s=5, idle_s=0.1)

    failure = failure_from(streamed, stream([b": hello\n\n"], ending=HANG), timeouts=patience)

    assert failure.timed_out


def test_a_whole_answer_may_take_its_time() -> None:
    """A slow local model sends nothing for minutes; the dispatcher's deadline is over it, not the socket's."""
    impatient = type(TIMEOUTS)(first_token_s=0.05, idle_s=0.05)

    async def act(provider: OpenAIProvider, _: OpenAIStub) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(provider.send(a_call()), 0.5)

    on_stub(act, Reply(silent=True), timeouts=impatient)


def test_a_failed_stream_leaves_no_connection_behind() -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> int:
        for _ in range(3):
            with pytest.raises(ProviderFailure):
                await chunks_of(provider)
        return stub.connections

    assert on_stub(act, error(500)) == 1
