"""What must be done now and then so that nothing is stuck, lost or kept for ever. All in bounded bites."""

from collections.abc import Sequence
from typing import Protocol

from headgate.core.job import Claim, Ended, FollowUps, Lost, nothing_follows


class Upkeep(Protocol):
    """Rescue, expire, revive, prune, purge."""

    async def lost(self, *, limit: int) -> list[Lost]:
        """Running jobs whose node is dead or has left."""
        ...

    async def forget_nodes(self) -> int:
        """Delete the nodes that are dead and hold no job any more."""
        ...

    async def uncancelled(self, *, before: float, limit: int) -> list[Claim]:
        """Running jobs whose cancel was asked for before this and is still not obeyed."""
        ...

    async def expire(self, *, now: float, limit: int, follow_ups: FollowUps = nothing_follows) -> list[Ended]:
        """Pending jobs past `expires_at` become dead letters, and what follows them is accepted, or none of it is."""
        ...

    async def revivable(self, *, now: float, limit: int) -> list[tuple[str, str]]:
        """(id, model) of exhausted dead letters whose cool-down is over."""
        ...

    async def revive(self, job_ids: Sequence[str], *, now: float, expires_after_s: float) -> int: ...

    async def cool(self, job_ids: Sequence[str], *, until: float) -> int:
        """Exhausted dead letters that cannot be revived yet are not looked at again before this."""
        ...

    async def prune(self, *, before: float, limit: int) -> int:
        """Delete finished jobs (dead letters too) that ended before this, with their steps."""
        ...

    async def prune_files(self, *, before: str, limit: int) -> int:
        """Delete the records of files whose ids, which begin with their time, come before this."""
        ...

    async def purge_keys(self, *, now: float, limit: int) -> int:
        """Delete expired idempotency keys."""
        ...
