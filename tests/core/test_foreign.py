"""The real exceptions of the libraries people call providers with, raised the way those libraries raise them."""

import asyncio
import binascii
import builtins
import concurrent.futures
import contextlib
import errno
import functools
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, NoReturn

import aiohttp
import anthropic
import botocore.config  # type: ignore[import-untyped]
import botocore.eventstream  # type: ignore[import-untyped]
import botocore.exceptions  # type: ignore[import-untyped]
import botocore.parsers  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3.exceptions
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.errors import (
    DeadlineExceeded,
    DeadlineUnreachable,
    Draining,
    HeadgateError,
    Preempted,
    ProviderFailure,
    QueueFull,
    Refused,
    SettingsError,
    StreamCut,
    UnknownModel,
    UpstreamThrottled,
)
from headgate.core.failures import Failure, FailureKind
from headgate.core.foreign import LONGEST_MESSAGE_CHARS, classify
from headgate.core.foreign_tables import MEANINGS, WRAPPERS

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
Call = Callable[[], object]


def judged(error: BaseException) -> Failure:
    return classify(error, now=NOW)


def raised_by(call: Call) -> Exception:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - which one it is, is the library's choice and our question.
        return error
    pytest.fail("the call was to fail")


def failure_of(call: Call) -> Failure:
    return judged(raised_by(call))


# --- One network, seven clients -------------------------------------------------------------------------------------


def call_httpx(url: str, timeout_s: float) -> None:
    with httpx.Client(timeout=timeout_s, trust_env=False) as client:
        client.get(url).raise_for_status()


def call_httpx2(url: str, timeout_s: float) -> None:
    with httpx2.Client(timeout=timeout_s, trust_env=False) as client:
        client.get(url).raise_for_status()


def call_httpx_async(url: str, timeout_s: float) -> None:
    async def call() -> None:
        async with httpx.AsyncClient(timeout=timeout_s, trust_env=False) as client:
            (await client.get(url)).raise_for_status()

    asyncio.run(call())


def call_aiohttp(url: str, timeout_s: float) -> None:
    async def call() -> None:
        timeout = aiohttp.ClientTimeout(sock_connect=timeout_s, sock_read=timeout_s)
        session = aiohttp.ClientSession(timeout=timeout, raise_for_status=True)
        async with session, session.get(url) as response:
            await response.read()

    asyncio.run(call())


def call_requests(url: str, timeout_s: float) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=timeout_s).raise_for_status()


def call_openai(url: str, timeout_s: float) -> None:
    http = httpx2.Client(timeout=timeout_s, trust_env=False)
    with openai.OpenAI(api_key="k", base_url=url, max_retries=0, http_client=http) as client:
        client.models.list()


def call_anthropic(url: str, timeout_s: float) -> None:
    http = httpx2.Client(timeout=timeout_s, trust_env=False)
    with anthropic.Anthropic(api_key="k", base_url=url, max_retries=0, http_client=http) as client:
        client.models.list()


def bedrock(url: str = "http://127.0.0.1:9", timeout_s: float = 10, **options: Any) -> Any:
    config = botocore.config.Config(
        retries={"total_max_attempts": 1},
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        proxies={},
    )
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"} | options
    return aws_session().create_client("bedrock-runtime", endpoint_url=url, config=config, **keys)


@functools.cache
def aws_session() -> Any:
    """One for all: it keeps the service's description, which takes long to read."""
    return botocore.session.get_session()


def call_botocore(url: str, timeout_s: float) -> None:
    client = bedrock(url, timeout_s)
    try:
        client.list_async_invokes()
    finally:
        client.close()


CLIENTS: Mapping[str, Callable[[str, float], None]] = {
    "httpx": call_httpx,
    "httpx async": call_httpx_async,
    "httpx2": call_httpx2,
    "aiohttp": call_aiohttp,
    "requests": call_requests,
    "openai": call_openai,
    "anthropic": call_anthropic,
    "botocore": call_botocore,
}
every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
AClient = Callable[[str, float], None]


@contextlib.contextmanager
def loopback(reply: bytes, *, then_stall: bool = False) -> Iterator[str]:
    """A server that sends `reply` to every request, and then closes the connection or says nothing more."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(65536) or b"\r\n\r\n"
                connection.sendall(reply)
                if then_stall:
                    over.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            socket.create_connection(listener.getsockname()).close()
            server.join()


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port that is taken, so that nobody else opens it, and that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def answer(status: int, body: bytes = b"{}", **headers: str) -> bytes:
    lines = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + body


@every_client
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, FailureKind.THROTTLED),
        (529, FailureKind.THROTTLED),
        (503, FailureKind.TRANSIENT),
        (401, FailureKind.MISCONFIGURED),
        (422, FailureKind.REJECTED),
    ],
)
def test_an_answer_means_the_same_through_every_client(
    client: AClient, status: int, kind: FailureKind
) -> None:
    """Who swaps the client library must not thereby change what is retried, or for how long it waits."""
    with loopback(answer(status, Retry_After="7")) as url:
        failure = failure_of(lambda: client(url, 10))

    assert (failure.kind, failure.status, failure.retry_after_s) == (kind, status, 7.0)
    assert not failure.timed_out


@every_client
def test_a_gateway_timeout_is_a_timeout_through_every_client(client: AClient) -> None:
    with loopback(answer(504)) as url:
        failure = failure_of(lambda: client(url, 10))

    assert (failure.kind, failure.status, failure.timed_out) == (FailureKind.TRANSIENT, 504, True)


@every_client
def test_silence_is_a_timeout_through_every_client(client: AClient) -> None:
    with loopback(b"", then_stall=True) as url:
        failure = failure_of(lambda: client(url, 0.1))

    assert (failure.kind, failure.timed_out) == (FailureKind.TRANSIENT, True)


@every_client
def test_a_refused_connection_is_transient_and_no_timeout_through_every_client(client: AClient) -> None:
    """Urllib3 derives a refused connection from its connect timeout; we must not fall for that."""
    with closed_port() as port:
        failure = failure_of(lambda: client(f"http://127.0.0.1:{port}", 10))

    assert (failure.kind, failure.timed_out) == (FailureKind.TRANSIENT, False)


@every_client
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"", id="closed without a word"),
        pytest.param(b"220 mail.example.com ESMTP\r\n\r\n", id="not HTTP"),
    ],
)
def test_a_broken_envelope_is_transient_through_every_client(client: AClient, reply: bytes) -> None:
    with loopback(reply) as url:
        failure = failure_of(lambda: client(url, 10))

    assert (failure.kind, failure.timed_out) == (FailureKind.TRANSIENT, False)


# Not botocore: it checks no length, and takes a body that is no JSON for a message.
@pytest.mark.parametrize("client", [client for name, client in CLIENTS.items() if name != "botocore"])
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(answer(200, b'{"data": [', Content_Length="100"), id="cut"),
        pytest.param(answer(200, b"not gzip", Content_Encoding="gzip"), id="not in its encoding"),
    ],
)
def test_a_broken_body_is_transient_through_every_client_that_notices(client: AClient, reply: bytes) -> None:
    with loopback(reply) as url:
        failure = failure_of(lambda: client(url, 10))

    assert (failure.kind, failure.timed_out) == (FailureKind.TRANSIENT, False)


@every_client
def test_an_unknown_host_is_transient_through_every_client(
    client: AClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolvers fail for moments far more often than a configured name is wrong for good."""

    def unresolved(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)

    failure = failure_of(lambda: client("http://nowhere.example", 10))

    assert (failure.kind, failure.timed_out) == (FailureKind.TRANSIENT, False)


