"""The rules of idempotency keys: what a request that brings a key is told. Values in, one verdict out.

A key names one request of one tenant on one endpoint. It is taken before the work begins:
reserved → sent → done. A failed outcome frees it; a finished one is told again until the key expires.
"""

import enum
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from headgate.core.errors import InvalidRequest, KeyInProgress, KeyMismatch, RecordExists
from headgate.core.problems import Review

LONGEST_KEY_CHARS: Final = 255


class Unknown(enum.StrEnum):
    """What to do when a process died after sending and nobody knows whether the provider did the work."""

    RERUN = "rerun"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRules:
    """What an operator can decide about idempotency keys."""

    retention_h: float = 72.0
    mismatch_status: int = 409
    unknown: Unknown = Unknown.RERUN

    def __post_init__(self) -> None:
        review = Review()
        review.number("retention_h", self.retention_h, above=0, most=8760)
        if type(self.mismatch_status) is not int or self.mismatch_status not in {409, 422}:
            review.add("mismatch_status", f"must be 409 or 422, not {self.mismatch_status!r}")
        if (unknown := review.choice("unknown", self.unknown, Unknown)) is not None:
            object.__setattr__(self, "unknown", unknown)
        review.refuse()

    @property
    def retention_s(self) -> float:
        return self.retention_h * 3600


class KeyState(enum.StrEnum):
    RESERVED = "reserved"
    """Taken; nothing has been sent yet."""
    SENT = "sent"
    """The provider may have done the work."""
    DONE = "done"


class KeyOutcome(enum.StrEnum):
    """What came of a request that brought a key."""

    RAN = "ran"
    """The first of its kind: the work was done for it."""
    REPLAYED = "replayed"
    """Told again from the store."""
    SHARED = "shared"
    """Came while the work was being done, and got the same answer."""
    MISMATCH = "mismatch"
    IN_PROGRESS = "in_progress"
    FAILED = "failed"
    """The work failed; the key is free again."""


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it stands in the store. `lease` fences its owner, as a job's does."""

    state: KeyState
    request_hash: bytes
    lease: int
    owner: str | None
    expires_at: float
    job_id: str | None = None
    response_status: int | None = None
    response_body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The key is yours: do the work. `lease` goes with everything you write about it."""

    lease: int
    rerun: bool = False
    """Somebody died after sending: the provider may be paid twice, the effect is recorded once."""


@dataclass(frozen=True, slots=True)
class Replay:
    """It was done already."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class SameJob:
    job_id: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used for another request."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """Somebody is at it, or (`unknown`) died at it and the operator said not to run it again."""

    unknown: bool = False


Verdict: TypeAlias = Run | Replay | SameJob | Mismatch | InProgress


def decide(
    row: KeyRow | None, request_hash: bytes, *, owner_lives: bool, unknown: Unknown, now: float
) -> Verdict:
    """What becomes of a request with a key, given what the store knows of the key."""
    # Leases rise with time itself, so that a key that was purged and taken anew cannot repeat an old one.
    lease = max(int(now * 1e6), 0 if row is None else row.lease + 1)
    if row is None or now >= row.expires_at:
        return Run(lease)
    if row.request_hash != request_hash:
        return Mismatch()
    if row.job_id is not None:
        return SameJob(row.job_id)
    if row.state is KeyState.DONE:
        return Replay(row.response_status or 200, row.response_body or b"")
    if owner_lives:
        return InProgress()
    sent = row.state is KeyState.SENT
    return InProgress(unknown=True) if sent and unknown is Unknown.REFUSE else Run(lease, rerun=sent)


def known_job(verdict: Verdict, key: str) -> str | None:
    """The job that a submission's key leads to already; None when the key may be used. Raises any other answer."""
    match verdict:
        case SameJob(job_id=job_id):
            return job_id
        case Replay(status=409, body=body):
            collection, unique_key, record_id = msgspec.json.decode(body, type=tuple[str, str, str])
            raise RecordExists(collection, unique_key, record_id, replayed=True)
        case Mismatch():
            raise KeyMismatch(key)
        case InProgress():
            raise KeyInProgress(f"idempotency key {key[:100]!r} is in use", retry_after_s=1.0)
        case _:
            return None


def kept_conflict(error: RecordExists) -> tuple[int, bytes]:
    """Status and body under which a submission's key keeps this answer."""
    return 409, msgspec.json.encode((error.collection, error.unique_key, error.record_id))


class KeyClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An idempotency key on its way into the store, with the keyed fingerprint of what was asked under it."""

    endpoint: str
    key: str
    request_hash: bytes
    expires_at: float


class HeldKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that a node has reserved and that has no answer yet. `lease` goes with everything written about it."""

    tenant: str
    claim: KeyClaim
    lease: int


def key_claim(key: str, body: bytes, *, secret: bytes, endpoint: str, expires_at: float) -> KeyClaim:
    fingerprint = hmac.digest(secret, body, hashlib.sha256)
    return KeyClaim(endpoint=endpoint, key=check_key(key), request_hash=fingerprint, expires_at=expires_at)


def check_key(key: object) -> str:
    """A key is opaque, but bounded and printable."""
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY_CHARS or not key.isprintable():
        raise InvalidRequest(
            f"an idempotency key must be 1–{LONGEST_KEY_CHARS} printable characters", param="idempotency_key"
        )
    return key
