"""The one place that reads a credential from a request. All carriers meet the same rules after it."""

from collections.abc import Iterable
from typing import Final

from headgate.core.errors import InvalidRequest, Unauthorized

_BEARER: Final = b"bearer"
_CARRIERS: Final = frozenset({b"authorization", b"x-api-key"})


def read_credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key as it was sent; names of headers are in lower case. Two of them, equal or not, are one too many."""
    found: tuple[bytes, bytes] | None = None
    for header in headers:
        if header[0] in _CARRIERS:
            if found is not None:
                raise InvalidRequest(
                    "the request brings two credentials: send the key once, as 'Authorization: Bearer …' or 'x-api-key'"
                )
            found = header
    if found is None:
        raise _missing()
    carrier, value = found
    if carrier == b"authorization":
        scheme, _, value = value.partition(b" ")
        if scheme.lower() != _BEARER:
            raise Unauthorized(
                "this gateway takes keys as 'Authorization: Bearer …' or 'x-api-key', nothing else"
            )
    if not (value := value.strip()):
        raise _missing()
    return value


def _missing() -> Unauthorized:
    return Unauthorized("this gateway needs a key: send it as 'Authorization: Bearer …' or 'x-api-key'")