def refuse_handshakes(monkeypatch: pytest.MonkeyPatch, error: ssl.SSLError) -> None:
    def handshake(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", handshake)
    monkeypatch.setattr(ssl.SSLContext, "wrap_bio", handshake)


@every_client
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), FailureKind.MISCONFIGURED),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), FailureKind.TRANSIENT),
    ],
)
def test_a_refused_certificate_is_a_wrong_set_up_through_every_client(
    client: AClient, error: ssl.SSLError, kind: FailureKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but aiohttp hide it in a connection error; retried, it would look like an outage forever."""
    refuse_handshakes(monkeypatch, error)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        failure = failure_of(lambda: client(f"https://127.0.0.1:{listener.getsockname()[1]}", 10))

    assert (failure.kind, failure.timed_out) == (kind, False)


@every_client
def test_a_url_that_is_no_url_is_a_wrong_set_up_through_every_client(client: AClient) -> None:
    assert failure_of(lambda: client("htp://127.0.0.1", 10)).kind is FailureKind.MISCONFIGURED


def test_an_older_error_in_the_context_does_not_colour_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fallback is tried while the first error is being handled, so Python chains the two."""
    refuse_handshakes(monkeypatch, ssl.SSLCertVerificationError(1, "certificate verify failed"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = raised_by(lambda: call_httpx(f"https://127.0.0.1:{listener.getsockname()[1]}", 10))
    with closed_port() as port:
        try:
            raise first
        except httpx.ConnectError:
            second = raised_by(lambda: call_httpx(f"http://127.0.0.1:{port}", 10))

    assert judged(first).kind is FailureKind.MISCONFIGURED
    assert judged(second).kind is FailureKind.TRANSIENT


def test_a_body_that_stalls_is_a_timeout_although_requests_calls_it_a_connection_error() -> None:
    def call(url: str) -> None:
        with requests.Session() as session:
            session.trust_env = False
            with session.get(url, timeout=0.1, stream=True) as response:
                assert response.content

    with loopback(answer(200, Content_Length="100"), then_stall=True) as url:
        error = raised_by(lambda: call(url))

    assert type(error) is requests.ConnectionError
    assert judged(error).timed_out


# --- What single clients do in their own way ------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "kind"), [(200, FailureKind.TRANSIENT), (401, FailureKind.MISCONFIGURED)])
def test_a_page_where_json_was_due_counts_by_its_status_with_aiohttp(status: int, kind: FailureKind) -> None:
    """A proxy's login page is no outage; an HTML page under 200 is."""

    async def call(url: str) -> None:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            await response.json()

    with loopback(answer(status, b"<html>", Content_Type="text/html")) as url:
        error = raised_by(lambda: asyncio.run(call(url)))

    assert isinstance(error, aiohttp.ContentTypeError)
    assert judged(error).kind is kind


def test_an_aiohttp_error_built_by_hand_is_still_understood() -> None:
    """Its text raises without a request, and its headers are None: both are common in users' own doubles."""
    request: Any = None

    failure = judged(aiohttp.ClientResponseError(request, (), status=429))

    assert failure == Failure(kind=FailureKind.THROTTLED, status=429, message="ClientResponseError")


def test_the_total_timeout_of_aiohttp_is_a_timeout() -> None:
    async def call(url: str) -> None:
        timeout = aiohttp.ClientTimeout(total=0.1)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url):
            pass

    with loopback(b"", then_stall=True) as url:
        assert failure_of(lambda: asyncio.run(call(url))).timed_out


def json_by_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=10).json()


def json_by_httpx(url: str) -> None:
    httpx.get(url, trust_env=False).json()


@pytest.mark.parametrize("ask", [json_by_requests, json_by_httpx])
def test_an_answer_that_is_no_json_is_transient(ask: Callable[[str], None]) -> None:
    with loopback(answer(200, b'{"choices": [')) as url:
        assert failure_of(lambda: ask(url)).kind is FailureKind.TRANSIENT


def test_a_header_that_cannot_be_sent_is_a_wrong_set_up() -> None:
    """An API key with a line break in it, straight from a file."""
    headers = {"Authorization": "Bearer key\n"}

    with loopback(b"") as url:
        by_requests = raised_by(lambda: requests.get(url, headers=headers, timeout=10))
        by_httpx = raised_by(lambda: httpx.get(url, headers=headers, trust_env=False))

    assert isinstance(by_requests, requests.exceptions.InvalidHeader)
    assert judged(by_requests).kind is FailureKind.MISCONFIGURED
    assert isinstance(by_httpx, httpx.LocalProtocolError)
    assert judged(by_httpx).kind is FailureKind.MISCONFIGURED


@pytest.mark.parametrize("url", ["", "example.com", "http://", "ftp://example.com"])
def test_a_senseless_url_is_a_wrong_set_up_with_requests(url: str) -> None:
    assert failure_of(lambda: requests.get(url, timeout=1)).kind is FailureKind.MISCONFIGURED


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:port"])
def test_a_senseless_url_is_a_wrong_set_up_with_httpx(url: str) -> None:
    assert failure_of(lambda: httpx.get(url)).kind is FailureKind.MISCONFIGURED
    assert failure_of(lambda: httpx2.get(url)).kind is FailureKind.MISCONFIGURED


# --- The SDKs' structured codes -------------------------------------------------------------------------------------


Handler = Callable[[httpx2.Request], httpx2.Response]
MESSAGES: Any = [{"role": "user", "content": "hello"}]


def ask_openai(handler: Handler, *, stream: bool = False, strict: bool = False) -> None:
    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    with openai.OpenAI(
        api_key="k", max_retries=0, http_client=http, _strict_response_validation=strict
    ) as client:
        answered: Any = client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
        list(answered)


def ask_anthropic(handler: Handler, *, stream: bool = False, strict: bool = False) -> None:
    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    with anthropic.Anthropic(
        api_key="k", max_retries=0, http_client=http, _strict_response_validation=strict
    ) as client:
        answered: Any = client.messages.create(model="m", messages=MESSAGES, max_tokens=9, stream=stream)
        list(answered)


def openai_says(status: int, error: object, **headers: str) -> Failure:
    body = {"error": error}
    return failure_of(lambda: ask_openai(lambda _: httpx2.Response(status, json=body, headers=headers)))


def anthropic_says(status: int, error: object, **headers: str) -> Failure:
    body = {"type": "error", "error": error}
    return failure_of(lambda: ask_anthropic(lambda _: httpx2.Response(status, json=body, headers=headers)))


@pytest.mark.parametrize(
    ("status", "code", "type_", "kind"),
    [
        (429, "insufficient_quota", "insufficient_quota", FailureKind.MISCONFIGURED),
        (429, None, "insufficient_quota", FailureKind.MISCONFIGURED),
        (429, "rate_limit_exceeded", "tokens", FailureKind.THROTTLED),
        (404, "model_not_found", "invalid_request_error", FailureKind.MISCONFIGURED),
        (404, "DeploymentNotFound", None, FailureKind.MISCONFIGURED),
        (400, "billing_hard_limit_reached", "invalid_request_error", FailureKind.MISCONFIGURED),
        (401, None, "invalid_request_error", FailureKind.MISCONFIGURED),
        (400, "context_length_exceeded", "invalid_request_error", FailureKind.REJECTED),
        (500, None, "server_error", FailureKind.TRANSIENT),
        (429, 429, "RateLimitError", FailureKind.THROTTLED),
    ],
)
def test_openais_code_says_what_its_status_does_not(
    status: int, code: object, type_: str | None, kind: FailureKind
) -> None:
    failure = openai_says(status, {"message": "text", "type": type_, "code": code, "param": None})

    assert (failure.kind, failure.status) == (kind, status)
    assert failure.code == (code if isinstance(code, str) else type_)
    assert not failure.ambiguous


@pytest.mark.parametrize(
    ("status", "error", "kind", "code"),
    [
        (429, {"type": "rate_limit_error"}, FailureKind.THROTTLED, "rate_limit_error"),
        (529, {"type": "overloaded_error"}, FailureKind.THROTTLED, "overloaded_error"),
        (500, {"type": "api_error"}, FailureKind.TRANSIENT, "api_error"),
        (401, {"type": "authentication_error"}, FailureKind.MISCONFIGURED, "authentication_error"),
        (402, {"type": "billing_error"}, FailureKind.MISCONFIGURED, "billing_error"),
        (400, {"type": "invalid_request_error"}, FailureKind.REJECTED, "invalid_request_error"),
        (
            429,
            {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
            FailureKind.MISCONFIGURED,
            "enforced_spend_limit_reached",
        ),
        (
            429,
            {"type": "rate_limit_error", "details": {"error_code": "ramp_limit_exceeded"}},
            FailureKind.THROTTLED,
            "rate_limit_error",
        ),
        (
            400,
            {"type": "invalid_request_error", "details": {"error_code": "organization_on_hold"}},
            FailureKind.MISCONFIGURED,
            "organization_on_hold",
        ),
    ],
)
def test_anthropics_error_type_and_finer_code_are_understood(
    status: int, error: dict[str, object], kind: FailureKind, code: str
) -> None:
    failure = anthropic_says(status, {"message": "text", **error})

    assert (failure.kind, failure.status, failure.code) == (kind, status, code)


def test_a_model_that_anthropic_does_not_find_is_ambiguous() -> None:
    """A caller's typing mistake, or an operator's: three in a row without a success will tell."""
    failure = anthropic_says(404, {"type": "not_found_error", "message": "model: claude-0"})

    assert (failure.kind, failure.ambiguous) == (FailureKind.REJECTED, True)


@pytest.mark.parametrize("says", [openai_says, anthropic_says])
def test_an_sdks_answer_carries_the_wait_it_asks_for(says: Callable[..., Failure]) -> None:
    assert says(429, {"message": "m"}, **{"retry-after-ms": "1500", "retry-after": "60"}).retry_after_s == 1.5


@pytest.mark.parametrize("error", [None, "text", [], {}, {"code": {}, "type": 7}])
@pytest.mark.parametrize("says", [openai_says, anthropic_says])
def test_an_answer_with_a_strange_body_counts_by_its_status(
    says: Callable[..., Failure], error: object
) -> None:
    """Compatible servers put anything there."""
    assert says(503, error).kind is FailureKind.TRANSIENT
    assert says(429, error).kind is FailureKind.THROTTLED


def test_a_code_one_level_deeper_is_found() -> None:
    """Some users build the error themselves, with the whole body."""
    response = httpx2.Response(429, request=httpx2.Request("POST", "http://127.0.0.1"))
    body = {"error": {"code": "insufficient_quota", "type": "requests"}}

    failure = judged(openai.RateLimitError("text", response=response, body=body))

    assert (failure.kind, failure.code) == (FailureKind.MISCONFIGURED, "insufficient_quota")


def events(*, event: str | None = None, data: str) -> Handler:
    lines = ([f"event: {event}"] if event else []) + [f"data: {data}", "", ""]
    headers = {"content-type": "text/event-stream"}
    return lambda _: httpx2.Response(200, text="\n".join(lines), headers=headers)


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"code": "rate_limit_exceeded"}, FailureKind.THROTTLED, None),
        ({"type": "server_error"}, FailureKind.TRANSIENT, None),
        ({"type": "invalid_request_error"}, FailureKind.REJECTED, 400),
        ({"code": 502}, FailureKind.TRANSIENT, 502),
        ({"code": 400, "type": "BadRequestError"}, FailureKind.REJECTED, 400),
        ({"code": 429}, FailureKind.THROTTLED, 429),
    ],
)
def test_an_error_inside_an_openai_stream_is_understood_without_a_status(
    error: dict[str, object], kind: FailureKind, status: int | None
) -> None:
    data = json.dumps({"error": {"message": "text", **error}})

    failure = failure_of(lambda: ask_openai(events(data=data), stream=True))

    assert (failure.kind, failure.status) == (kind, status)


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        ("overloaded_error", FailureKind.THROTTLED),
        ("api_error", FailureKind.TRANSIENT),
        ("timeout_error", FailureKind.TRANSIENT),
        ("invalid_request_error", FailureKind.REJECTED),
        ("a_type_of_tomorrow", FailureKind.TRANSIENT),
    ],
)
def test_an_error_inside_an_anthropic_stream_is_no_success_although_its_status_is_200(
    type_: str, kind: FailureKind
) -> None:
    data = json.dumps({"type": "error", "error": {"type": type_, "message": "text"}})

    failure = failure_of(lambda: ask_anthropic(events(event="error", data=data), stream=True))

    assert (failure.kind, failure.code) == (kind, type_)
    assert failure.status != 200
    assert failure.timed_out is (type_ == "timeout_error")


