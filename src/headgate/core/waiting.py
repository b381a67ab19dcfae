"""One lane's line of waiting tickets: tenants take turns, cancelled waiters leave at once."""

import heapq
from collections import OrderedDict

from headgate.core.ticket import Place, Ticket


class Line:
    """Every operation is O(log n) or better.

    `newest_first` turns each tenant's queue around; a line that is not `aged` cannot tell its oldest, and saves the cost.
    """

    __slots__ = ("_aged", "_ages", "_newest_first", "_next_order", "_tenants", "count", "newcomers")

    def __init__(self, *, newest_first: bool = False, aged: bool = True) -> None:
        self._newest_first = newest_first
        self._aged = aged
        # Ordered dictionaries are linked lists: both ends and any member come out in O(1). A plain dict
        # would search through the holes that leaving waiters make.
        self._tenants: OrderedDict[str, OrderedDict[int, Ticket]] = OrderedDict()
        self._ages: list[tuple[float, int, Ticket]] = []
        self.count = 0
        """How many wait. `len(line)` says the same; this costs a tenth and is asked at every grant."""
        self._next_order = 0
        self.newcomers = 0
        """Those who wait for the first time: only they count against the depth."""

    def __len__(self) -> int:
        return self.count

    def join(self, ticket: Ticket, *, first: bool = False) -> None:
        """Wait; `first` goes to the head of the own tenant's queue (a caller that comes back)."""
        self._next_order += 1
        ticket.order = self._next_order
        ticket.place = Place.WAITING
        ticket.returning = first
        self.newcomers += not first
        queue = self._tenants.setdefault(ticket.tenant, OrderedDict())
        queue[ticket.order] = ticket
        if first and not self._newest_first:
            queue.move_to_end(ticket.order, last=False)
        self.count += 1
        if self._aged:
            heapq.heappush(self._ages, (ticket.since, ticket.order, ticket))

    def leave(self, ticket: Ticket) -> None:
        queue = self._tenants[ticket.tenant]
        del queue[ticket.order]
        if not queue:
            del self._tenants[ticket.tenant]
        self.count -= 1
        self.newcomers -= not ticket.returning
        ticket.place = Place.OUTSIDE
        if len(self._ages) > 2 * self.count + 64:
            self._ages = [entry for entry in self._ages if self._waits(entry)]
            heapq.heapify(self._ages)

    def take(self, ticket: Ticket) -> None:
        """Leave because it is granted: the next turn is another tenant's."""
        self.leave(ticket)
        if ticket.tenant in self._tenants:
            self._tenants.move_to_end(ticket.tenant)

    def head(self) -> Ticket | None:
        """Whose turn it is."""
        if not self.count:
            return None
        queue = next(iter(self._tenants.values()))
        return queue[next(reversed(queue) if self._newest_first else iter(queue))]

    def oldest(self) -> Ticket | None:
        while self._ages:
            if self._waits(self._ages[0]):
                return self._ages[0][2]
            heapq.heappop(self._ages)
        return None

    def turns_until_last_of(self, tenant: str) -> int:
        """About how many grants it takes until this tenant's last waiter has its own."""
        if self._newest_first:
            return 1
        return min(self.count, len(self._tenants.get(tenant, ())) * len(self._tenants))

    def everyone(self) -> list[Ticket]:
        return [ticket for queue in self._tenants.values() for ticket in queue.values()]

    @staticmethod
    def _waits(entry: tuple[float, int, Ticket]) -> bool:
        _, order, ticket = entry
        return ticket.place is Place.WAITING and ticket.order == order
