"""What all connections of one server share."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from headgate.server.http.answer import Dates
from headgate.server.http.exchange import Exchange, Serve
from headgate.server.http.head import RawHeader
from headgate.server.http.limits import HttpLimits
from headgate.server.http.refusals import Refuse, Refused, refusal

if TYPE_CHECKING:
    from headgate.server.http.connection import Connection


class Door(Protocol):
    """Whether clients are asked for keys at all. Where they are not, there are no strangers."""

    @property
    def has_keys(self) -> bool: ...


class Open:
    """Nobody is asked for a key."""

    has_keys = False


TenantOf: TypeAlias = Callable[[Sequence[RawHeader]], str | None]
"""Whose valid key a request with these headers shows, or None."""


class Share:
    """The connections of one tenant."""

    __slots__ = ("count", "idle", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.count = 0
        self.idle: dict[Connection, None] = {}
        """Those that are served nothing now: the longest idle first."""


class Front:
    """The application, the limits, and who is here."""

    __slots__ = (
        "_quiet",
        "_refuse",
        "connections",
        "dates",
        "door",
        "draining",
        "known",
        "limits",
        "loop",
        "max_connections",
        "running",
        "serve",
        "shares",
        "strangers",
        "tenant_of",
    )

    def __init__(
        self,
        serve: Serve,
        limits: HttpLimits,
        refuse: Refuse,
        loop: asyncio.AbstractEventLoop,
        door: Door,
        tenant_of: TenantOf,
    ) -> None:
        self.serve = serve
        self.limits = limits
        self.loop = loop
        self.door = door
        self.tenant_of = tenant_of
        self.dates = Dates()
        self.draining = False
        self.connections: set[Connection] = set()
        self.running: set[Exchange] = set()
        self.known = 0
        """How many connections have shown a valid key."""
        self.shares: dict[str, Share] = {}
        """Those, by tenant."""
        self.strangers: dict[Connection, None] = {}
        """Those that have not, where keys exist, and are served nothing now: the longest idle first."""
        self.max_connections = sys.maxsize
        self._refuse = refuse
        self._quiet = asyncio.Event()

    def refusal(self, refused: Refused) -> bytes:
        return refusal(refused, self._refuse)

    def has_room_for_stranger(self) -> bool:
        """Whether a client without a key, which is here already, may be served."""
        while len(self.connections) - self.known > self._room:
            if not _close_first(self.strangers):
                return False
        return True

    def make_room(self) -> bool:
        """Close the connection without a key that has been idle longest, or one of a tenant that has more than half."""
        half = self.max_connections // 2
        largest = next((share.idle for share in self.shares.values() if share.count > half), {})
        return _close_first(self.strangers) or _close_first(largest)

    def join(self, tenant: str) -> Share | None:
        """Count a connection that has shown this tenant's key; None where it may have no more.

        What one tenant has beyond half it never takes from the last tenth. There its longest idle connection is closed.
        """
        share = self.shares.get(tenant) or Share(tenant)
        is_scarce = len(self.connections) - len(self.strangers) > self._room
        if share.count >= max(1, self.max_connections // 2) and is_scarce and not _close_first(share.idle):
            return None
        self.shares[tenant] = share
        share.count += 1
        self.known += 1
        return share

    def leave(self, share: Share) -> None:
        share.count -= 1
        self.known -= 1
        if not share.count:
            del self.shares[share.tenant]

    @property
    def _room(self) -> int:
        """All but the last tenth."""
        return self.max_connections - self.max_connections // 10

    def left(self) -> None:
        """A connection or an exchange has ended."""
        if not self.connections and not self.running:
            self._quiet.set()

    async def quiet(self, within_s: float) -> bool:
        """Wait until nobody is here any more, but not longer than this."""
        if self.connections or self.running:
            self._quiet.clear()
        else:
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True


def _close_first(idle: Mapping["Connection", None]) -> bool:
    """False where there is none."""
    first = next(iter(idle), None)
    if first is not None:
        first.dismiss()
    return first is not None