@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])
def test_a_cut_or_truncated_answer_of_an_sdk_is_transient(ask: Callable[..., None]) -> None:
    headers = {"content-type": "application/json"}
    truncated = httpx2.Response(200, content=b'{"id": ', headers=headers)
    wrong = httpx2.Response(200, json={"strange": True})

    class Cut(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b": hello\n\n"
            raise httpx2.RemoteProtocolError("peer closed connection")

    cut = httpx2.Response(200, stream=Cut(), headers={"content-type": "text/event-stream"})
    chunk = events(event="message_start", data='{"trunc')

    assert failure_of(lambda: ask(lambda _: truncated)).kind is FailureKind.TRANSIENT
    assert failure_of(lambda: ask(lambda _: wrong, strict=True)).kind is FailureKind.TRANSIENT
    assert failure_of(lambda: ask(lambda _: cut, stream=True)).kind is FailureKind.TRANSIENT
    assert failure_of(lambda: ask(chunk, stream=True)).kind is FailureKind.TRANSIENT


def test_a_missing_key_is_a_wrong_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)

    assert failure_of(openai.OpenAI).kind is FailureKind.MISCONFIGURED


# --- AWS ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, "ThrottlingException", FailureKind.THROTTLED),
        (400, "ThrottlingException", FailureKind.THROTTLED),
        (503, "ServiceUnavailableException", FailureKind.TRANSIENT),
        (424, "ModelErrorException", FailureKind.TRANSIENT),
        (403, "AccessDeniedException", FailureKind.MISCONFIGURED),
        (404, "ResourceNotFoundException", FailureKind.MISCONFIGURED),
        (400, "ValidationException", FailureKind.REJECTED),
        (400, "SomethingOfTomorrow", FailureKind.REJECTED),
    ],
)
def test_an_aws_code_is_understood_from_a_real_answer(status: int, code: str, kind: FailureKind) -> None:
    reply = answer(
        status,
        b'{"message": "text"}',
        X_Amzn_ErrorType=f"{code}:http://internal.amazon.com/",
        Retry_After="3",
    )
    with loopback(reply) as url:
        failure = failure_of(lambda: call_botocore(url, 10))

    assert (failure.kind, failure.status, failure.code) == (kind, status, code)
    assert failure.retry_after_s == 3.0
    assert failure.ambiguous is (code == "ValidationException")


