"""What the gateway must know of JSON in OpenAI's shape that came from outside: its usage and its errors.

Servers that call themselves compatible write both in many ways. Whatever cannot be read is nothing, never an error.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from headgate.core.answer import Tokens, Usage
from headgate.core.failures import Failure, from_answer, status_inside, telling_code

LONGEST_MESSAGE_CHARS: Final = 500
EMPTY: Final = frozenset({b"null", b'""', b"[]", b"{}", b"false"})
"""JSON that says nothing where text, a list or an object is due."""
UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding foreign bytes may raise."""
# Only a date in a Retry-After needs to know what time it is, and a body has none.
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Tokens(msgspec.Struct):
    prompt_tokens: Tokens
    completion_tokens: Tokens = 0
    estimated: bool = False
    """Another gateway says so, or we did."""


_read_tokens = msgspec.json.Decoder(_Tokens).decode
_read_json = msgspec.json.Decoder().decode


def read_usage(raw: msgspec.Raw | bytes) -> Usage | None:
    """The tokens of a `usage` object. Its details (cached, reasoning) are for the caller's eyes."""
    try:
        tokens = _read_tokens(raw)
    except UNREADABLE:
        return None
    return Usage(tokens.prompt_tokens, tokens.completion_tokens, tokens.estimated)


class ErrorBody(NamedTuple):
    """A server's own words, and every code it gave, the most exact first."""

    message: str
    codes: tuple[str, ...] = ()

    @property
    def code(self) -> str | None:
        return telling_code(self.codes)

    def failure_inside(self) -> Failure:
        """The failure of an error that came under a 200: in a stream, or in place of an answer."""
        status = status_inside(self.codes)
        return from_answer(status, code=self.code, message=self.message, now=_NO_TIME)


def read_error(body: bytes) -> ErrorBody:
    """The error in a body that is one by its status. Text that is not JSON speaks for itself, but HTML says nothing."""
    try:
        value = _read_json(body)
    except UNREADABLE:
        text = body[: 4 * LONGEST_MESSAGE_CHARS].decode(errors="replace").strip()
        return ErrorBody("" if text.startswith("<") else text[:LONGEST_MESSAGE_CHARS])
    return error_of(value) or (_from_object(value) if isinstance(value, dict) else ErrorBody(""))


def error_inside(body: bytes) -> ErrorBody | None:
    """The error in a body whose status promised an answer; None when it is none."""
    try:
        return error_of(_read_json(body))
    except UNREADABLE:
        return None


def error_of(value: Any) -> ErrorBody | None:
    """The error that a JSON value is, by its shape."""
    match value:
        case [first]:  # Gemini's compatible routes wrap theirs in a list.
            return error_of(first)
        case {"error": dict() as inner} if inner:
            return _from_object(inner)
        case {"error": str() as text} if text:
            return ErrorBody(text[:LONGEST_MESSAGE_CHARS], tuple(_codes(value)))
        case {"object": "error"}:
            return _from_object(value)
    return None


def _from_object(error: Mapping[str, Any]) -> ErrorBody:
    said = next((error[name] for name in ("message", "detail", "error") if error.get(name)), "")
    text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    return ErrorBody(text[:LONGEST_MESSAGE_CHARS], tuple(_codes(error)))


def _codes(error: Mapping[str, Any]) -> Iterator[str]:
    for name in ("code", "type", "status"):
        code = error.get(name)
        if isinstance(code, str | int) and not isinstance(code, bool) and code:
            yield str(code)
