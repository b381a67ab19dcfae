"""A whole store: all concerns together, its health, and the bell that rings when there is work."""

import enum
from collections.abc import Callable
from typing import Protocol

from headgate.core.ports.access import AccessKeys
from headgate.core.ports.batches import Batches
from headgate.core.ports.claims import Claims
from headgate.core.ports.jobs import Jobs
from headgate.core.ports.keys import Keys
from headgate.core.ports.records import Records
from headgate.core.ports.secrets import Secrets
from headgate.core.ports.upkeep import Upkeep


class StoreHealth(enum.StrEnum):
    OK = "ok"
    DOWN = "down"
    """The last operation failed for the store's own reasons; it is tried again all the time."""


class Store(Jobs, Batches, Claims, Upkeep, Keys, AccessKeys, Records, Secrets, Protocol):
    """One database. All verbs raise `StoreUnavailable` when it does not answer in time, never hang.

    Times come in as epoch seconds; the adapter of a remote database follows that database's clock.
    """

    name: str
    """For people: what and where, without passwords."""

    @property
    def health(self) -> StoreHealth: ...

    @property
    def files_removed(self) -> bool:
        """Whether its files were removed or replaced while in use: nothing is accepted until a person acts."""
        ...

    @property
    def clock_ahead_s(self) -> float | None:
        """How far the database's clock was ahead of ours when it was last looked at; None where there is only one."""
        ...

    async def open(self) -> None:
        """Connect and bring the schema up to date; refuse a newer one."""
        ...

    async def aclose(self) -> None: ...

    def on_ready(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` when jobs may have become ready, here or elsewhere. A hint. Returns what ends it."""
        ...

    def on_trip(self, tell: Callable[[float], None]) -> Callable[[], None]:
        """Hear how many seconds each operation took, waiting for its turn included."""
        ...

    def on_health(self, tell: Callable[[StoreHealth, str], None]) -> Callable[[], None]:
        """Hear when the store goes down or comes back."""
        ...