def test_an_aws_page_without_a_code_counts_by_its_status() -> None:
    """A load balancer in front of the service answers in HTML; botocore then calls the status a code."""
    with loopback(answer(503, b"<html></html>")) as url:
        failure = failure_of(lambda: call_botocore(url, 10))

    assert (failure.kind, failure.status, failure.code) == (FailureKind.TRANSIENT, 503, None)


def event_stream_message(headers: dict[str, str], payload: bytes) -> bytes:
    """One message of `application/vnd.amazon.eventstream`."""
    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    message = prelude + struct.pack("!I", binascii.crc32(prelude)) + head + payload
    return message + struct.pack("!I", binascii.crc32(message))


def read_event_stream(content: bytes | Exception) -> None:
    class Raw:
        def stream(self) -> Iterator[bytes]:
            if isinstance(content, Exception):
                raise content
            yield content

    client = bedrock()
    operation = client.meta.service_model.operation_model("ConverseStream")
    shape, parser = operation.output_shape.members["stream"], botocore.parsers.EventStreamJSONParser()
    client.close()
    list(botocore.eventstream.EventStream(Raw(), shape, parser, "ConverseStream"))


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("throttlingException", FailureKind.THROTTLED, "ThrottlingException"),
        ("modelStreamErrorException", FailureKind.TRANSIENT, "ModelStreamErrorException"),
        ("serviceUnavailableException", FailureKind.TRANSIENT, "ServiceUnavailableException"),
        ("validationException", FailureKind.REJECTED, "ValidationException"),
        ("exceptionOfTomorrow", FailureKind.TRANSIENT, None),
    ],
)
def test_an_exception_inside_an_aws_event_stream_is_understood_by_its_small_name(
    name: str, kind: FailureKind, code: str | None
) -> None:
    """In a stream the same error is spelled `throttlingException`, and no status comes with it."""
    message = event_stream_message(
        {":message-type": "exception", ":exception-type": name}, b'{"message": ""}'
    )

    error = raised_by(lambda: read_event_stream(message))
    failure = judged(error)

    assert type(error) is botocore.exceptions.EventStreamError
    assert (failure.kind, failure.code, failure.status) == (kind, code, None)
    assert failure.ambiguous is (name == "validationException")


