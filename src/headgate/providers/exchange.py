"""One exchange of JSON with a provider over HTTP: the body out, an answer worth reading in, all else a failure.

Knows statuses, headers, content types and our classes. What a provider's error body looks like is handed in.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from headgate.core.errors import ProviderFailure
from headgate.core.failures import KIND_BY_CODE, Failure, FailureKind, from_answer
from headgate.core.timeouts import Timeouts
from headgate.formats.foreign_bodies import UNREADABLE
from headgate.transport import Endpoint, Limits, Response, Transport, TransportError

ERROR_BODY_BYTES: Final = 1024 * 1024
"""Enough for an error that quotes the whole prompt: cut, it would lose the code at its end."""
ERROR_BODY_S: Final = 5.0
"""An error's status is what counts; its text may not keep a slot for longer."""
REST_S: Final = 1.0
"""A stream that said its last word gets so long to end; then its connection is dropped."""
LARGE_ANSWER_BYTES: Final = 1_000_000
"""To decode so many takes 5 ms, and vectors for 2,048 texts have up to 64 MiB."""
LONGEST_MESSAGE_CHARS: Final = 500
HIDDEN: Final = b"***"
_SHORTEST_SECRET_CHARS: Final = 8
_SHORTEST_KEY_CHARS: Final = 12
_KEYED: Final = re.compile(r"auth|key|token|secret|cookie|password|credential|signature", re.IGNORECASE)
_STATUS_OF_A_WRONG_URL: Final = frozenset({404, 405})

T = TypeVar("T")
_DECODING: Final = ThreadPoolExecutor(2, thread_name_prefix="headgate-decoding")


class Secrets:
    """What lets us in at an upstream: struck from all that it answers, because some quote what they were sent.

    Only values that are there to let us in, and no short ones: `ollama` is a key to some servers, and a word to all others.
    """

    __slots__ = ("known",)

    def __init__(self, *values: str | None, named: Iterable[Mapping[str, str]] = ()) -> None:
        """Keys, and those of the named headers and parameters that are one by their names."""
        by_name = [value for pairs in named for name, value in pairs.items() if _KEYED.search(name)]
        words = {word for value in (*values, *by_name) if value for word in value.split()}
        known = [word.encode() for word in words if len(word) >= _SHORTEST_KEY_CHARS]
        self.known = tuple(sorted(known, key=len, reverse=True))

    def strike(self, data: bytes) -> bytes:
        for key in self.known:
            if key in data:
                data = data.replace(key, HIDDEN)
        return data

    def begun(self, data: bytes) -> int:
        """How many bytes at the end of the data may be the beginning of a key."""
        longest = 0
        for key in self.known:
            at = data.find(key[:1], max(0, len(data) - len(key) + 1))
            while at >= 0 and len(data) - at > longest:
                if key.startswith(data[at:]):
                    longest = len(data) - at
                at = data.find(key[:1], at + 1)
        return longest


class KeylessPieces:
    """A stream's pieces without our keys, however they fall. Nothing waits but what may be the beginning of a key."""

    __slots__ = ("_secrets", "held")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self.held = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be passed on; nothing at times."""
        if self.held:
            piece = self.held + piece
        piece = self._secrets.strike(piece)
        # No key holds the end of a line, and most pieces are whole events.
        begun = 0 if piece.endswith(b"\n") else self._secrets.begun(piece)
        self.held = piece[len(piece) - begun :] if begun else b""
        return piece[: len(piece) - begun] if begun else piece

    def end(self) -> bytes:
        """What was held, and was none."""
        held, self.held = self.held, b""
        return held


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
        keys: Secrets | None = None,
    ) -> None:
        self.keys = keys or Secrets()
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
        return self._transient(f"sent {came}", "bad_envelope")

    def stream_cut(self) -> ProviderFailure:
        return self._transient("ended its stream before the end marker", "stream_cut")

    @property
    def _host(self) -> str:
        return str(self._endpoint.origin)

    async def _refusal(self, response: Response) -> ProviderFailure:
        # Struck before it is cut: half a key at the cut would be no key to look for.
        body = self.keys.strike(await error_body(response))
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
        text = plain_words(self._strike(" ".join(told.message.split())))
        hint = self._hint(failure)
        advice = f"; {hint}" if hint else ""
        message = where + (f": {text}" if text else "") + advice
        return ProviderFailure(
            msgspec.structs.replace(failure, message=message), own=where + advice, said=text
        )

    def _transient(self, what: str, code: str) -> ProviderFailure:
        what = self._strike(what)
        failure = Failure(kind=FailureKind.TRANSIENT, message=f"{self._host} {what}", code=code)
        return ProviderFailure(failure, own=failure.message, said=f"the provider {what}")

    def _strike(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def plain_words(text: str) -> str:
    """The words of a provider on one line, without what acts on a terminal, and not too many of them."""
    cut = " ".join(text[: 4 * LONGEST_MESSAGE_CHARS].split())[:LONGEST_MESSAGE_CHARS]
    return cut if cut.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in cut)


async def read_vectors(size_bytes: int, read: Callable[[], T]) -> T:
    """Read an answer of this size: in a thread if it is large, so that no other call waits for it.

    `read` decodes vector by vector: one call of the decoder keeps all other threads waiting until it returns.
    """
    if size_bytes < LARGE_ANSWER_BYTES:
        return read()
    return await asyncio.get_running_loop().run_in_executor(_DECODING, read)


def read_counts(counts: msgspec.Raw, decode: Callable[[msgspec.Raw], T]) -> T | None:
    """Token counts in an answer; None when they cannot be believed. The answer is none the worse for it."""
    try:
        return decode(counts)
    except UNREADABLE:
        return None


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
