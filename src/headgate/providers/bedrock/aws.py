"""botocore's part: where credentials are found, how a request is signed, how an event stream is cut into frames.

The only module that imports botocore, which takes half a second: it is first imported in a thread, by `keyring`.
"""

import logging
import struct
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import RefreshableCredentials  # type: ignore[import-untyped]
from botocore.eventstream import EventStreamBuffer, ParserError  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from botocore.session import Session  # type: ignore[import-untyped]

from headgate.core.errors import ProviderFailure
from headgate.formats.converse.failures import bad_envelope
from headgate.transport.endpoint import Endpoint
from headgate.transport.headers import RawHeader

SERVICE: Final = "bedrock"
LOOKUP_ERRORS: Final[tuple[type[Exception], ...]] = (BotoCoreError, ClientError)
"""What botocore raises when credentials cannot be had."""
_LAST_MOMENT_S: Final = 60

# At level DEBUG botocore logs the answers of the services that hand out credentials. Who wants to read them must
# say so to botocore's own logger; a DEBUG for everything is not enough.
if logging.getLogger("botocore").level == logging.NOTSET:
    logging.getLogger("botocore").setLevel(logging.INFO)


class Keys(msgspec.Struct, frozen=True):
    """One set of credentials, under the names that botocore's signer reads."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return "Keys(…)"


class FoundCredentials:
    """Credentials from botocore's chain. Making and renewing them may take seconds: do both in a thread."""

    def __init__(self, profile: str | None) -> None:
        self._credentials: Any = Session(profile=profile).get_credentials()
        self.keys: Keys | None = None
        self.renew()

    def renew(self) -> None:
        """Take over what botocore holds, which it renews first where it is due. No credentials: no keys."""
        if self._credentials is not None:
            frozen = self._credentials.get_frozen_credentials()
            self.keys = Keys(frozen.access_key, frozen.secret_key, frozen.token)

    @property
    def aging(self) -> bool:
        """They run out within a quarter of an hour: time to renew them, with time to spare."""
        return self._ends_within(None)

    @property
    def ending(self) -> bool:
        """They may run out before a request signed with them arrives."""
        return self._ends_within(_LAST_MOMENT_S)

    def _ends_within(self, seconds: int | None) -> bool:
        credentials = self._credentials
        return isinstance(credentials, RefreshableCredentials) and bool(credentials.refresh_needed(seconds))


class Signed(msgspec.Struct, frozen=True):
    """The headers of one request, and what must not be told of them."""

    headers: list[RawHeader]
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return "Signed(…)"


def sign(
    endpoint: Endpoint, body: bytes, headers: Mapping[str, str], keys: Keys, region: str, *, now: datetime
) -> Signed:
    """All headers of the request, the signature among them.

    The steps of botocore's `add_auth`, taken one by one because that one logs the signature and the session token.
    """
    when = now.strftime("%Y%m%dT%H%M%SZ")
    sent = {**headers, "X-Amz-Date": when}
    if keys.token:
        sent["X-Amz-Security-Token"] = keys.token
    url = f"{endpoint.origin}{endpoint.target}"
    request = AWSRequest(endpoint.method, url, {**sent, "Host": endpoint.origin.authority}, body)
    request.context["timestamp"] = when
    signer = SigV4Auth(keys, SERVICE, region)
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    names = signer.signed_headers(signer.headers_to_sign(request))
    sent["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={names}, Signature={signature}"
    )
    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    return Signed(raw, (keys.secret_key, keys.token or "", signature))


class Frame(msgspec.Struct, frozen=True):
    """One message of an event stream."""

    headers: Mapping[str, Any]
    payload: bytes


class Frames:
    """Cuts bytes into frames, however the pieces fall. A wrong checksum ends the stream."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._buffer = EventStreamBuffer()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer.add_data(data)
        try:
            for message in self._buffer:
                yield Frame(message.headers, message.payload)
        except (ParserError, struct.error, UnicodeDecodeError, KeyError):
            raise self._broken() from None

    def _broken(self) -> ProviderFailure:
        return bad_envelope(self._host, "its event stream is damaged")