def test_an_aws_event_stream_that_breaks_is_transient() -> None:
    """Botocore lets its HTTP library's errors through here."""
    garbled = event_stream_message({":message-type": "event"}, b"{}")[:-4] + b"\0\0\0\0"
    pool: Any = None
    timeout = urllib3.exceptions.ReadTimeoutError(pool, "/", "Read timed out.")

    assert failure_of(lambda: read_event_stream(garbled)).kind is FailureKind.TRANSIENT
    assert failure_of(lambda: read_event_stream(urllib3.exceptions.ProtocolError("broken"))) == Failure(
        kind=FailureKind.TRANSIENT, message="broken"
    )
    assert failure_of(lambda: read_event_stream(timeout)).timed_out


def test_a_parameter_that_botocore_refuses_is_a_bad_request() -> None:
    client = bedrock()
    failure = failure_of(lambda: client.converse(modelId="m", messages="not a list"))
    client.close()

    assert failure.kind is FailureKind.REJECTED


def test_missing_aws_credentials_and_region_are_a_wrong_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_BEARER_TOKEN_BEDROCK",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    client = bedrock(aws_access_key_id=None, aws_secret_access_key=None)

    failure = failure_of(client.list_async_invokes)
    client.close()
    session = botocore.session.get_session()

    assert (failure.kind, failure.message) == (FailureKind.MISCONFIGURED, "Unable to locate credentials")
    assert failure_of(lambda: session.create_client("bedrock-runtime")).kind is FailureKind.MISCONFIGURED


# --- Our own errors and Python's ------------------------------------------------------------------------------------


def test_a_failure_that_is_already_classified_passes_unchanged() -> None:
    failure = Failure(kind=FailureKind.INVALID_OUTPUT, message="blank", code="blank")

    assert judged(ProviderFailure(failure)) is failure
    assert judged(StreamCut("cut", failure=failure, attempts=3)) is failure


@pytest.mark.parametrize("refusal", [Refused, QueueFull, DeadlineUnreachable, UpstreamThrottled, Draining])
def test_a_refusal_is_a_throttle_with_its_wait(refusal: type[Refused]) -> None:
    assert judged(refusal("full", retry_after_s=4.0)) == Failure(
        kind=FailureKind.THROTTLED, message="full", retry_after_s=4.0
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DeadlineExceeded("late"), FailureKind.EXPIRED),
        (Preempted("gave way"), FailureKind.PREEMPTED),
        (UnknownModel("no such model"), FailureKind.REJECTED),
        (SettingsError("no key"), FailureKind.MISCONFIGURED),
        (HeadgateError("internal"), FailureKind.BROKEN),
    ],
)
def test_our_own_errors_keep_their_meaning(error: HeadgateError, kind: FailureKind) -> None:
    failure = judged(error)

    assert (failure.kind, failure.message) == (kind, str(error))
    assert failure.timed_out is (kind is FailureKind.EXPIRED)


@pytest.mark.parametrize(
    ("error", "kind", "timed_out"),
    [
        (ConnectionResetError(104, "reset by peer"), FailureKind.TRANSIENT, False),
        (BrokenPipeError(32, "broken pipe"), FailureKind.TRANSIENT, False),
        (ConnectionRefusedError(111, "refused"), FailureKind.TRANSIENT, False),
        (TimeoutError(), FailureKind.TRANSIENT, True),
        (OSError(110, "Connection timed out"), FailureKind.TRANSIENT, True),
        (socket.gaierror(-2, "Name or service not known"), FailureKind.TRANSIENT, False),
        (ssl.SSLError(1, "wrong version number"), FailureKind.TRANSIENT, False),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), FailureKind.MISCONFIGURED, False),
        (asyncio.CancelledError(), FailureKind.CANCELLED, False),
        (concurrent.futures.CancelledError(), FailureKind.CANCELLED, False),
        (json.JSONDecodeError("Expecting value", "", 0), FailureKind.TRANSIENT, False),
        (FileNotFoundError(2, "No such file"), FailureKind.BROKEN, False),
        (ValueError("a bug"), FailureKind.BROKEN, False),
        (KeyboardInterrupt(), FailureKind.BROKEN, False),
    ],
)
def test_pythons_own_errors_are_understood(error: BaseException, kind: FailureKind, timed_out: bool) -> None:
    failure = judged(error)

    assert (failure.kind, failure.timed_out) == (kind, timed_out)


