"""The secrets that webhooks are signed with: made when first needed, rotated, kept encrypted in the store."""

import asyncio
import os
from collections.abc import Callable
from typing import Final, TypeVar

from headgate.core.errors import SettingsError
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store
from headgate.core.sealing import NONCE_BYTES, WrongKey, check_value, seal, unseal
from headgate.core.webhook_wire import (
    ALERTS,
    OVERLAP_S,
    SECRET_BYTES,
    KeptSecret,
    derived_secret,
    new_secret,
)
from headgate.machine.secret_key import SecretKey

T = TypeVar("T")
_LOCAL: Final = "local"
"""The tenant whose secret earlier versions signed alerts with."""


class WebhookSecrets:
    """By owner: a tenant, or `ALERTS`. Raises `SettingsError` where this node's key is not the database's."""

    def __init__(self, store: Store, key: SecretKey, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._clock = clock

    async def check(self) -> None:
        """Before a node starts: its key is the one that the database's secrets are encrypted with, if any are."""
        if self._key.is_set:
            await self._own_key()
        elif (known := await self._store.key_check()) is not None:
            self._compare(await self._outside(self._key.read), known)

    async def in_force(self, owner: str) -> tuple[str, ...]:
        """Newest first; one is made where there is none."""
        kept = await self._store.webhook_secrets(owner, now=self._now())
        if not kept:
            await self._add(owner)
            kept = await self._store.webhook_secrets(owner, now=self._now())
        key = await self._own_key() if any(one.sealed is not None for one in kept) else b""
        return tuple(self._opened(owner, one, key) for one in kept)

    async def rotate(self, owner: str) -> str:
        """A new one; the others are in force for another day."""
        await self._add(owner, retire_at=self._now() + OVERLAP_S)
        return (await self.in_force(owner))[0]

    # ---- How it is done -----------------------------------------------------------------------------------

    async def _add(self, owner: str, *, retire_at: float | None = None) -> None:
        key = await self._own_key()
        sealed = seal(key, os.urandom(SECRET_BYTES), place=_place(owner), nonce=os.urandom(NONCE_BYTES))
        await self._store.add_webhook_secret(owner, sealed, now=self._now(), retire_at=retire_at)

    def _opened(self, owner: str, kept: KeptSecret, key: bytes) -> str:
        if kept.sealed is None:
            return derived_secret(_LOCAL if owner == ALERTS else owner, self._store.secret)
        try:
            return new_secret(unseal(key, kept.sealed, place=_place(owner)))
        except WrongKey as error:
            raise SettingsError(
                f"{self._store.name}: a webhook secret cannot be decrypted: {error}"
            ) from error

    async def _own_key(self) -> bytes:
        """The key of this node, made if the database has no secrets yet, and compared with the one it knows."""
        known = await self._store.key_check()
        key = await self._outside(self._key.make if known is None else self._key.read)
        if known is None and key is not None:
            known = await self._store.key_check(check_value(key))
        return self._compare(key, known)

    def _compare(self, key: bytes | None, known: bytes | None) -> bytes:
        same = "it must be the same on all nodes of a database"
        if key is None:
            raise SettingsError(
                f"{self._store.name}: its secrets are encrypted with a key that is not here. Copy {self._key.file} from"
                f" the node that made it, or set secret_key: {same}"
            )
        if check_value(key) != known:
            where = "secret_key" if self._key.is_set else str(self._key.file)
            raise SettingsError(
                f"{self._store.name}: its secrets are encrypted with another key than {where}: {same}"
            )
        return key

    async def _outside(self, read: Callable[[], T]) -> T:
        try:
            with self._clock.outside():
                return await asyncio.to_thread(read)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{self._key.file} cannot be used: {error}") from error

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _place(owner: str) -> str:
    return f"webhook secret of {owner}"
