"""Who calls, and what they may. The routes ask here and know nothing of keys; no request waits for the database."""

import asyncio
import contextlib
import functools
import hmac
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from headgate.calls.refreshing import keep_fresh
from headgate.core.access import AccessKey, AccessState, Action, KeptKey, is_loopback, may
from headgate.core.call import Lane
from headgate.core.errors import HeadgateError, ModelNotAllowed, NotAllowed, Unauthorized
from headgate.core.key_text import digest_of, is_key_text
from headgate.core.metering import Allowance, Meter
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store
from headgate.machine.context import ACCESS_KEY, SPEND
from headgate.runner.key_meters import KeyMeters
from headgate.server.credential import read_credential

Headers = Sequence[tuple[bytes, bytes]]
CALLER: Final = "headgate.caller"
"""In the scope of a request: who was let in with it."""
_MOST_PATTERNS_TOLD: Final = 5
_WEB: Final = frozenset({b"origin", b"sec-fetch-site", b"host"})
_OWN_SITES: Final = frozenset({b"none", b"same-origin"})


class Caller(Protocol):
    """One who was let in."""

    name: str
    """For the history of what it does: its key's."""
    tenant: str
    lane: Lane
    """Where its requests queue unless they say otherwise."""
    models: tuple[str, ...]
    """What it may use, as its key lists it; none: every model."""
    limited: bool
    """Whether there are `allowances` to tell."""

    def may(self, action: Action) -> bool: ...

    def may_use(self, model: str) -> bool: ...

    def check_model(self, model: str) -> None:
        """Raises ModelNotAllowed when this caller may not use the model."""
        ...

    def used(self, tokens: int) -> None:
        """What a request cost, once that is known."""
        ...

    def allowances(self) -> Sequence[Allowance]:
        """What is left of its limits per minute."""
        ...

    def leave(self) -> None:
        """Its request is over. Called once for each that was admitted."""
        ...


class Access(Protocol):
    """The door."""

    @property
    def has_keys(self) -> bool:
        """Whether anybody is asked for a key at all."""
        ...

    def admit(self, headers: Headers, action: Action) -> Caller:
        """Let one request in, counted against its caller's limits, or raise what the client is told."""
        ...

    def tenant_of(self, headers: Headers) -> str | None:
        """Whose valid key they show, or None. Nothing is counted."""
        ...

    def still_admits(self, caller: Caller) -> bool:
        """Whether one who was let in before would be again: its key was not revoked and has not expired."""
        ...

    async def refresh(self) -> None:
        """Look for changes now. Who adds or revokes a key in this process calls this afterwards."""
        ...


class _Anybody:
    """Without keys everybody is the same: whoever can reach this machine's loopback."""

    name = "local"
    tenant = "local"
    lane = Lane.INTERACTIVE
    models: tuple[str, ...] = ()
    limited = False

    def may(self, action: Action) -> bool:  # noqa: ARG002 - the protocol's shape
        return True

    def may_use(self, model: str) -> bool:  # noqa: ARG002 - the protocol's shape
        return True

    def check_model(self, model: str) -> None:
        """Every model is open."""

    def used(self, tokens: int) -> None:
        """Nobody counts."""

    def allowances(self) -> Sequence[Allowance]:
        return ()

    def leave(self) -> None:
        """Nobody counts."""


ANYBODY: Final = _Anybody()


class OpenAccess:
    """Nobody is asked for a key."""

    has_keys = False

    def admit(self, headers: Headers, action: Action) -> Caller:  # noqa: ARG002 - the protocol's shape
        return ANYBODY

    def tenant_of(self, headers: Headers) -> str | None:  # noqa: ARG002 - the protocol's shape
        return ANYBODY.tenant

    def still_admits(self, caller: Caller) -> bool:  # noqa: ARG002 - the protocol's shape
        return True

    async def refresh(self) -> None:
        """Nothing changes."""


class KeyCaller:
    """The holder of one key. All its requests share this: it is what counts them."""

    __slots__ = (
        "_meter",
        "_now",
        "_refusals",
        "digest",
        "key",
        "lane",
        "limited",
        "models",
        "name",
        "tenant",
    )

    def __init__(self, kept: KeptKey, meter: Meter, now: Callable[[], float], refusals: Counter[str]) -> None:
        self.key = kept.key
        self.digest = kept.digest
        self.name = kept.key.name
        self.tenant = kept.key.tenant
        self.models = kept.key.models
        self.lane = kept.key.lane
        self.limited = meter.limited
        self._meter = meter
        self._now = now
        self._refusals = refusals

    def may(self, action: Action) -> bool:
        return may(self.key.role, action)

    def enter(self, action: Action) -> None:
        """Count a request in, or raise."""
        if not self.may(action):
            raise NotAllowed(f"a key of the role {self.key.role} may not {action}")
        self._meter.enter(self._now())

    def may_use(self, model: str) -> bool:
        return self.key.may_use(model)

    def check_model(self, model: str) -> None:
        if self.key.may_use(model):
            return
        self._refusals[ModelNotAllowed.code] += 1
        patterns = self.key.models
        more = ", …" if len(patterns) > _MOST_PATTERNS_TOLD else ""
        known = ", ".join(patterns[:_MOST_PATTERNS_TOLD]) + more
        raise ModelNotAllowed(f"this key may not use the model {model[:100]!r}; it may use {known}")

    def used(self, tokens: int) -> None:
        self._meter.used(tokens, self._now())

    def allowances(self) -> Sequence[Allowance]:
        return self._meter.allowances(self._now())

    def leave(self) -> None:
        self._meter.leave()


