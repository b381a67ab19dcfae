"""Idempotency keys of direct calls: reserve → sent → done, each write fenced by the reservation's lease."""

from typing import Protocol

from headgate.core.idempotency import HeldKey, KeyClaim, Unknown, Verdict


class Keys(Protocol):
    """Reserve, mark, finish, free."""

    secret: bytes
    """Keys the fingerprints of request bodies; it lives in the store, so that all nodes share it."""

    async def reserve(
        self,
        tenant: str,
        claim: KeyClaim,
        *,
        node: str,
        unknown: Unknown,
        now: float,
        quota: int | None = None,
    ) -> Verdict:
        """Take the key for this node, or say what is known of it.

        A key that this node holds already is taken anew: whoever still worked on it here would have shared it.
        Raises `QuotaExceeded` in place of `Run` when the tenant stores as many bytes as the `quota`, or more.
        """
        ...

    async def mark_sent(self, tenant: str, claim: KeyClaim, lease: int) -> bool: ...

    async def finish(self, tenant: str, claim: KeyClaim, lease: int, *, status: int, body: bytes) -> bool:
        """True when the answer of this lease is recorded. Idempotent: the first answer stays."""
        ...

    async def keep_answer(
        self, tenant: str, claim: KeyClaim, *, status: int, body: bytes, now: float
    ) -> Verdict:
        """Take a key for an answer that is known already. `Run`: taken; anything else: what the key was used for before."""
        ...

    async def free(self, tenant: str, claim: KeyClaim, lease: int) -> bool:
        """The outcome was a failure, or nothing was sent: the key may run again."""
        ...

    async def held_keys(self, node: str) -> list[HeldKey]:
        """The keys that this node has reserved and neither finished nor freed."""
        ...
