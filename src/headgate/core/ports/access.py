"""Keys for callers over HTTP ("access keys": plain `keys` are idempotency keys). Only their digests are kept."""

from collections.abc import Hashable
from typing import Protocol

from headgate.core.access import KeptKey


class AccessKeys(Protocol):
    """Add, list, revoke. A key is never changed otherwise and never deleted: its name stays on what it did."""

    async def add_access_key(self, kept: KeptKey) -> None:
        """The same again changes nothing."""
        ...

    async def access_keys(self, *, tenant: str | None = None) -> list[KeptKey]:
        """Newest first, revoked and expired ones too."""
        ...

    async def revoke_access_key(self, key_id: str, *, now: float, tenant: str | None = None) -> bool:
        """False when there is no such key; one that was revoked before stays so since then."""
        ...

    async def access_marker(self) -> Hashable:
        """Differs from the one before whenever a key was added or revoked in between: a cheap look."""
        ...
