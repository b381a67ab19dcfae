"""One exchange of JSON with a provider over HTTP: the body out, an answer worth reading in, all else a failure.

Knows statuses, headers, content types and our classes. What a provider's error body looks like is handed in.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from headgate.core.errors import ProviderFailure
from headgate.core.failures import KIND_BY_CODE, Failure, FailureKind, from_answer
from headgate.core.timeouts import Timeouts
from headgate.transport import Endpoint, Limits, Response, Transport, TransportError

ERROR_BODY_BYTES: Final = 1024 * 1024
"""Enough for an error that quotes the whole prompt: cut, it would lose the code at its end."""
ERROR_BODY_S: Final = 5.0
"""An error's status is what counts; its text may not keep a slot for longer."""
REST_S: Final = 1.0
"""A stream that said its last word gets so long to end; then its connection is dropped."""
LONGEST_MESSAGE_CHARS: Final = 500
_SHORTEST_SECRET_CHARS: Final = 8
_STATUS_OF_A_WRONG_URL: Final = frozenset({404, 405})

T = TypeVar("T")


class Told(NamedTuple):
    """What an error body says: text for people, and codes, the most exact first."""

    message: str
    codes: tuple[str, ...] = ()
    status: int | None = None
    """Stands in for the status that an error inside an answer does not have."""


class Exchange:
    """Sends to one endpoint and makes failures of what is no answer. Secrets are struck from all messages."""

    def __init__(
        self,
        transport: Transport,
        endpoint: Endpoint,
        *,
        read_error: Callable[[Any, int | None], Told | None],
        hint: Callable[[Failure], str],
        secrets: Iterable[str] = (),
    ) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._read_error = read_error
        self._hint = hint
        self._secrets = _struck(secrets)

    @asynccontextmanager
    async def post(
        self, body: Mapping[str, Any], limits: Limits, *content_types: str
    ) -> AsyncIterator[Response]:
        """A 2xx answer of one of these types. Leaving early drops the connection, and with it the work upstream."""
        with await self._transport.send(self._endpoint, _encode(body), limits=limits) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            sent = _content_type(response)
            if sent and sent not in content_types:
                raise self.bad_envelope(f"an answer of type {sent[:80]}, not {content_types[0]}")
            yield response

    async def get_models(self, limits: Limits, shape: type[T]) -> T:
        """The models that an endpoint tells of, all or one: it is asked for and sent nothing."""
        with await self._transport.send(self._endpoint, limits=limits) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            return self.decode(await response.read(), shape, "an answer, but its body is no list of models")

    def decode(self, data: bytes, shape: type[T], came: str = "what is no answer of its format") -> T:
        """JSON of this shape; anything else is a broken envelope."""
        try:
            return msgspec.json.decode(data, type=shape)
        except (msgspec.DecodeError, RecursionError):
            raise self.error_inside(data) or self.bad_envelope(came) from None

    def error_inside(self, data: bytes) -> ProviderFailure | None:
        """The failure that a body or an event tells of although its status was 200."""
        told = self._told(data)
        if told is None:
            return None
        return self._failure(told, f"{self._host} reported an error inside its answer", status=told.status)

    def bad_envelope(self, came: str) -> ProviderFailure:
        return self._transient(f"{self._host} sent {came}", "bad_envelope")

    def stream_cut(self) -> ProviderFailure:
        return self._transient(f"the stream from {self._host} ended before its end marker", "stream_cut")

    @property
    def _host(self) -> str:
        return str(self._endpoint.origin)

    async def _refusal(self, response: Response) -> ProviderFailure:
        body = await error_body(response)
        told = self._told(body, response.status)
        return self._failure(
            told or Told(_plain_text(response, body)),
            f"{response.status} from {self._host}",
            status=response.status,
            headers=response.headers,
            wrong_url=response.status < 400 or (told is None and response.status in _STATUS_OF_A_WRONG_URL),
        )

    def _told(self, data: bytes, status: int | None = None) -> Told | None:
        try:
            return self._read_error(msgspec.json.decode(data), status)
        except (msgspec.DecodeError, RecursionError):
            return None

    def _failure(
        self,
        told: Told,
        where: str,
        *,
        status: int | None,
        headers: Mapping[str, str] | None = None,
        wrong_url: bool = False,
    ) -> ProviderFailure:
        failure = from_answer(status, headers, code=_telling(told.codes), now=datetime.now(UTC))
        if wrong_url:
            # A redirect, or "not found" in words that are not the provider's: somebody else lives there.
            failure = msgspec.structs.replace(failure, kind=FailureKind.MISCONFIGURED)
        text = self._strike(" ".join(told.message.split()))[:LONGEST_MESSAGE_CHARS]
        hint = self._hint(failure)
        advice = f"; {hint}" if hint else ""
        message = where + (f": {text}" if text else "") + advice
        return ProviderFailure(
            msgspec.structs.replace(failure, message=message), own=where + advice, said=text
        )

    def _transient(self, message: str, code: str) -> ProviderFailure:
        return ProviderFailure(Failure(kind=FailureKind.TRANSIENT, message=self._strike(message), code=code))

    def _strike(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def whole_limits(timeouts: Timeouts) -> Limits:
    """For an answer that comes at once, whenever that is: the deadline of the call cancels it."""
    return Limits(connect_s=timeouts.connect_s, idle_s=None)


def stream_limits(timeouts: Timeouts) -> Limits:
    return Limits(
        connect_s=timeouts.connect_s, first_byte_s=timeouts.stream_first_token_s, idle_s=timeouts.idle_s
    )


async def rest_of(lines: AsyncIterator[bytes]) -> None:
    """Read on after the end marker, so that the connection can be used again. Nothing depends on it."""
    with suppress(TransportError, TimeoutError):
        async with asyncio.timeout(REST_S):
            async for _ in lines:
                pass


async def error_body(response: Response) -> bytes:
    """As much of an error's body as is needed. One that is cut or slow is told as far as it came."""
    body = bytearray()
    with suppress(TransportError, TimeoutError):
        async with asyncio.timeout(ERROR_BODY_S):
            async for piece in response.chunks():
                body += piece
                if len(body) >= ERROR_BODY_BYTES:
                    break
    return bytes(body[:ERROR_BODY_BYTES])


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProviderFailure(
            Failure(
                kind=FailureKind.REJECTED,
                message=f"the request holds what JSON cannot carry: {error}",
                code="not_json",
            )
        ) from None


def _struck(secrets: Iterable[str]) -> list[str]:
    """Values and their words, longest first: of `Bearer <key>` a provider quotes the key alone."""
    words = {word for secret in secrets for word in (secret, *secret.split())}
    # Short ones ("1", "Bearer") are no secrets, and striking them would garble the text.
    return sorted((word for word in words if len(word) >= _SHORTEST_SECRET_CHARS), key=len, reverse=True)


def _plain_text(response: Response, body: bytes) -> str:
    kind = _content_type(response)
    if kind in {"text/plain", "application/json"}:
        return body[:LONGEST_MESSAGE_CHARS].decode("utf-8", "replace")
    return f"a page of type {kind[:80]}" if kind else ""


def _content_type(response: Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _telling(codes: tuple[str, ...]) -> str | None:
    """The first code that decides something, else the most exact one."""
    return next((code for code in codes if code in KIND_BY_CODE), codes[0] if codes else None)
