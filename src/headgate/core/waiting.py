"""One lane's line of waiting tickets: tenants take turns, each tenant's oldest first, cancelled waiters leave at once."""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

from headgate.core.ticket import Place, Ticket

LOOKS_AT: Final = 11
"""So many waiters of one tenant are looked at, if the first does not fit."""
MAX_BYTES: Final = 256 * 2**20
_Entry = tuple[float, int, Ticket]


class WaitingBytes:
    """The bodies of all requests that are being read and of all calls that wait; one tenant may have half of the room."""

    __slots__ = ("_by_tenant", "_max_bytes", "_total")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._by_tenant: dict[str, int] = {}
        self._total = 0

    @property
    def counted(self) -> int:
        return self._total

    def have_room(self, tenant: str, size_bytes: int) -> bool:
        """An empty store takes any one body: its size is bounded elsewhere."""
        body = REQUEST_BODY.get()
        counted = 0 if body is None else body.size_bytes
        own, total = self._by_tenant.get(tenant, 0) - counted, self._total - counted
        fits = total + size_bytes <= self._max_bytes and own + size_bytes <= self._max_bytes // 2
        return fits or not total

    def add(self, tenant: str, size_bytes: int) -> None:
        """A call waits. If its request was counted until now, the call is counted in its place."""
        if (body := REQUEST_BODY.get()) is not None:
            body.end()
        self._count(tenant, size_bytes)

    def _count(self, tenant: str, size_bytes: int) -> None:
        self._total += size_bytes
        self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + size_bytes

    def remove(self, tenant: str, size_bytes: int) -> None:
        self._total -= size_bytes
        if (left := self._by_tenant[tenant] - size_bytes) > 0:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]


class RequestBody:
    """What has been counted for the request that is served in this context: from its head until it is over."""

    __slots__ = ("_bodies", "_tenant", "size_bytes")

    def __init__(self, bodies: WaitingBytes, tenant: str) -> None:
        self._bodies = bodies
        self._tenant = tenant
        self.size_bytes = 0
        REQUEST_BODY.set(self)

    def grow(self, size_bytes: int) -> bool:
        """Count so many bytes more, if there is room for them."""
        if not self._bodies.have_room(self._tenant, self.size_bytes + size_bytes):
            return False
        self._bodies._count(self._tenant, size_bytes)  # noqa: SLF001 - one of our own kind
        self.size_bytes += size_bytes
        return True

    def end(self) -> None:
        """Idempotent."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        if size_bytes:
            self._bodies.remove(self._tenant, size_bytes)


REQUEST_BODY: Final[ContextVar[RequestBody | None]] = ContextVar("REQUEST_BODY", default=None)


class Line:
    """Every operation is O(log n) or better. A waiter's age counts from its `since`, so who comes back keeps its place.

    `newest_first` turns each tenant's queue around; a line that is not `aged` cannot tell its oldest, and saves the cost.
    """

    __slots__ = (
        "_aged",
        "_ages",
        "_bodies",
        "_next_order",
        "_sign",
        "_tenants",
        "_waiting",
        "count",
        "newcomers",
    )

    def __init__(
        self, *, newest_first: bool = False, aged: bool = True, bodies: WaitingBytes | None = None
    ) -> None:
        self._bodies = WaitingBytes() if bodies is None else bodies
        self._sign = -1 if newest_first else 1
        self._aged = aged
        # Entries of those who have left stay in the heaps until they come up.
        self._tenants: OrderedDict[str, list[_Entry]] = OrderedDict()
        self._waiting: dict[str, int] = {}
        self._ages: list[_Entry] = []
        self.count = 0
        """How many wait. `len(line)` says the same; this costs a tenth and is asked at every grant."""
        self._next_order = 0
        self.newcomers = 0
        """Those who wait for the first time: only they count against the depth."""

    def __len__(self) -> int:
        return self.count

    def join(self, ticket: Ticket, *, returning: bool = False) -> None:
        self._next_order += 1
        ticket.order = self._next_order
        ticket.place = Place.WAITING
        ticket.returning = returning
        self.newcomers += not returning
        if ticket.size_bytes:
            self._bodies.add(ticket.tenant, ticket.size_bytes)
        queue = self._tenants.setdefault(ticket.tenant, [])
        heapq.heappush(queue, (self._sign * ticket.since, self._sign * ticket.order, ticket))
        self._waiting[ticket.tenant] = self._waiting.get(ticket.tenant, 0) + 1
        self.count += 1
        if self._aged:
            heapq.heappush(self._ages, (ticket.since, ticket.order, ticket))

    def leave(self, ticket: Ticket) -> None:
        if not ticket.order:
            raise KeyError("this ticket does not wait here")  # Counted out twice, it would hide a full queue.
        tenant = ticket.tenant
        left = self._waiting[tenant] - 1
        self.count -= 1
        self.newcomers -= not ticket.returning
        if ticket.size_bytes:
            self._bodies.remove(tenant, ticket.size_bytes)
        ticket.place = Place.OUTSIDE
        ticket.order = 0
        if not left:
            del self._tenants[tenant], self._waiting[tenant]
        else:
            self._waiting[tenant] = left
            self._tenants[tenant] = _swept(self._tenants[tenant], left)
        self._ages = _swept(self._ages, self.count)

    def take(self, ticket: Ticket) -> None:
        """Leave because it is granted: the next turn is another tenant's."""
        self.leave(ticket)
        if ticket.tenant in self._tenants:
            self._tenants.move_to_end(ticket.tenant)

    def head(self) -> Ticket | None:
        """Whose turn it is."""
        if not self.count:
            return None
        return _first(next(iter(self._tenants.values())))

    def in_turn(self) -> Iterator[Ticket]:
        """The waiters in the order of their turns: the first few of each tenant."""
        for queue in self._tenants.values():
            living = [entry for entry in queue if _waits(entry)]
            yield from (ticket for _, _, ticket in heapq.nsmallest(LOOKS_AT, living))

    def of(self, tenant: str) -> int:
        """How many of this tenant wait."""
        return self._waiting.get(tenant, 0)

    def last_of(self, tenant: str) -> Ticket:
        """The newcomer of this tenant whose turn would come last; any waiter if all have been admitted before."""
        living = [entry for entry in self._tenants[tenant] if _waits(entry)]
        return max(living, key=lambda entry: (not entry[2].returning, entry[:2]))[2]

    @property
    def tenants(self) -> Iterator[str]:
        return iter(self._waiting)

    def oldest(self) -> Ticket | None:
        return _first(self._ages)

    def turns_until_last_of(self, tenant: str) -> int:
        """About how many grants it takes until this tenant's last waiter has its own."""
        if self._sign < 0:
            return 1
        return min(self.count, self._waiting.get(tenant, 0) * len(self._tenants))

    def everyone(self) -> list[Ticket]:
        return [entry[2] for queue in self._tenants.values() for entry in sorted(queue) if _waits(entry)]


def _first(entries: list[_Entry]) -> Ticket | None:
    while entries:
        if _waits(entries[0]):
            return entries[0][2]
        heapq.heappop(entries)
    return None


def _swept(entries: list[_Entry], living: int) -> list[_Entry]:
    """Without those who have left, once they are many."""
    if len(entries) <= 2 * living + 64:
        return entries
    entries = [entry for entry in entries if _waits(entry)]
    heapq.heapify(entries)
    return entries


def _waits(entry: _Entry) -> bool:
    _, order, ticket = entry
    return ticket.order == abs(order)
