"""Standard Webhooks on the wire: secrets, the signed headers, what an answer means, when to try again."""

import base64
import enum
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from headgate.core.failures import Failure, FailureKind, retry_after_s
from headgate.core.retry import WaitSeries

SCHEDULE: Final = WaitSeries(
    waits_s=(5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
)
"""At once, then 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h: ten attempts in a little over three days."""
LONGEST_ASKED_WAIT_S: Final = 86_400.0
"""A receiver may ask for a day; one that asks for a year does not mean it."""
_PREFIX: Final = "whsec_"
OVERLAP_S: Final = 86_400.0
"""How long a secret that was rotated still signs, beside the new one: receivers change over meanwhile."""
ALERTS: Final = ""
"""The owner of the secret that alerts are signed with; no tenant's name is empty."""
SECRET_BYTES: Final = 32
_LEAST_BYTES: Final = 24
_MOST_BYTES: Final = 64
_DOMAIN: Final = b"webhook\0"
"""The store's secret has other uses: what it makes here must be of no use there."""


class Verdict(enum.StrEnum):
    """What an answer means."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    """Nobody wants to hear from us at this address any more."""


def verdict(status: int) -> Verdict:
    if 200 <= status < 300:
        return Verdict.DELIVERED
    return Verdict.GONE if status == 410 else Verdict.FAILED


def failure_of(status: int, headers: Mapping[str, str], *, receiver: str, now: datetime) -> Failure:
    """An answer that is no success. Whatever its status, the receiver may be mended within three days."""
    asked_s = retry_after_s(headers, now=now)
    hint = "; redirects are not followed, give the address it leads to" if 300 <= status < 400 else ""
    return Failure(
        kind=FailureKind.TRANSIENT,
        message=f"{receiver} answered {status}{hint}",
        status=status,
        retry_after_s=None if asked_s is None else min(asked_s, LONGEST_ASKED_WAIT_S),
    )


class KeptSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret as the store has it."""

    sealed: bytes | None
    """None: made from the store's own secret, by a version that encrypted none."""
    expires_at: float | None = None


def signed_headers(
    message_id: str, payload: bytes, *, secrets: Sequence[str], now: float
) -> list[tuple[bytes, bytes]]:
    """The headers of one attempt: the id stays, the time and with it the signatures, one per secret, are its own."""
    timestamp = f"{int(now)}"
    signed = b"%b.%b.%b" % (message_id.encode(), timestamp.encode(), payload)
    digests = [hmac.digest(_key(secret), signed, hashlib.sha256) for secret in secrets]
    return [
        (b"content-type", b"application/json"),
        (b"webhook-id", message_id.encode()),
        (b"webhook-timestamp", timestamp.encode()),
        (b"webhook-signature", b" ".join(b"v1," + base64.b64encode(digest) for digest in digests)),
    ]


def new_secret(random: bytes) -> str:
    """Of `SECRET_BYTES` random bytes."""
    return _PREFIX + base64.b64encode(random).decode()


def derived_secret(tenant: str, store_secret: bytes) -> str:
    """As earlier versions made a tenant's own: whoever has the database can do the same."""
    return new_secret(hmac.digest(store_secret, _DOMAIN + tenant.encode(), hashlib.sha256))


def secret_mistake(secret: str) -> str | None:
    """Why this is no secret; it is never quoted."""
    try:
        size = len(_key(secret))
    except ValueError:
        size = 0
    if secret.startswith(_PREFIX) and _LEAST_BYTES <= size <= _MOST_BYTES:
        return None
    return f"must be {_PREFIX} and {_LEAST_BYTES} to {_MOST_BYTES} random bytes in base64"


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