def test_a_class_derived_from_a_known_one_means_the_same() -> None:
    class OurReadTimeout(httpx.ReadTimeout):
        pass

    class OurThrottle(aiohttp.ClientResponseError):
        pass

    request: Any = None

    assert judged(OurReadTimeout("slow")).timed_out
    assert judged(OurThrottle(request, (), status=429)).kind is FailureKind.THROTTLED


def test_a_class_with_a_borrowed_name_from_elsewhere_means_nothing() -> None:
    class ReadTimeout(Exception):
        pass

    assert judged(ReadTimeout()).kind is FailureKind.BROKEN


# --- The message ----------------------------------------------------------------------------------------------------


def test_the_message_is_the_errors_text_up_to_a_bound() -> None:
    """A provider may send a page; a job's history must not grow by it."""
    assert judged(ValueError("x" * 10_000)).message == "x" * LONGEST_MESSAGE_CHARS
    assert judged(ValueError("short")).message == "short"


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_error_without_text_is_told_by_its_name(text: str) -> None:
    assert judged(TimeoutError(text)).message == "TimeoutError"


# --- Nothing is left out --------------------------------------------------------------------------------------------

TRANSIENT, MISCONFIGURED, REJECTED = FailureKind.TRANSIENT, FailureKind.MISCONFIGURED, FailureKind.REJECTED
THROTTLED, INVALID_OUTPUT = FailureKind.THROTTLED, FailureKind.INVALID_OUTPUT

HTTPX_KINDS: Mapping[FailureKind, str] = {
    TRANSIENT: """
        RequestError TransportError TimeoutException ConnectTimeout ReadTimeout WriteTimeout PoolTimeout NetworkError
        ConnectError ReadError WriteError CloseError ProtocolError RemoteProtocolError ProxyError DecodingError
        HTTPStatusError""",
    MISCONFIGURED: "UnsupportedProtocol LocalProtocolError InvalidURL TooManyRedirects",
}
HTTPX_UNFORESEEN = {
    "HTTPError": "an abstract base, never raised itself",
    "CookieConflict": "a mistake in the calling program",
    "StreamError": "a mistake in the calling program, as are its four kinds",
    "StreamConsumed": "see StreamError",
    "StreamClosed": "see StreamError",
    "ResponseNotRead": "see StreamError",
    "RequestNotRead": "see StreamError",
}

KINDS: Mapping[ModuleType, Mapping[FailureKind, str]] = {
    httpx: HTTPX_KINDS,
    httpx2: {**HTTPX_KINDS, TRANSIENT: HTTPX_KINDS[TRANSIENT] + " SSEError"},
    aiohttp: {
        TRANSIENT: """
            ClientConnectionError ClientConnectionResetError ClientOSError ClientConnectorError ClientConnectorDNSError
            ClientConnectorSSLError ClientSSLError ClientProxyConnectionError ClientPayloadError UploadAbortedError
            ServerConnectionError ServerDisconnectedError ServerTimeoutError ConnectionTimeoutError SocketTimeoutError
            ClientResponseError ClientHttpProxyError ContentTypeError WSServerHandshakeError""",
        MISCONFIGURED: """
            ClientConnectorCertificateError ServerFingerprintMismatch InvalidURL InvalidUrlClientError
            NonHttpUrlClientError RedirectClientError InvalidUrlRedirectClientError NonHttpUrlRedirectClientError
            TooManyRedirects""",
    },
    requests.exceptions: {
        TRANSIENT: """
            HTTPError ConnectionError ProxyError SSLError Timeout ConnectTimeout ReadTimeout ChunkedEncodingError
            ContentDecodingError JSONDecodeError RetryError""",
        MISCONFIGURED: """
            URLRequired TooManyRedirects MissingSchema InvalidSchema InvalidURL InvalidProxyURL InvalidHeader""",
        REJECTED: "InvalidJSONError",
    },
    openai: {
        THROTTLED: "RateLimitError",
        TRANSIENT: """
            APIError APIStatusError APIConnectionError APITimeoutError APIResponseValidationError InternalServerError
            WebSocketConnectionClosedError""",
        MISCONFIGURED: "OpenAIError AuthenticationError OAuthError PermissionDeniedError",
        REJECTED: """
            BadRequestError NotFoundError ConflictError UnprocessableEntityError ContentFilterFinishReasonError""",
        INVALID_OUTPUT: "LengthFinishReasonError",
    },
    anthropic: {
        THROTTLED: "RateLimitError OverloadedError RampLimitExceededError EnforcedSpendLimitReachedError",
        TRANSIENT: """
            APIError APIStatusError APIConnectionError APITimeoutError APIResponseValidationError RetryableError
            InternalServerError HTTPNotImplementedError ServiceUnavailableError GatewayTimeoutError RequestTimeoutError
            DeadlineExceededError CMEKContextUnavailableError CMEKKeyUnreachableError""",
        MISCONFIGURED: """
            AnthropicError CredentialsError IdentityTokenFileError WorkloadIdentityError AuthenticationError
            PermissionDeniedError SandboxEgressRestrictedError""",
        # By class and status alone; with the code in a real body some of these are a wrong set-up.
        REJECTED: """
            BadRequestError NotFoundError ConflictError PreconditionFailedError ContentTooLargeError
            RequestTooLargeError UnprocessableEntityError RequestHeaderFieldsTooLargeError ClientClosedRequestError
            CMEKKeyDisabledError CMEKKeyNetworkBlockedError ClaudeCodeKeyCreatorNotMemberError
            ClaudeCodeVersionTooOldError OrganizationOnHoldError OrganizationTypeNotSupportedError
            RequestBodyEncodingInvalidError RequestBodyEncodingUnsupportedError
            RequestBodyTooLargeAfterDecodingError""",
    },
    botocore.exceptions: {
        THROTTLED: "CapacityNotAvailableError",
        TRANSIENT: """
            ClientError EventStreamError HTTPClientError ConnectionError EndpointConnectionError SSLError
            ConnectionClosedError ReadTimeoutError ConnectTimeoutError ProxyConnectionError ResponseStreamingError
            IncompleteReadError ChecksumError FlexibleChecksumError""",
        REJECTED: """
            ParamValidationError MissingParametersError ValidationError UnknownKeyError RangeError
            UnknownParameterError AliasConflictParameterError""",
        MISCONFIGURED: """
            NoCredentialsError PartialCredentialsError CredentialRetrievalError UnknownCredentialError NoAuthTokenError
            TokenRetrievalError UnknownTokenProviderError RefreshWithMFAUnsupportedError MetadataRetrievalError
            SSOError SSOTokenLoadError UnauthorizedSSOTokenError LoginError LoginRefreshRequired LoginTokenLoadError
            LoginInsufficientPermissions LoginAuthorizationCodeError UnknownSignatureVersionError
            UnsupportedSignatureVersionError BaseEndpointResolverError NoRegionError EndpointVariantError
            UnknownEndpointError UnknownFIPSEndpointError EndpointProviderError EndpointResolutionError
            UnknownEndpointResolutionBuiltInName InvalidEndpointConfigurationError
            InvalidEndpointDiscoveryConfigurationError InvalidIMDSEndpointError InvalidIMDSEndpointModeError
            InvalidRegionError InvalidSTSRegionalEndpointsConfigError ServiceNotInRegionError UnknownRegionError
            ApiVersionNotFoundError ConfigNotFound ConfigParseError DataNotFoundError UnknownServiceError
            InvalidChecksumConfigError InvalidConfigError InfiniteLoopConfigError InvalidDefaultsMode
            InvalidProxiesConfigError InvalidRetryConfigurationError InvalidMaxRetryAttemptsError InvalidRetryModeError
            MissingDependencyException ProfileNotFound UnsupportedServiceProtocolsError""",
    },
}

