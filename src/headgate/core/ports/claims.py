"""A worker's side: being a node, claiming, writing what came of it. Every write carries its claim's lease."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from headgate.core.job import Claim, Settled, Settlement


class Want(msgspec.Struct, frozen=True):
    """How many jobs of a model ("" for none) a worker can take, and whose turn was last."""

    model: str
    places: int
    after_tenant: str = ""


class Ready(msgspec.Struct, frozen=True):
    """What could be claimed: models with ready jobs, whether suspects wait, and when the next job gets due."""

    models: tuple[str, ...]
    suspects: bool
    next_at: float | None


class Renewal(msgspec.Struct, frozen=True):
    """`alive` is False when the node was declared dead: its claims are gone and it must join under a new name."""

    alive: bool
    beats: Mapping[str, int] = {}
    """The beats of the other living nodes."""
    cancelled: tuple[tuple[str, int], ...] = ()
    """(job id, lease) of this node's jobs that are to be cancelled."""


class Claims(Protocol):
    """Claim, renew, settle."""

    async def join(self, node: str) -> None:
        """Be a node, until it leaves or is declared dead."""
        ...

    async def renew(self, node: str) -> Renewal:
        """Raise the node's beat, and read the others'."""
        ...

    async def leave(self, node: str) -> None: ...

    async def bury_dead(self, nodes: Sequence[str]) -> int:
        """Declare nodes dead whose death is proven: their process is gone."""
        ...

    async def bury_silent(self, node: str, beat: int) -> bool:
        """Declare a node dead that was silent for a lease, unless its beat has been raised since."""
        ...

    async def ready(self, *, now: float) -> Ready:
        """Make due what is due, and say what there is to claim."""
        ...

    async def claim(self, wants: Sequence[Want], *, node: str, suspects: int, now: float) -> list[Claim]:
        """Up to `places` jobs per model, tenants in turns, oldest due first; and up to `suspects` suspects.

        May return fewer than there are; it returns none only when there is none or the node is no node.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement], *, now: float) -> list[Settled]:
        """Write each in full or not at all; one answer per settlement."""
        ...

    async def steps(self, job_id: str) -> Mapping[str, bytes]: ...

    async def save_step(self, job_id: str, lease: int, *, name: str, result: bytes, now: float) -> bool:
        """False when the claim was lost."""
        ...

    async def save_progress(self, job_id: str, lease: int, *, progress: bytes) -> bool: ...
