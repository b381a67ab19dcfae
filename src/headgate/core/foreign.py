"""Any exception, turned into a `Failure` by its structure: class, status, headers and structured code.

Knows the shape of the common HTTP clients' and SDKs' errors and imports none of them; `foreign_tables` says what
their classes mean. Message text is kept for people and decides nothing.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from headgate.core.errors import (
    CallFailed,
    DeadlineExceeded,
    InvalidRequest,
    Preempted,
    ProviderFailure,
    Refused,
    SettingsError,
)
from headgate.core.failures import Failure, FailureKind, from_answer, status_inside, telling_code
from headgate.core.foreign_tables import (
    MEANINGS,
    MISCONFIGURED,
    REJECTED,
    THROTTLED,
    TIMED_OUT,
    WRAPPERS,
    ClassName,
)

LONGEST_MESSAGE_CHARS: Final = 500
# The deepest real case has four links: SDK, HTTP client, its transport, TLS.
_MOST_LINKS: Final = 8
# A plain OSError says by its number that the network, not the program, is at fault.
_UNREACHABLE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})
_UNPARSED: Final[ClassName] = ("aiohttp", "HttpProcessingError")

_OWN: Final[Mapping[type[Exception], Failure]] = {
    DeadlineExceeded: Failure(kind=FailureKind.EXPIRED, timed_out=True),
    Preempted: Failure(kind=FailureKind.PREEMPTED),
    InvalidRequest: REJECTED,
    SettingsError: MISCONFIGURED,
}


class _Answer(NamedTuple):
    """What an error knows of the provider's answer."""

    status: int | None
    headers: Mapping[str, str] | None
    code: str | None = None


def classify(error: BaseException, *, now: datetime) -> Failure:
    """What this exception means for an attempt. Never raises: what cannot be understood is broken."""
    message = _message(error)
    try:
        return _own(error, message) or _foreign(error, message, now)
    except Exception:  # noqa: BLE001 - a foreign object's attributes may raise anything; that is what broken means.
        return Failure(kind=FailureKind.BROKEN, message=message)


def _message(error: BaseException) -> str:
    try:
        # Twice, because `__str__` may return a subclass of str with habits of its own.
        text = str.__str__(str(error))
    except Exception:  # noqa: BLE001 - as above; aiohttp's errors raise here when built by hand.
        text = ""
    # The name is read past any metaclass, which could raise in its turn.
    return text[:LONGEST_MESSAGE_CHARS] if text.strip() else type.__dict__["__name__"].__get__(type(error))


def _own(error: BaseException, message: str) -> Failure | None:
    """The meaning of our own errors, which a provider may raise or pass on."""
    match error:
        case ProviderFailure(failure=Failure() as failure) | CallFailed(failure=Failure() as failure):
            return failure
        case Refused():
            return msgspec.structs.replace(THROTTLED, message=message, retry_after_s=error.retry_after_s)
    meaning = next((meaning for own, meaning in _OWN.items() if isinstance(error, own)), None)
    return meaning and msgspec.structs.replace(meaning, message=message)


def _foreign(error: BaseException, message: str, now: datetime) -> Failure:
    for name in _class_names(error):
        if (read := _READERS.get(name)) is not None:
            status, headers, code = read(error)
            return from_answer(status, headers, code=code, message=message, now=now)
        if (meaning := MEANINGS.get(name)) is not None:
            return msgspec.structs.replace(_hidden(error) or meaning, message=message)
    unreachable = isinstance(error, OSError) and error.errno in _UNREACHABLE
    return Failure(kind=FailureKind.TRANSIENT if unreachable else FailureKind.BROKEN, message=message)


def _class_names(error: BaseException | None) -> Iterator[ClassName]:
    """The error's class and its bases, nearest first."""
    return ((base.__module__.partition(".")[0], base.__name__) for base in type(error).__mro__)


def _hidden(error: BaseException) -> Failure | None:
    """The set-up mistake or timeout inside a connection error that only wraps it.

    The search ends at the first link that is no wrapper: what comes after it may be an older, unrelated error.
    """
    link = error
    for _ in range(_MOST_LINKS):
        if WRAPPERS.isdisjoint(_class_names(link)):
            return None
        # Not every wrapper names its cause: httpcore, requests and botocore leave it to the context.
        inner = link.__cause__ if link.__cause__ is not None else link.__context__
        if inner is None:
            return None
        link = inner
        meaning = next((MEANINGS[name] for name in _class_names(link) if name in MEANINGS), None)
        if meaning is MISCONFIGURED or meaning is TIMED_OUT:
            return meaning
    return None


def _http_answer(error: Any) -> _Answer:
    """For httpx, httpx2 and requests."""
    return _Answer(_status(error.response.status_code), _headers(error.response.headers))


def _aiohttp_answer(error: Any) -> _Answer:
    # An answer that aiohttp cannot parse has no status; aiohttp calls it 400. Only the cause tells the two apart.
    unparsed = _UNPARSED in _class_names(error.__cause__)
    return _Answer(None if unparsed else _status(error.status), _headers(error.headers))


def _sdk_answer(error: Any) -> _Answer:
    """For openai and anthropic. An error inside a stream has no status, or that of the stream: 200."""
    codes = [code for code in _sdk_codes(error) if isinstance(code, str) and code]
    status = _status(getattr(error, "status_code", None)) or status_inside(codes)
    headers = _headers(getattr(getattr(error, "response", None), "headers", None))
    return _Answer(status, headers, telling_code(codes))


def _sdk_codes(error: Any) -> Iterator[object]:
    """Every place for a code, the most exact first."""
    yield from (getattr(error, name, None) for name in ("error_code", "code", "type"))
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, Mapping) else None
    if isinstance(inner, Mapping):
        yield from (inner.get("code"), inner.get("type"))


def _aws_answer(error: Any) -> _Answer:
    """For botocore. Event streams spell their codes with a small first letter, and have no metadata."""
    details = error.response.get("Error") or {}
    metadata = error.response.get("ResponseMetadata") or {}
    code = str(details.get("Code") or "")
    status = _status(metadata.get("HTTPStatusCode"))
    return _Answer(status, _headers(metadata.get("HTTPHeaders")), telling_code([code[:1].upper() + code[1:]]))


def _status(value: object) -> int | None:
    """An error's status. A success is none: the error came later, in the body."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a status is a whole number")
    return value if value >= 300 else None


def _headers(value: object) -> Mapping[str, str] | None:
    return value if isinstance(value, Mapping) else None


_READERS: Final[Mapping[ClassName, Callable[[Any], _Answer]]] = {
    ("httpx", "HTTPStatusError"): _http_answer,
    ("httpx2", "HTTPStatusError"): _http_answer,
    ("requests", "HTTPError"): _http_answer,
    ("aiohttp", "ClientResponseError"): _aiohttp_answer,
    ("openai", "APIError"): _sdk_answer,
    ("anthropic", "APIError"): _sdk_answer,
    ("botocore", "ClientError"): _aws_answer,
}
