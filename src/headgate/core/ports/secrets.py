"""Secrets that only their owners may know. The store keeps them encrypted, and never sees the key."""

from typing import Protocol

from headgate.core.webhook_wire import KeptSecret


class Secrets(Protocol):
    """The check value of the key, and webhook secrets by owner: a tenant, or "" for alerts."""

    async def key_check(self, mine: bytes | None = None) -> bytes | None:
        """What tells the right key. `mine` is kept where there is none yet."""
        ...

    async def webhook_secrets(self, owner: str, *, now: float) -> list[KeptSecret]:
        """Those in force, newest first."""
        ...

    async def add_webhook_secret(
        self, owner: str, sealed: bytes, *, now: float, retire_at: float | None = None
    ) -> None:
        """With `retire_at` the older ones are in force until then; without, it is added only where there is none."""
        ...
