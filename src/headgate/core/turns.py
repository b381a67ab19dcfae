"""Whose turn it is at a gate: interactive first, batch never starved, tenants taking turns.

The rules, in the order they are asked:

1. Batch never holds more than max(1, slots − reserved) slots; at that bound only interactive may go.
2. With no interactive caller waiting, batch goes.
3. While both wait, batch gets at least one grant in five.
4. A batch waiter older than `promote_after_s` goes ahead of younger interactive ones, at most every second grant.
5. Else interactive goes.
"""

from collections.abc import Iterator
from typing import Final

from headgate.core.call import Lane
from headgate.core.gate_rules import GateRules, Order
from headgate.core.ticket import Ticket
from headgate.core.waiting import Line, WaitingBytes

BATCH_TURN: Final = 5


class Turns:
    """The two lines of a gate, and what is remembered of the last grants."""

    __slots__ = ("_grants_without_batch", "_last_was_promotion", "_rules", "batch", "interactive")

    def __init__(self, rules: GateRules, bodies: WaitingBytes | None = None) -> None:
        self._rules = rules
        newest_first = rules.interactive_order is Order.LIFO
        self.interactive = Line(newest_first=newest_first, aged=False, bodies=bodies)
        self.batch = Line(bodies=bodies)
        self._grants_without_batch = 0
        self._last_was_promotion = False

    def line(self, lane: Lane) -> Line:
        return self.batch if lane is Lane.BATCH else self.interactive

    def next(self, now: float, *, batch_may_go: bool) -> Ticket | None:
        """Who goes next if a slot is free; None when nobody who waits may have it."""
        interactive = self.interactive.head()
        batch = self.batch.head()
        if batch is None or not batch_may_go:
            return interactive
        if interactive is None:
            return batch
        if self._grants_without_batch >= BATCH_TURN - 1:
            return self._promoted(now) or batch
        promoted = None if self._last_was_promotion else self._promoted(now)
        return promoted if promoted is not None and promoted.since < interactive.since else interactive

    def others(self, now: float, *, batch_may_go: bool) -> Iterator[Ticket]:
        """Who may go before the one whose turn it is, if that one cannot go yet: first those of its own lane."""
        lines = (self.interactive, self.batch)
        first = self.next(now, batch_may_go=batch_may_go)
        if first is not None and first.lane is Lane.BATCH:
            lines = (self.batch, self.interactive)
        for line in lines:
            if line is not self.batch or batch_may_go:
                yield from (ticket for ticket in line.in_turn() if ticket is not first)

    def waiting_of(self, tenant: str) -> int:
        return self.interactive.of(tenant) + self.batch.of(tenant)

    def victim_for(self, newcomer: Ticket) -> Ticket | None:
        """Who leaves a full queue for a newcomer: the last waiter of the tenant with the most, if the newcomer's has fewer."""
        tenants = {*self.interactive.tenants, *self.batch.tenants}
        largest = max(tenants, key=self.waiting_of, default=None)
        # The newcomer is among its tenant's already.
        if largest is None or self.waiting_of(largest) <= self.waiting_of(newcomer.tenant):
            return None
        # In a full batch lane only batch makes room for batch.
        lines = (self.batch,) if newcomer.lane is Lane.BATCH else (self.batch, self.interactive)
        last = (line.last_of(largest) for line in lines if line.of(largest))
        # Those who come back take no place, so they cannot give one up.
        return next((ticket for ticket in last if not ticket.returning), None)

    def granted(self, ticket: Ticket, now: float) -> None:
        """Take it out of its line and remember the grant."""
        to_batch = ticket.lane is Lane.BATCH
        interactive_waits = self.interactive.count > 0
        if to_batch:
            self._grants_without_batch = 0
            ticket.protected = interactive_waits
        elif self.batch.count:
            self._grants_without_batch += 1
        self._last_was_promotion = to_batch and interactive_waits and ticket is self._promoted(now)
        self.line(ticket.lane).take(ticket)

    def promotes_at(self) -> float | None:
        """When the oldest batch waiter is promoted."""
        oldest = self.batch.oldest()
        return None if oldest is None else oldest.since + self._rules.promote_after_s

    def grants_until(self, newcomer: Ticket) -> int:
        """About how many grants it takes until the one who came last has its own; for batch only batch's."""
        turns = self.line(newcomer.lane).turns_until_last_of(newcomer.tenant)
        batch_between = newcomer.lane is Lane.INTERACTIVE and self.batch.count > 0
        return turns + (turns // (BATCH_TURN - 1) if batch_between else 0)

    def everyone(self) -> list[Ticket]:
        return self.interactive.everyone() + self.batch.everyone()

    def _promoted(self, now: float) -> Ticket | None:
        oldest = self.batch.oldest()
        return oldest if oldest is not None and now >= oldest.since + self._rules.promote_after_s else None