UNFORESEEN: Mapping[ModuleType, Mapping[str, str]] = {
    httpx: HTTPX_UNFORESEEN,
    httpx2: HTTPX_UNFORESEEN,
    aiohttp: {
        "ClientError": "an abstract base; itself raised only by a digest middleware nobody calls a model with",
        "WSMessageTypeError": "WebSockets: a mistake in the calling program",
        "WebSocketError": "WebSockets: used inside the library",
        "EofStream": "used inside the library",
        "BadContentDispositionHeader": "a warning",
        "BadContentDispositionParam": "a warning",
    },
    requests.exceptions: {
        "RequestException": "an abstract base, never raised itself",
        "StreamConsumedError": "a mistake in the calling program",
        "UnrewindableBodyError": "a mistake in the calling program",
        "RequestsWarning": "a warning",
        "FileModeWarning": "a warning",
        "RequestsDependencyWarning": "a warning",
    },
    openai: {
        "InvalidWebhookSignatureError": "about a request to us, not from us",
        "WebSocketQueueFullError": "realtime sockets: the calling program sends faster than it should",
    },
    anthropic: {"APIWebhookValidationError": "about a request to us, not from us"},
    botocore.exceptions: {
        "BotoCoreError": "an abstract base, never raised itself",
        "AwsChunkedWrapperError": "uploads: a mistake in the calling program",
        "UnseekableStreamError": "uploads: a mistake in the calling program",
        "MD5UnavailableError": "uploads with checksums, which no model call makes",
        "InvalidExpressionError": "paginators: a mistake in the calling program",
        "OperationNotPageableError": "paginators: a mistake in the calling program",
        "PaginationError": "paginators: a mistake in the calling program",
        "UnknownClientMethodError": "a mistake in the calling program",
        "UnknownServiceStyle": "used nowhere in the library any more",
        "UndefinedModelAttributeError": "a fault in the library's own data",
        "MissingServiceIdError": "a fault in the library's own data",
        "WaiterError": "waiters poll for resources, not for answers",
        "WaiterConfigError": "waiters poll for resources, not for answers",
        "StubResponseError": "the library's test double",
        "StubAssertionError": "the library's test double",
        "UnStubbedResponseError": "the library's test double",
        "InvalidDNSNameError": "S3",
        "InvalidHostLabelError": "S3 and its kin: a host name made from a parameter",
        "InvalidS3AddressingStyleError": "S3",
        "InvalidS3UsEast1RegionalEndpointConfigError": "S3",
        "UnsupportedOutpostResourceError": "S3",
        "UnsupportedS3AccesspointConfigurationError": "S3",
        "UnsupportedS3ArnError": "S3",
        "UnsupportedS3ConfigurationError": "S3",
        "UnsupportedS3ControlArnError": "S3",
        "UnsupportedS3ControlConfigurationError": "S3",
        "ImminentRemovalWarning": "a warning",
        "UnsupportedTLSVersionWarning": "a warning",
    },
}


def public_exceptions(library: ModuleType) -> dict[str, type[BaseException]]:
    """Every exception class a user of the library can name, without those it borrows from others.

    `type()` is asked because `isinstance` would make openai's lazy modules load.
    """
    root = library.__name__.partition(".")[0]
    return {
        name: found
        for name, found in list(vars(library).items())
        if issubclass(type(found), type) and issubclass(found, BaseException)
        if not name.startswith("_") and found.__module__.partition(".")[0] == root
    }


def sample(library: ModuleType, exception: type[BaseException]) -> BaseException:
    """An instance as bare as can be: constructors differ, and only the class is in question here."""
    error: Any = exception.__new__(exception, "text")
    if issubclass(exception, aiohttp.ClientResponseError):
        error.status, error.headers = 503, None
    if issubclass(exception, (httpx.HTTPStatusError, httpx2.HTTPStatusError, requests.HTTPError)):
        error.response = httpx.Response(503)
    if issubclass(exception, botocore.exceptions.ClientError):
        error.response = {"Error": {"Code": "InternalServerException"}}
    assert isinstance(error, BaseException)
    return error


