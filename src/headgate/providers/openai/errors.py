"""What an OpenAI-like server's error answers mean, and the words for the operator. Knows no HTTP client."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind, from_answer
from headgate.formats.foreign_bodies import ErrorBody, error_inside, read_error
from headgate.providers.exchange import plain_words

HIDDEN: Final = "***"
# The path and the model come from the settings, not from the caller: an unknown one, a redirect or a missing feature
# is a mistake in them. vLLM, llama.cpp and Ollama have no code of their own for an unknown model.
_SET_UP_STATUS: Final = frozenset({301, 302, 303, 307, 308, 404, 405, 501})
_HINTS: Final[Mapping[int, str]] = {
    **dict.fromkeys(
        (301, 302, 303, 307, 308), "redirects are not followed: give the final address as base_url"
    ),
    401: "check api_key, and auth: bearer or api-key",
    402: "check the account's credit",
    403: "check what the key may do",
    404: "check model and base_url, which ends with the version path",
    405: "check base_url, which ends with the version path",
    407: "check the proxy's credentials",
    429: "check the account's credit and limits",
    501: "the server was started without this feature",
}


class ErrorReader:
    """Failures of one server, with its name and without our secrets."""

    def __init__(self, host: str, secrets: tuple[str, ...] = ()) -> None:
        self._host = host
        self._secrets = secrets

    def from_status(
        self, status: int, headers: Mapping[str, str], body: bytes, *, now: datetime
    ) -> ProviderFailure:
        """The failure of an answer that is an error by its status."""
        # Struck before it is cut: half a key at the cut would be no key to look for.
        error = read_error(self._hide_in(body))
        failure = from_answer(status, headers, code=error.code, now=now)
        if status in _SET_UP_STATUS:
            failure = msgspec.structs.replace(failure, kind=FailureKind.MISCONFIGURED, ambiguous=False)
        return self._told(failure, f"{status} from {self._host}", error.message)

    def no_answer(self, body: bytes, why: str) -> ProviderFailure:
        """The failure of a 200 without an answer: an error in disguise, or a broken envelope."""
        error: ErrorBody | None = error_inside(self._hide_in(body))
        if error is not None:
            failure = error.failure_inside()
            return self._told(failure, f"an error from {self._host}", failure.message)
        why = self._hide(why)
        message = f"200 from {self._host}, but {why}"
        failure = Failure(kind=FailureKind.TRANSIENT, message=message, code="bad_envelope")
        return ProviderFailure(failure, own=message, said=why)

    def _told(self, failure: Failure, what: str, said: str) -> ProviderFailure:
        hint = _HINTS.get(failure.status or 0) if failure.kind is FailureKind.MISCONFIGURED else None
        said = plain_words(self._hide(said))
        advice = f" ({hint})" if hint else ""
        message = ": ".join(filter(None, (what, said))) + advice
        return ProviderFailure(
            msgspec.structs.replace(failure, message=message), own=what + advice, said=said
        )

    def _hide(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def _hide_in(self, body: bytes) -> bytes:
        for secret in self._secrets:
            body = body.replace(secret.encode(), HIDDEN.encode())
        return body
