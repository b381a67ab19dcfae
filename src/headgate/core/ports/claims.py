"""A worker's side: being a node, claiming, writing what came of it. Every write carries its claim's lease."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from headgate.core.job import Claim, Settled, Settlement

MAX_LINES: Final = 1000
"""How many lines a look names. With more tenants than that it names one model of each."""


class Want(msgspec.Struct, frozen=True):
    """How many jobs of one line a worker can take: of a tenant, for a model ("" for none)."""

    model: str
    places: int
    tenant: str = "local"


class Ready(msgspec.Struct, frozen=True):
    """What could be claimed: the lines with ready jobs, whether suspects wait, and when the next job gets due."""

    lines: dict[str, tuple[str, ...]]
    """By tenant, the models that it has ready jobs for."""
    suspects: bool
    next_at: float | None
    more: bool = False
    """There may be lines that are not named here: a look after this one begins with them."""

    @classmethod
    def of(cls, lines: dict[str, tuple[str, ...]], *, suspects: bool, next_at: float | None) -> "Ready":
        """A look that named at most `share_of_lines` models of each tenant."""
        share = share_of_lines(len(lines))
        more = len(lines) >= MAX_LINES or any(len(models) >= share for models in lines.values())
        return cls(lines, suspects, next_at, more)

    @property
    def last(self) -> tuple[str, dict[str, str]]:
        """Where the next look goes on: after this tenant, and of each tenant after this model."""
        if not self.more:
            return "", {}
        return next(reversed(self.lines)), {tenant: models[-1] for tenant, models in self.lines.items()}


def share_of_lines(tenants: int) -> int:
    """How many models of each of so many tenants a look names."""
    return max(1, MAX_LINES // max(1, tenants))


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

    async def ready(self, *, now: float, after: Ready | None = None) -> Ready:
        """Make due what is due, and say what there is to claim.

        Every tenant gets its share of the lines that are named, and the look goes on where the one before had to stop
        (`after`): so none is left out for ever.
        """
        ...

    async def claim(self, wants: Sequence[Want], *, node: str, suspects: int, now: float) -> list[Claim]:
        """Up to `places` jobs of each line, oldest due first; and up to `suspects` suspects, which come first.

        A line is named once. May return fewer than there are; it returns none only when there is none or the node is no node.
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
