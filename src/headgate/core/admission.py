"""Who may go through an upstream's gate, and when. Decides only: `calls.gate` holds the futures.

A grant needs a free slot, a pacing token and an upstream that takes calls at one instant: a waiting call holds no slot.
`turns` says whose turn it is, `intake` what the upstream takes.
"""

import math
from typing import Final

from headgate.core.call import Lane
from headgate.core.drain import Drain
from headgate.core.forecast import Forecast
from headgate.core.gate_rules import BATCH_DEPTH_SHARE, SHORT_WAIT_S, Door, GateRules, GateStatus, Refusal
from headgate.core.hold import Holds
from headgate.core.intake import Intake
from headgate.core.pacing import Pacing
from headgate.core.shares import Shares
from headgate.core.start import Outcome
from headgate.core.ticket import CHAT, Place, Ticket
from headgate.core.turns import Turns
from headgate.core.waiting import WaitingBytes

MAX_OVERTAKEN: Final = 10
"""So many calls may go before one that does not fit into the tokens that are left."""


class Admission:
    """The state of one gate. Slots: free + held + in transit = total, always."""

    __slots__ = (
        "_batch_holders",
        "_batch_in_use",
        "_bodies",
        "displaced",
        "drain",
        "forecast",
        "held",
        "holds",
        "in_transit",
        "intake",
        "late",
        "pacing",
        "rules",
        "shares",
        "shut",
        "slots",
        "turns",
    )

    def __init__(self, rules: GateRules, bodies: WaitingBytes | None = None) -> None:
        self.rules = rules
        self.slots = rules.slots
        self.holds = Holds()
        self.intake = Intake(
            rules.slots, learns=rules.adaptive, breaks=rules.breaker, longest_hint_s=rules.longest_pause_s
        )
        self.pacing = Pacing(rules.pacing)
        self.drain = Drain()
        self._bodies = WaitingBytes() if bodies is None else bodies
        self.turns = Turns(rules, self._bodies)
        self.held = 0
        self.in_transit = 0
        self.shut: Door | None = None
        """Every call is rejected: the process shuts down, or an operator paused the model."""
        self.late: list[Ticket] = []
        """Waiters that can no longer be answered in time; the gate takes and clears them."""
        self.displaced: list[Ticket] = []
        """Waiters that made room in a full queue for a tenant that had less of it; the gate takes and clears them."""
        self._batch_in_use = 0
        self._batch_holders: dict[Ticket, None] = {}  # Kept only where preemption is on.
        self.shares = Shares(rules.slots)
        self.forecast = Forecast(rules.slots, self.intake, self.pacing, self.drain, self.turns)

    # ---- At the door ----------------------------------------------------------------------------

    def walks_in(self, ticket: Ticket, now: float) -> bool:
        """The path of an idle gate: nobody waits and nothing stands in the way, so the slot is held at once."""
        if (
            self.held + self.in_transit >= self.slots
            or self.holds.concern(ticket.endpoint, ticket.tenant)
            or self.shut is not None
            or self.pacing.active
            or self.turns.interactive.count
            or self.turns.batch.count
            or self.intake.next_at(now, ticket.tokens, ticket.tenant) > now
            or (
                self.shares.used.get(ticket.tenant, 0) >= self.slots // 2
                and self.shares.opens_at(ticket.tenant, now) > now
            )
        ):
            return False
        if ticket.lane is Lane.BATCH:
            if not self._batch_may_go:
                return False
            self._count_batch(ticket)
        ticket.place = Place.HOLDING
        ticket.granted_at = now
        ticket.start = self.intake.start(now, ticket.tokens, ticket.tenant)
        self.held += 1
        self.shares.take(ticket.tenant, now, self.held + self.in_transit)
        return True

    def full(self, ticket: Ticket) -> bool:
        """No slot is free and there is no room to wait: this newcomer would be refused."""
        return (
            self.held + self.in_transit >= self.slots
            and self._crowded(ticket.lane, ticket.tenant, 1)
            and self.turns.victim_for(ticket) is None
        )

    def arrive(self, ticket: Ticket, now: float, *, returning: bool = False) -> Refusal | None:
        """Let a caller in to wait, or refuse it. One that was admitted before does not count against the depth."""
        if self.shut is not None:
            return Refusal(self.shut, None)
        if (hold := self.holds.kept_out(ticket.endpoint, ticket.tenant, now)) is not None:
            return Refusal(Door.MISCONFIGURED, max(now, hold.until or now) - now)
        if not self._waits_out(ticket):
            opens_at = self.intake.next_at(now, ticket.tokens, ticket.tenant)
            # The even gaps under a limit are no reason to go away.
            closed = self.intake.closed_to(ticket.tenant) is not None
            if opens_at > (now if closed else now + SHORT_WAIT_S):
                return self.refusal_of_closed(ticket.tenant, opens_at, now)
        if ticket.size_bytes and not self._bodies.have_room(ticket.tenant, ticket.size_bytes):
            return Refusal(Door.FULL, self.forecast.rejected(ticket.lane, now, ticket.tenant))
        self.turns.line(ticket.lane).join(ticket, returning=returning)
        self._enter_held(ticket)
        return None

    def turn_away(self, ticket: Ticket, now: float) -> Refusal | None:
        """Reject a newcomer that could not be granted at once if there is no time to wait, or no room."""
        door = Door.FULL
        if self.forecast.answered_at(ticket, now) > ticket.deadline:
            door = Door.DEADLINE
        elif not self._crowded(ticket.lane, ticket.tenant, 0):
            return None
        elif (victim := self.turns.victim_for(ticket)) is not None:
            self.withdraw(victim)
            self.displaced.append(victim)
            return None
        self.withdraw(ticket)
        return Refusal(door, self.forecast.rejected(ticket.lane, now, ticket.tenant))

    def refusal_of_closed(self, tenant: str, opens_at: float, now: float) -> Refusal:
        """To those who do not wait until the upstream takes calls again."""
        closed = self.intake.closed_to(tenant)
        door = Door.UNHEALTHY if closed is not None and closed.failing else Door.PAUSED
        return Refusal(door, opens_at - now if math.isfinite(opens_at) else 0.0)

    def _waits_out(self, ticket: Ticket) -> bool:
        closed = self.intake.closed_to(ticket.tenant)
        return ticket.patient and (closed is None or ticket.deadline > (closed.until or 0.0))

    def _crowded(self, lane: Lane, tenant: str, more: int) -> bool:
        """Whether so many more newcomers would be too many, in all or in the batch lane."""
        depth = self.rules.depth
        if not depth:
            return False
        if self.intake.closed_to(tenant) is None and self.intake.limit_of(tenant) is None:
            more -= self.free  # Those who only wait for their turn to start take no place.
        most_batch = max(1, int(depth * BATCH_DEPTH_SHARE))
        return self._newcomers + more > depth or (
            lane is Lane.BATCH and self.turns.batch.newcomers + more > most_batch
        )

    # ---- Grants ---------------------------------------------------------------------------------

    def next(self, now: float) -> Ticket | None:
        """Grant one waiter, if anybody may go now. It is in transit until it takes over."""
        if self.held + self.in_transit >= self.slots:
            return None
        ticket, starts_at, overtaken = self._choose(now)
        if ticket is None or starts_at > now:
            return None
        if overtaken is not None:
            overtaken.overtaken += 1
        self._grant(ticket, now)
        return ticket

    def look_again_at(self, now: float) -> float | None:
        """When a grant may become possible without anybody leaving; None when only that can help."""
        if not self.waiting:
            return None
        if self.held + self.in_transit >= self.slots:
            if not (self.rules.preempt and self.turns.interactive.count):
                return None
            # Until then another's slot would not help.
            first = self.turns.interactive.head()
            opens_at = now if first is None else now + self.forecast.shut_s(now, first.tenant)
            return opens_at if opens_at > now else None
        _, starts_at, _ = self._choose(now)
        # A promotion may put a smaller call in front.
        promoted_at = self.turns.promotes_at()
        if promoted_at is not None and promoted_at > now:
            starts_at = min(starts_at, promoted_at)
        return None if math.isinf(starts_at) else starts_at

    def _starts_at(self, ticket: Ticket, now: float) -> float:
        """When the upstream, the pacing and its tenant's share let this one start."""
        starts_at = self.intake.next_at(now, ticket.tokens, ticket.tenant)
        if self.pacing.active:
            starts_at = max(starts_at, self.pacing.next_at(now, ticket.tokens, ticket.tenant))
        return max(starts_at, self.shares.opens_at(ticket.tenant, now))

    def _choose(self, now: float) -> tuple[Ticket | None, float, Ticket | None]:
        """Who goes next, when, and whom it overtakes because that one does not fit.

        A ticket that can no longer be answered in time is removed: its call would be for nothing.
        """
        while True:
            first = self.turns.next(now, batch_may_go=self._batch_may_go)
            if first is None:
                return None, math.inf, None
            # The last one goes in any case: else nothing would be measured any more.
            if self._in_time(first, now) or self.waiting == 1:
                break
            self.withdraw(first)
            self.late.append(first)
        starts_at = self._starts_at(first, now)
        others_wait = self.waiting > self.turns.waiting_of(first.tenant)
        greedy = others_wait and self.shares.has_half(first.tenant)
        if starts_at <= now and not greedy:
            return first, now, None
        if not others_wait and self.intake.next_at(now, 0, first.tenant) > now:
            return first, starts_at, None  # Not even a small call of this tenant could go.
        return self._choose_other(first, starts_at, now, greedy=greedy)

    def _choose_other(
        self, first: Ticket, starts_at: float, now: float, *, greedy: bool
    ) -> tuple[Ticket, float, Ticket | None]:
        """Who may go before the one whose turn it is: that one does not fit, is closed out, or its tenant has its share."""
        opens_at, fits_at = self._opens_at(now, 0), self._opens_at(now, first.tokens)
        if opens_at > now:
            return first, opens_at, None
        too_large = fits_at > now
        if too_large and first.overtaken >= MAX_OVERTAKEN:
            return first, starts_at, None
        earliest = starts_at
        for other in self.turns.others(now, batch_may_go=self._batch_may_go):
            if (greedy and other.tenant == first.tenant) or not self._in_time(other, now):
                continue
            other_at = self._starts_at(other, now)
            if other_at <= now:
                return other, now, first if too_large else None
            earliest = min(earliest, other_at)
        return first, earliest, None

    def _opens_at(self, now: float, tokens: float) -> float:
        """When a call of this size could start, whoever made it."""
        opens_at = self.intake.opens_at(now, tokens)
        return max(opens_at, self.pacing.next_at(now, int(tokens))) if self.pacing.active else opens_at

    def _in_time(self, ticket: Ticket, now: float) -> bool:
        closed = self.intake.closed_to(ticket.tenant)
        probe_s = 0.0 if closed is None else closed.probe_needs_s
        needed_s = max(self.drain.nearly_all_answer_s, probe_s)
        return now + needed_s < ticket.deadline

    def _grant(self, ticket: Ticket, now: float) -> None:
        if self.turns.batch.count:
            self.drain.granted_while_batch_waits(to_batch=ticket.lane is Lane.BATCH)
        self.turns.granted(ticket, now)
        ticket.place = Place.IN_TRANSIT
        ticket.granted_at = now
        ticket.start = self.intake.start(now, ticket.tokens, ticket.tenant)
        self.in_transit += 1
        self.shares.take(ticket.tenant, now, self.held + self.in_transit)
        if ticket.lane is Lane.BATCH:
            self._count_batch(ticket)
        if self.pacing.active:
            ticket.reservation = self.pacing.start(now, ticket.tokens, ticket.tenant)

    def take_over(self, ticket: Ticket) -> None:
        """The waiter woke up and has its slot."""
        ticket.place = Place.HOLDING
        self.in_transit -= 1
        self.held += 1

    def renew(self, ticket: Ticket, now: float) -> bool:
        """Start another call with the slot in hand, if nothing else stands in the way."""
        if ticket.place is not Place.HOLDING or self._held(ticket.endpoint, ticket.tenant, now):
            return False
        if self.intake.next_at(now, ticket.tokens, ticket.tenant) > now:
            return False
        if self.pacing.active:
            if self.pacing.next_at(now, ticket.tokens, ticket.tenant) > now:
                return False
            ticket.reservation = self.pacing.start(now, ticket.tokens, ticket.tenant)
        ticket.start = self.intake.start(now, ticket.tokens, ticket.tenant)
        self._enter_held(ticket)
        return True

    def _enter_held(self, ticket: Ticket) -> None:
        endpoint, tenant = ticket.endpoint, ticket.tenant
        ticket.probe = self.holds.concern(endpoint, tenant) and self.holds.enter(endpoint, tenant)

    # ---- Leaving --------------------------------------------------------------------------------

    def withdraw(self, ticket: Ticket) -> None:
        """A waiter gives up; it stops counting at once."""
        self.turns.line(ticket.lane).leave(ticket)
        self._probe_lost(ticket)

    def give_back(self, ticket: Ticket, now: float) -> None:
        """The slot is free again, whether its ticket held it or never woke up to take it."""
        if ticket.place is Place.HOLDING:
            self.held -= 1
        else:
            self.in_transit -= 1
            self._undo_pacing(ticket)
        self.shares.give_back(ticket.tenant)
        if ticket.lane is Lane.BATCH:
            self._batch_in_use -= 1
            self._batch_holders.pop(ticket, None)
        ticket.place = Place.OUTSIDE
        ticket.protected = False
        if ticket.start is not None or ticket.probe:
            self.put_down(ticket, now)

    def put_down(self, ticket: Ticket, now: float) -> None:
        """The granted call was not made, or its result is unknown: it must not keep others out as a probe."""
        if ticket.start is not None:
            self.ended(ticket, now, Outcome.UNKNOWN)
        self._probe_lost(ticket)

    def take_up(self, ticket: Ticket, now: float) -> bool:
        """A holder that has idled since its grant calls now: it starts now, with the tokens that it needs now."""
        self._undo_pacing(ticket)
        return self.renew(ticket, now)

    def _undo_pacing(self, ticket: Ticket) -> None:
        if ticket.reservation is not None:
            self.pacing.undo(ticket.reservation)
            ticket.reservation = None

    def ended(
        self, ticket: Ticket, now: float, outcome: Outcome, hint_s: float = 0.0, *, served: bool = False
    ) -> None:
        """The call of this ticket is over. `served`: with an answer, so that it says how long answers take."""
        start, ticket.start = ticket.start, None
        if start is None:
            return
        if ticket.reservation is not None:
            self.pacing.ended(ticket.reservation)
        if served:
            self.drain.answered(now - start.at, now)
        self.intake.end(now, start, outcome, hint_s)

    def _probe_lost(self, ticket: Ticket) -> None:
        """A probe that left without a result must not keep everybody out."""
        if ticket.probe:
            ticket.probe = False
            self.holds.put_probe_down(ticket.endpoint, ticket.tenant)

    def leave_closed(self) -> tuple[list[Ticket], list[Ticket]]:
        """The upstream closed: who does not wait for it leaves, and who could go elsewhere leaves to choose again."""
        refused: list[Ticket] = []
        moving: list[Ticket] = []
        for ticket in self.turns.everyone():
            if self.intake.closed_to(ticket.tenant) is not None and (
                ticket.movable or not self._waits_out(ticket)
            ):
                self.withdraw(ticket)
                (moving if ticket.movable else refused).append(ticket)
        return refused, moving

    def evict(self) -> list[Ticket]:
        """Remove all waiters: the gate closes."""
        leaving = self.turns.everyone()
        for ticket in leaving:
            self.withdraw(ticket)
        return leaving

    def held_back(self, now: float) -> list[tuple[Ticket, float]]:
        """The waiters that a hold keeps out leave; with the time of its next probe."""
        leaving = []
        for ticket in self.turns.everyone():
            if (hold := self.holds.kept_out(ticket.endpoint, ticket.tenant, now)) is not None:
                self.withdraw(ticket)
                leaving.append((ticket, max(now, hold.until or now)))
        return leaving

    def victim(self, now: float) -> Ticket | None:
        """The batch holder that should give way to a waiting interactive caller, if preemption is on.

        First one asleep between attempts; then the call that began last. A stream that has started never goes.
        """
        leaving = sum(ticket.preempted for ticket in self._batch_holders)
        if self.free + leaving >= self.turns.interactive.count:
            return None
        first = self.turns.interactive.head()
        if first is not None and self.forecast.shut_s(now, first.tenant) > 0:
            return None  # A free slot would not help the one who waits.
        candidates = [
            ticket
            for ticket in self._batch_holders
            if (ticket.asleep or ticket.calling)
            and not (ticket.preempted or ticket.streaming or ticket.protected)
        ]
        return max(candidates, key=lambda ticket: (ticket.asleep, ticket.granted_at), default=None)

    def _count_batch(self, ticket: Ticket) -> None:
        self._batch_in_use += 1
        if self.rules.preempt:
            ticket.preempted = False
            self._batch_holders[ticket] = None

    # ---- Numbers ----------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self.turns.interactive.count + self.turns.batch.count

    @property
    def _newcomers(self) -> int:
        """The waiters that count against the depth."""
        return self.turns.interactive.newcomers + self.turns.batch.newcomers

    @property
    def _batch_may_go(self) -> bool:
        return self._batch_in_use < max(1, self.slots - self.rules.reserved_slots)

    @property
    def in_use(self) -> int:
        return self.held + self.in_transit

    @property
    def free(self) -> int:
        return self.slots - self.held - self.in_transit

    def status(self, now: float, tenant: str = "local") -> GateStatus:
        """`accepting`: a call of this tenant would be admitted now."""
        closed = self.intake.closed_to(tenant)
        takes_calls = self.forecast.shut_s(now, tenant) <= 0 and (
            closed is None or self.intake.next_at(now, 0, tenant) <= now
        )
        at_once = self.free > 0 and not self.turns.interactive.count and takes_calls
        room = at_once or not self.rules.depth or self._newcomers < self.rules.depth
        return GateStatus(
            rt_queue=self.turns.interactive.count,
            be_queue=self.turns.batch.count,
            total_slots=self.slots,
            available_slots=self.free,
            accepting=room and self.shut is None and not self._held(CHAT, tenant, now),
            max_queue_depth=self.rules.depth,
        )

    def answers_in_s(self, ticket: Ticket, now: float, usual_s: float, later_s: float) -> float:
        """When a call that comes in `later_s` has its answer; never where it would not be let in."""
        if self.shut is not None or self._held(ticket.endpoint, ticket.tenant, now):
            return math.inf
        queues = self.waiting > 0 or self.free <= 0
        return self.forecast.answers_in_s(ticket, now, usual_s, later_s, queues=queues)

    def _held(self, endpoint: str, tenant: str, now: float) -> bool:
        holds = self.holds
        return holds.concern(endpoint, tenant) and holds.blocks(endpoint, tenant, now) is not None
