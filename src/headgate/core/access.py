"""Access keys: who may call over HTTP, as whom, what and how much. People say "keys"; here those are idempotency keys.

Values in, answers out. What a key looks like is in `key_text`, the counting in `metering`.
"""

import enum
import ipaddress
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from headgate.core.call import Lane, check_text
from headgate.core.errors import InvalidRequest, SettingsError, StateConflict
from headgate.core.key_text import PREFIX, digest_of, last_four, new_key_text

MOST_MODELS: Final = 100
MOST_PER_MINUTE: Final = 10**12


class Role(enum.StrEnum):
    """What a key is for."""

    CALL = "call"
    """Applications: they ask models and hand in jobs."""
    READ = "read"
    """Screens and monitoring: they look, and cannot spend anything."""
    OPERATE = "operate"
    """Operators: everything."""


class Action(enum.StrEnum):
    """What a request is about to do."""

    CALL = "call models and submit jobs"
    LOOK = "list the models and the tenant's own jobs"
    WATCH = "read the status, the metrics and the events"
    OPERATE = "operate the gateway"


_MAY: Final[Mapping[Role, frozenset[Action]]] = {
    Role.CALL: frozenset({Action.CALL, Action.LOOK}),
    Role.READ: frozenset({Action.LOOK, Action.WATCH}),
    Role.OPERATE: frozenset(Action),
}


def may(role: Role, action: Action) -> bool:
    return action in _MAY[role]


class AccessState(enum.StrEnum):
    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class AccessTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a key is for and how much it may use; None is no limit."""

    name: str
    tenant: str = "local"
    """Whose jobs and idempotency keys its requests meet; it outlives the key."""
    role: Role = Role.CALL
    models: tuple[str, ...] = ()
    """`summary`, or all that begin alike: `ollama/*`. None listed: every model."""
    lane: Lane = Lane.INTERACTIVE
    """Where its requests queue unless they say otherwise."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    parallel: int | None = None
    expires_at: datetime | None = None


class AccessKey(AccessTerms, frozen=True, kw_only=True):
    """All that may be shown of a key. Neither its text nor its digest is part of it."""

    id: str
    last_four: str
    created_at: datetime
    revoked_at: datetime | None = None

    def may_use(self, model: str) -> bool:
        return covers(self.models, model)

    def state(self, now: datetime) -> AccessState:
        if self.revoked_at is not None:
            return AccessState.REVOKED
        expired = self.expires_at is not None and now >= self.expires_at
        return AccessState.EXPIRED if expired else AccessState.ACTIVE


class KeptKey(msgspec.Struct, frozen=True):
    """A key as a store keeps it."""

    key: AccessKey
    digest: bytes

    def __repr__(self) -> str:
        return f"KeptKey({self.key!r})"


class IssuedKey(msgspec.Struct, frozen=True):
    """A key that was just made. Its text exists here and nowhere else: it is shown once."""

    text: str
    kept: KeptKey

    def __repr__(self) -> str:
        return f"IssuedKey({self.kept.key!r})"


def issue(terms: AccessTerms, *, key_id: str, random: bytes, secret: bytes, now: datetime) -> IssuedKey:
    """Make a key, or raise InvalidRequest where the terms make no sense."""
    _check(terms, now)
    text = new_key_text(random)
    key = AccessKey(**msgspec.structs.asdict(terms), id=key_id, last_four=last_four(text), created_at=now)
    return IssuedKey(text, KeptKey(key, digest_of(text.encode(), secret)))


def choose(keys: Sequence[AccessKey], word: str, *, now: datetime) -> AccessKey:
    """The key that somebody means by its id, its name or its last four characters."""
    found = [key for key in keys if key.id == word] or [
        key for key in keys if word in {key.name, key.last_four}
    ]
    living = [key for key in found if key.state(now) is not AccessState.REVOKED]
    if len(living) > 1:
        told = ", ".join(f"{key.id} ({key.name}, …{key.last_four})" for key in living)
        raise InvalidRequest(
            f"{len(living)} keys answer to {word!r}; give the id of one: {told}", param="key"
        )
    if living:
        return living[0]
    if found:
        raise StateConflict(f"{found[0].id} ({found[0].name}, …{found[0].last_four}) is revoked already")
    raise InvalidRequest(f"there is no key {word[:100]!r}; headgate keys list shows them all", param="key")


def check_listening(host: str, *, has_keys: bool) -> str | None:
    """Whether to listen there: without keys only where nobody else can reach us. Returns what to say about it."""
    if has_keys:
        return None
    if is_loopback(host):
        return f"there are no keys yet, so only this machine may connect ({host}). The first one is for you: headgate keys create NAME --role operate"
    raise SettingsError(
        f"listen: {host or 'every address'} can be reached from other machines, and there are no keys: anyone could"
        " spend your money. Create a key first (headgate keys create NAME --role operate), or listen on 127.0.0.1."
    )


def is_loopback(host: str) -> bool:
    """A name other than localhost may lead anywhere, tomorrow if not today."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def covers(patterns: Sequence[str], model: str) -> bool:
    """Whether a key that lists these may use the model; one that lists none may use every model."""
    return not patterns or any(_covers(pattern, model) for pattern in patterns)


def _covers(pattern: str, model: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern


def _check(terms: AccessTerms, now: datetime) -> None:
    check_text("name", terms.name)
    if terms.name.startswith(PREFIX):
        raise InvalidRequest(f"a name cannot begin with {PREFIX}: that is how keys begin", param="name")
    check_text("tenant", terms.tenant)
    if len(terms.models) > MOST_MODELS:
        raise InvalidRequest(f"a key may list {MOST_MODELS} models at most", param="models")
    for pattern in terms.models:
        check_text("models", pattern)
        if "*" in pattern[:-1]:
            raise InvalidRequest(
                f"models: a * may only stand at the end, not as in {pattern!r}", param="models"
            )
    for name in ("requests_per_minute", "tokens_per_minute", "parallel"):
        limit = getattr(terms, name)
        if limit is not None and not 1 <= limit <= MOST_PER_MINUTE:
            raise InvalidRequest(f"{name} must be at least 1 and at most 10¹², not {limit}", param=name)
    if terms.expires_at is not None and terms.expires_at <= now:
        raise InvalidRequest("a key cannot expire before it is made", param="expires_at")