class KeyedAccess:
    """Keys from the store, in a table in memory. Open to everybody only until the first key was ever made.

    While the store is away the last table stays in force.
    """

    def __init__(self, store: Store, clock: Clock, meters: KeyMeters | None = None) -> None:
        self._store = store
        self._clock = clock
        self._meters = meters or KeyMeters(store, clock)
        """Those of the jobs that run in this process, which spend from the same windows."""
        self._marker: Hashable = None
        self._by_digest: dict[bytes, KeyCaller] = {}
        self._by_credential: dict[bytes, KeyCaller] = {}
        """The keys seen since the table was read, as they were sent: one entry per key at most."""
        self._refreshing = asyncio.Lock()
        self._duty: asyncio.Task[None] | None = None
        self.has_keys = False
        """Once True it stays: a gateway whose last key was revoked is closed, not open."""
        self.refusals: Counter[str] = Counter()
        """Who was not let in, by the error's code."""

    async def start(self) -> None:
        """Read the keys of an open store, and again and again from now on. Raises when they cannot be read now."""
        await self.refresh()
        self._duty = asyncio.create_task(keep_fresh(self.refresh, self._clock, "keys"), name="headgate keys")

    async def aclose(self) -> None:
        if self._duty is not None:
            self._duty.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._duty

    def admit(self, headers: Headers, action: Action) -> Caller:
        try:
            if not self.has_keys:
                _refuse_web_pages(headers)
                return ANYBODY
            presented = read_credential(headers)
            # A dict compares by a hash that is secret to this process: how long it takes says nothing about any key.
            caller = self._by_credential.get(presented) or self._find(presented)
            if caller.key.expires_at is not None:
                self._check_expiry(caller.key)
            caller.enter(action)
            ACCESS_KEY.set(caller.key.id)
            SPEND.set(caller.used if caller.limited else None)
        except HeadgateError as error:
            self.refusals[error.code] += 1
            raise
        return caller

    def tenant_of(self, headers: Headers) -> str | None:
        try:
            presented = read_credential(headers)
            caller = self._by_credential.get(presented) or self._find(presented)
        except HeadgateError:
            return None
        return caller.tenant if self.still_admits(caller) else None

    def still_admits(self, caller: Caller) -> bool:
        if not isinstance(caller, KeyCaller):
            return not self.has_keys
        living = self._by_digest.get(caller.digest) is caller
        return living and caller.key.state(self._clock.utc()) is AccessState.ACTIVE

    def _check_expiry(self, key: AccessKey) -> None:
        if key.state(self._clock.utc()) is AccessState.EXPIRED:
            raise _invalid()

    async def refresh(self) -> None:
        async with self._refreshing:
            marker = await self._store.access_marker()
            if marker != self._marker:
                self._take(await self._store.access_keys())
                self._marker = marker

    def _take(self, everyone: Sequence[KeptKey]) -> None:
        known = {caller.key.id: caller for caller in self._by_digest.values()}
        living = [kept for kept in everyone if kept.key.revoked_at is None]
        # A key never changes until it is revoked: whoever was there before goes on with what it has used.
        callers = [known.get(kept.key.id) or self._caller(kept) for kept in living]
        self._by_digest = {caller.digest: caller for caller in callers}
        self._by_credential = {}
        self.has_keys = self.has_keys or bool(everyone)

    def _caller(self, kept: KeptKey) -> KeyCaller:
        return KeyCaller(kept, self._meters.of(kept.key), self._clock.now, self.refusals)

    def _find(self, presented: bytes) -> KeyCaller:
        if not is_key_text(presented):
            raise Unauthorized(
                "this is not one of this gateway's keys: it is mistyped, cut short, or for another service"
            )
        digest = digest_of(presented, self._store.secret)
        caller = self._by_digest.get(digest)
        if caller is None or not hmac.compare_digest(caller.digest, digest):
            raise _invalid()
        self._by_credential[presented] = caller
        return caller


def _refuse_web_pages(headers: Headers) -> None:
    """Without keys loopback is the only wall, and this machine's browser stands inside it: any site could spend.

    The gateway's own pages may ask: their origin is the host that they ask.
    """
    for name, value in headers:
        if name in _WEB and not _is_own(name, value) and not _is_own_page(name, value, headers):
            raise NotAllowed(
                f"without keys no web page may ask, nor anybody by another name than localhost or 127.0.0.1"
                f" ({name.decode()}: {value[:100].decode('latin-1')}); make a key: headgate keys create NAME --role operate"
            )


def _is_own(name: bytes, value: bytes) -> bool:
    """Whether this header may come from a program that runs here."""
    if name == b"host":
        return is_here(value)
    return name == b"sec-fetch-site" and value in _OWN_SITES


def _is_own_page(name: bytes, value: bytes, headers: Headers) -> bool:
    return name == b"origin" and (b"host", value.partition(b"://")[2]) in headers


@functools.lru_cache(maxsize=16)
def is_here(host: bytes) -> bool:
    """Whether a Host header names this machine's loopback."""
    name, _, port = host.decode("latin-1").rpartition(":")
    return is_loopback(name if port.isdecimal() else host.decode("latin-1"))


def _invalid() -> Unauthorized:
    """The same for a key that expired, was revoked or never was: which of them is nobody's business."""
    return Unauthorized("this key is not valid: it is unknown, expired or revoked")