@pytest.mark.parametrize("library", KINDS, ids=lambda library: library.__name__)
def test_every_exception_of_a_library_has_a_kind_or_a_reason_to_have_none(library: ModuleType) -> None:
    """An upgrade that adds an exception fails here, and somebody decides what it means."""
    kinds = {name: kind for kind, names in KINDS[library].items() for name in names.split()}
    kinds |= dict.fromkeys(UNFORESEEN[library], FailureKind.BROKEN)

    found = {name: judged(sample(library, cls)).kind for name, cls in public_exceptions(library).items()}

    assert found == kinds


def test_the_tables_name_no_class_that_does_not_exist() -> None:
    """A misspelled name in a table would never match, and nobody would notice."""
    modules = [
        *KINDS,
        urllib3.exceptions,
        botocore.parsers,
        botocore.eventstream,
        asyncio,
        concurrent.futures,
    ]
    known = {
        (cls.__module__.partition(".")[0], cls.__name__)
        for module in [*modules, socket, ssl, json, builtins]
        for cls in list(vars(module).values())
        if issubclass(type(cls), type)
    }
    transports = {("httpcore", "ConnectError"), ("httpcore2", "ConnectError")}

    assert MEANINGS.keys() <= known
    assert known | transports >= WRAPPERS


# --- Hostile objects ------------------------------------------------------------------------------------------------


class Trap:
    """Every attribute, and every look at it, raises."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("str")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    __hash__ = None  # type: ignore[assignment]


class Slippery(str):
    """A text that raises when handled."""

    __slots__ = ()

    def strip(self, *_: object) -> NoReturn:
        raise RuntimeError("strip")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")


def springing() -> property:
    def spring(_: object) -> NoReturn:
        raise RuntimeError("sprung")

    return property(spring)


class Response:
    def __init__(self, status_code: object, headers: object) -> None:
        self.status_code = status_code
        self.headers = headers


class Nameless(type):
    __name__ = springing()
    __module__ = springing()


junk: st.SearchStrategy[object] = st.deferred(
    lambda: (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.binary(max_size=5)
        | st.builds(Trap)
        | st.builds(Slippery)
        | st.lists(junk, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "code",
                    "type",
                    "Error",
                    "Code",
                    "ResponseMetadata",
                    "HTTPStatusCode",
                    "HTTPHeaders",
                ]
            ),
            junk,
            max_size=3,
        )
        | st.builds(Response, junk, junk)
    )
)
ATTRIBUTES = [
    *("response", "status", "status_code", "headers", "body", "code", "type", "error_code"),
    *("failure", "retry_after_s", "args"),
    *("__str__", "__cause__", "__context__", "__class__", "__bool__"),
]
READ = [
    ("httpx", "HTTPStatusError"),
    ("requests", "HTTPError"),
    ("aiohttp", "ClientResponseError"),
    ("openai", "APIError"),
    ("botocore", "ClientError"),
]
names = st.sampled_from(sorted({*MEANINGS, *WRAPPERS, *READ})) | st.tuples(st.text(), st.just("Surprise"))
members = st.dictionaries(st.sampled_from(ATTRIBUTES), junk | st.builds(springing), max_size=6)
bases = st.sampled_from(
    [Exception, BaseException, OSError, ProviderFailure, Refused, StreamCut, TimeoutError]
)


@settings(max_examples=500)
@given(names, bases, members)
def test_no_object_makes_the_classification_raise(
    name: tuple[str, str], base: type[BaseException], members: dict[str, object]
) -> None:
    """It runs inside an `except` block: raising there would lose the error it was to explain."""
    library, class_name = name
    hostile: Any = type(class_name, (base,), {**members, "__module__": library})

    failure = judged(hostile.__new__(hostile))

    assert type(failure) is Failure
    assert isinstance(failure.message, str)
    assert len(failure.message) <= LONGEST_MESSAGE_CHARS


@pytest.mark.parametrize("status", ["429", True, 4.29, [429]])
def test_a_status_that_is_no_number_is_broken(status: object) -> None:
    request = httpx.Request("GET", "http://127.0.0.1")
    response: Any = Response(status, {})

    error = httpx.HTTPStatusError("text", request=request, response=response)

    assert judged(error) == Failure(kind=FailureKind.BROKEN, message="text")


@pytest.mark.parametrize("headers", [None, [("retry-after", "7")], "retry-after: 7"])
def test_headers_that_are_none_cost_the_wait_but_not_the_kind(headers: object) -> None:
    response: Any = Response(429, headers)

    failure = judged(requests.HTTPError("text", response=response))

    assert (failure.kind, failure.retry_after_s) == (FailureKind.THROTTLED, None)


def test_an_error_without_its_response_is_broken() -> None:
    assert judged(requests.HTTPError("raised by hand")).kind is FailureKind.BROKEN


def test_a_circle_of_causes_ends() -> None:
    first, second = httpx.ConnectError("one"), httpx.ConnectError("two")
    first.__cause__, second.__cause__ = second, first

    assert judged(first).kind is FailureKind.TRANSIENT


def test_a_text_with_habits_of_its_own_is_kept_as_plain_text() -> None:
    class Told(ConnectionError):
        def __str__(self) -> str:
            return Slippery("reset")

    failure = judged(Told())

    assert (failure.kind, type(failure.message)) == (FailureKind.TRANSIENT, str)
    assert failure.message == "reset"


def test_a_class_that_hides_its_name_is_broken() -> None:
    hidden = Nameless("Hidden", (Exception,), {})

    assert judged(hidden()) == Failure(kind=FailureKind.BROKEN, message="Hidden")


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EHOSTUNREACH])
def test_an_unreachable_network_is_transient(number: int) -> None:
    assert classify(OSError(number, "unreachable"), now=NOW).kind is FailureKind.TRANSIENT


def test_any_other_os_error_is_broken() -> None:
    assert classify(OSError(errno.ENOSPC, "disk full"), now=NOW).kind is FailureKind.BROKEN
