"""Bedrock's errors as `ProviderFailure`s: error answers, and error events of a stream.

`core.failures` knows what the codes mean; this module knows where Bedrock puts them and what an operator can do.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind, from_answer
from headgate.providers.exchange import plain_words

_SHORTEST_SECRET_CHARS: Final = 8
_STATUS_OF_A_WRONG_URL: Final = frozenset({404, 405})
EXPIRED_CODES: Final = frozenset({"ExpiredTokenException", "ExpiredToken"})
# After these the keys in hand are not worth keeping: whoever renewed them wrote them where we found these.
STALE_KEY_CODES: Final = EXPIRED_CODES | {
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
}
_EXPIRED: Final = "the credentials have expired: renew them (`aws sso login`, or new keys); the next call looks for them anew"
_WRONG_URL: Final = "check base_url: it must lead to bedrock-runtime"
_WRONG_KEYS: Final = "check the access key, its secret and this machine's clock"
_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(EXPIRED_CODES, _EXPIRED),
    **dict.fromkeys(STALE_KEY_CODES - EXPIRED_CODES, _WRONG_KEYS),
    "MissingAuthenticationTokenException": "check base_url: the signature did not get through",
    "AccessDeniedException": "check that these credentials may call this model, and that the region offers it to the account",
    "ResourceNotFoundException": "check the model id and the region",
    "ServiceQuotaExceededException": "ask AWS for a higher quota",
    "UnknownOperationException": _WRONG_URL,
    "ValidationException": "if all requests end so, check the model id: many models need an inference profile (us.…)",
}


class _ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error, in the spellings of Bedrock, its front doors and the services before them."""

    type: str | None = msgspec.field(default=None, name="__type")
    code: str | None = None
    message: str | None = None
    capital_message: str | None = msgspec.field(default=None, name="Message")


def misconfigured(message: str, code: str) -> ProviderFailure:
    failure = Failure(kind=FailureKind.MISCONFIGURED, message=message, code=code)
    return ProviderFailure(failure, own=message)


def error_answer(
    status: int, headers: Mapping[str, str], body: bytes, *, host: str, secrets: Iterable[str]
) -> ProviderFailure:
    """An answer with another status than 200. Its text may quote the signed headers: `secrets` are struck out."""
    said = _read_error(body)
    code = _bare(headers.get("x-amzn-errortype") or said.type or said.code)
    text = _struck(said.message or said.capital_message or "", secrets)
    failure = from_answer(status, headers, code=code, now=datetime.now(UTC))
    hint = _HINTS.get(code or "", "")
    if status < 400 or (code is None and status in _STATUS_OF_A_WRONG_URL):
        # A redirect, or "not found" in words that are not Bedrock's: somebody else lives there.
        failure = msgspec.structs.replace(failure, kind=FailureKind.MISCONFIGURED)
        hint = _WRONG_URL
    return _failure(failure, f"{status} from {host}", text, hint)


def check_event(headers: Mapping[str, Any], payload: bytes, host: str) -> None:
    """Raise the error that a message of an event stream is, if it is one."""
    match headers.get(":message-type"):
        case "exception":
            raise _error_event(str(headers.get(":exception-type")), "", payload, host)
        case "error":
            text = str(headers.get(":error-message") or "")
            raise _error_event(str(headers.get(":error-code")), text, payload, host)


def _error_event(code: str, text: str, payload: bytes, host: str) -> ProviderFailure:
    """Its code begins with a small letter in a stream, and no status comes with it."""
    code = _bare(code[:1].upper() + code[1:]) or "ModelStreamErrorException"
    where = f"{code} inside the stream from {host}"
    failure = from_answer(None, code=code, now=datetime.now(UTC))
    return _failure(failure, where, text or _read_error(payload).message or "", _HINTS.get(code, ""))


def _read_error(body: bytes) -> _ErrorBody:
    """What a front door or a proxy says in HTML is left out: nobody can read it in a line."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _ErrorBody()


def _bare(code: str | None) -> str | None:
    """The code without its name space before '#' and the address after ':'."""
    return (code or "").partition(":")[0].rpartition("#")[2].strip() or None


def _struck(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        # Short values ("1", "true") are no secrets, and striking them would garble the text.
        if len(secret) >= _SHORTEST_SECRET_CHARS:
            text = text.replace(secret, "***")
    return text


def _failure(failure: Failure, where: str, text: str, hint: str) -> ProviderFailure:
    said = plain_words(text)
    advice = f"; {hint}" if hint else ""
    message = where + (f": {said}" if said else "") + advice
    return ProviderFailure(msgspec.structs.replace(failure, message=message), own=where + advice, said=said)
