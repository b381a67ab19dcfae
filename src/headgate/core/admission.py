"""Who may go through an upstream's gate, and when. Decides only: `dispatch.gate` holds the futures.

A grant needs a free slot, a pacing token, no pause and a healthy upstream at one instant; nobody holds a slot
while waiting for pacing. `turns` says whose turn it is.
"""

import math
from typing import Final

from headgate.core.drain import ENOUGH_SAMPLES, Drain
from headgate.core.failures import FailureKind
from headgate.core.gate_rules import Door, GateRules, GateStatus, Refusal
from headgate.core.health import Health
from headgate.core.messages import Lane
from headgate.core.pacing import Pacing
from headgate.core.pause import Pause
from headgate.core.ticket import Place, Ticket
from headgate.core.turns import Turns

BATCH_DEPTH_SHARE: Final = 0.75


class Admission:
    """The state of one gate. Slots: free + held + in transit = total, always."""

    __slots__ = (
        "_batch_holders",
        "_batch_in_use",
        "_pause_probe_out",
        "drain",
        "health",
        "held",
        "in_transit",
        "pacing",
        "pause",
        "rules",
        "shut",
        "slots",
        "turns",
    )

    def __init__(self, rules: GateRules, health: Health | None = None) -> None:
        self.rules = rules
        self.slots = rules.slots
        self.health = health or Health()
        self.pacing = Pacing(rules.pacing)
        self.pause = Pause()
        self.drain = Drain()
        self.turns = Turns(rules)
        self.held = 0
        self.in_transit = 0
        self.shut: Door | None = None
        """Nobody comes in whatever the rest says: the process is going away, or an operator paused the model."""
        self._batch_in_use = 0
        self._pause_probe_out = False
        self._batch_holders: dict[Ticket, None] = {}
        """Kept only where preemption is on."""

    # ---- At the door ----------------------------------------------------------------------------

    def walks_in(self, ticket: Ticket, now: float) -> bool:
        """The path of an idle gate: nobody waits and nothing stands in the way, so the slot is held at once."""
        if (
            self.held + self.in_transit >= self.slots
            or not self.health.clear
            or self.shut is not None
            or self.pacing.active
            or self.turns.interactive.count
            or self.turns.batch.count
            or not self.pause.over(now)
        ):
            return False
        if ticket.lane is Lane.BATCH:
            if not self._batch_may_go:
                return False
            self._batch_in_use += 1
            self._note_batch_holder(ticket)
        ticket.place = Place.HOLDING
        ticket.granted_at = now
        self.held += 1
        return True

    def full(self, lane: Lane) -> bool:
        """No slot is free and there is no room to wait: whoever comes now in this lane will be refused."""
        depth = self.rules.depth
        if not depth or self.held + self.in_transit < self.slots:
            return False
        most_batch = max(1, int(depth * BATCH_DEPTH_SHARE))
        return self._counted >= depth or (lane is Lane.BATCH and self.turns.batch.newcomers >= most_batch)

    def arrive(self, ticket: Ticket, now: float, *, returning: bool = False) -> Refusal | None:
        """Let a caller in to wait, or refuse it.

        One that returns (from a long wait, or preempted) goes to the head of its tenant's queue.
        """
        if (refusal := self._barred(ticket, now)) is not None:
            return refusal
        self.turns.line(ticket.lane).join(ticket, first=returning)
        ticket.probe = self.health.enter()
        return None

    def turn_away(self, ticket: Ticket, now: float) -> Refusal | None:
        """Asked of a newcomer that could not be granted at once: is there room to wait, and time?

        Those who return are not asked: they were admitted once.
        """
        door = self._no_room(ticket, now)
        if door is None:
            return None
        self.withdraw(ticket)
        return Refusal(door, self.drained_in_s(ticket.lane, now))

    def _barred(self, ticket: Ticket, now: float) -> Refusal | None:
        if self.shut is not None:
            return Refusal(self.shut, None)
        if (block := self.health.block(now)) is not None:
            door = Door.MISCONFIGURED if block.kind is FailureKind.MISCONFIGURED else Door.UNHEALTHY
            return Refusal(door, block.until - now)
        if now < self.pause.until and not self._waits_out(ticket):
            return Refusal(Door.PAUSED, self.pause.until - now)
        return None

    def _no_room(self, ticket: Ticket, now: float) -> Door | None:
        # The ticket stands in its line already, so every count here includes itself.
        depth = self.rules.depth
        if depth and self._counted > depth:
            return Door.FULL
        if (
            depth
            and ticket.lane is Lane.BATCH
            and self.turns.batch.newcomers > max(1, int(depth * BATCH_DEPTH_SHARE))
        ):
            return Door.FULL
        too_late = now + self._expected_wait_s(ticket, now) + self.drain.hold_s > ticket.deadline
        return Door.DEADLINE if too_late else None

    def _waits_out(self, ticket: Ticket) -> bool:
        return ticket.patient and ticket.deadline > self.pause.until

    # ---- Grants ---------------------------------------------------------------------------------

    def next(self, now: float) -> Ticket | None:
        """Grant one waiter, if anybody may go now. It is in transit until it takes over."""
        if self.held + self.in_transit >= self.slots or self._free(now) <= 0:
            return None
        ticket = self._choose(now)
        if ticket is None or (self.pacing.active and self.pacing.next_at(now, ticket.tokens) > now):
            return None
        self._grant(ticket, now)
        return ticket

    def look_again_at(self, now: float) -> float | None:
        """When a grant may become possible without anybody leaving; None when only that can help."""
        if not self.waiting:
            return None
        if self.held + self.in_transit >= self.slots:
            return self._preempts_at(now)
        if self._free(now) <= 0:
            return self.pause.next_change_at(now, self.slots)
        ticket = self._choose(now)
        paced_at = math.inf if ticket is None else self.pacing.next_at(now, ticket.tokens)
        # A promotion may put a smaller call in front.
        promoted_at = self.turns.promotes_at()
        if promoted_at is not None and promoted_at > now:
            return min(paced_at, promoted_at)
        return None if ticket is None else paced_at

    def _preempts_at(self, now: float) -> float | None:
        """All slots are taken: when somebody who waits could at last make use of another's."""
        if not (self.rules.preempt and self.turns.interactive.count):
            return None
        opens_at = now + self._shut_s(now)
        return opens_at if opens_at > now else None

    def _choose(self, now: float) -> Ticket | None:
        return self.turns.next(now, batch_may_go=self._batch_may_go)

    def _grant(self, ticket: Ticket, now: float) -> None:
        if self.turns.batch.count:
            self.drain.granted_while_batch_waits(to_batch=ticket.lane is Lane.BATCH)
        self.turns.granted(ticket, now)
        ticket.place = Place.IN_TRANSIT
        ticket.granted_at = now
        ticket.ends_pause = self.pause.probing
        self._pause_probe_out = self._pause_probe_out or ticket.ends_pause
        self.in_transit += 1
        if ticket.lane is Lane.BATCH:
            self._batch_in_use += 1
            self._note_batch_holder(ticket)
        if self.pacing.active:
            ticket.reservation = self.pacing.start(now, ticket.tokens)

    def take_over(self, ticket: Ticket) -> None:
        """The waiter woke up and has its slot."""
        ticket.place = Place.HOLDING
        self.in_transit -= 1
        self.held += 1

    def renew(self, ticket: Ticket, now: float) -> bool:
        """A holder wants to call again: may it start now, slot in hand? Needs a pacing token like anybody."""
        if ticket.place is not Place.HOLDING or self.health.block(now) is not None:
            return False
        if self.in_use > self.pause.slots(now, self.slots) and not self.pause.over(now):
            return False
        if self.pacing.active:
            if self.pacing.next_at(now, ticket.tokens) > now:
                return False
            ticket.reservation = self.pacing.start(now, ticket.tokens)
        ticket.probe = self.health.enter()
        return True

    # ---- Leaving --------------------------------------------------------------------------------

    def withdraw(self, ticket: Ticket) -> None:
        """A waiter gives up; it stops counting at once."""
        self.turns.line(ticket.lane).leave(ticket)
        self._probe_lost(ticket)

    def give_back(self, ticket: Ticket, now: float) -> None:
        """The slot is free again, whether its ticket held it or never woke up to take it."""
        if ticket.place is Place.HOLDING:
            self.held -= 1
            self.drain.held(now - ticket.granted_at)
        else:
            self.in_transit -= 1
            self._undo_start(ticket)
        if ticket.lane is Lane.BATCH:
            self._batch_in_use -= 1
            self._batch_holders.pop(ticket, None)
        ticket.place = Place.OUTSIDE
        ticket.protected = False
        if ticket.ends_pause:
            ticket.ends_pause = self._pause_probe_out = False
        if ticket.probe:
            self._probe_lost(ticket)

    def _undo_start(self, ticket: Ticket) -> None:
        if ticket.reservation is not None:
            self.pacing.undo(ticket.reservation)
            ticket.reservation = None

    def probe_again(self, ticket: Ticket, now: float) -> None:
        """A holder is about to call: it is the probe if one is wanted. While it idles it must not be."""
        self._probe_lost(ticket)
        if self.health.block(now) is None:
            ticket.probe = self.health.enter()

    def put_probe_down(self, ticket: Ticket) -> None:
        self._probe_lost(ticket)

    def _probe_lost(self, ticket: Ticket) -> None:
        """A probe that left without a result must not keep everybody out."""
        if ticket.probe:
            ticket.probe = False
            self.health.abandon_probe()

    # ---- Pause, resize, preemption ----------------------------------------------------------------

    def pause_for(self, seconds: float, now: float) -> list[Ticket] | None:
        """The provider asked to wait. Returns who leaves because of it; None when nothing changed."""
        if not self.pause.begin(now, seconds, self.rules.longest_pause_s):
            return None
        leaving = [ticket for ticket in self.turns.everyone() if not self._waits_out(ticket)]
        for ticket in leaving:
            self.withdraw(ticket)
        return leaving

    def evict(self) -> list[Ticket]:
        """Everybody waiting leaves: the upstream is down, held, or the gate closes."""
        leaving = self.turns.everyone()
        for ticket in leaving:
            self.withdraw(ticket)
        return leaving

    def resize(self, slots: int) -> None:
        """Change the number of slots. Fewer than are in use: they are taken in as they come back."""
        self.slots = max(1, slots)

    def victim(self, now: float) -> Ticket | None:
        """The batch holder that should give way to a waiting interactive caller, if preemption is on.

        One asleep between attempts loses nothing but its slot, so it goes first; then the call that
        began last, which has the least to lose. A stream that has started never goes.
        """
        leaving = sum(ticket.preempted for ticket in self._batch_holders)
        if self.free + leaving >= self.turns.interactive.count:
            return None
        if now < self.pause.until or not self._paced_now(now):
            return None  # A free slot would not help the one who waits.
        candidates = [
            ticket
            for ticket in self._batch_holders
            if (ticket.asleep or ticket.calling)
            and not (ticket.preempted or ticket.streaming or ticket.protected)
        ]
        return max(candidates, key=lambda ticket: (ticket.asleep, ticket.granted_at), default=None)

    def _note_batch_holder(self, ticket: Ticket) -> None:
        if self.rules.preempt:
            ticket.preempted = False
            self._batch_holders[ticket] = None

    # ---- Numbers ----------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self.turns.interactive.count + self.turns.batch.count

    @property
    def _counted(self) -> int:
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
        """Below zero while a smaller gate waits for slots to come back."""
        return self.slots - self.held - self.in_transit

    def drained_in_s(self, lane: Lane, now: float) -> float | None:
        """How long until all who wait now have been granted: the Retry-After of a refusal."""
        wait_s = self._wait_s(self.waiting)
        if wait_s is None:
            return None
        if lane is Lane.BATCH:
            wait_s = max(wait_s, self._wait_s(self.turns.batch.count, batch=True) or 0.0)
        return wait_s + self._shut_s(now)

    def status(self, now: float) -> GateStatus:
        at_once = self._free(now) > 0 and not self.turns.interactive.count and self._paced_now(now)
        room = at_once or not self.rules.depth or self._counted < self.rules.depth
        return GateStatus(
            rt_queue=self.turns.interactive.count,
            be_queue=self.turns.batch.count,
            total_slots=self.slots,
            available_slots=max(0, self.free),
            accepting=room and self.shut is None and self.health.block(now) is None,
            max_queue_depth=self.rules.depth,
        )

    def _expected_wait_s(self, ticket: Ticket, now: float) -> float:
        """When a newcomer's turn comes, from at least five samples; -inf (never too late) before that."""
        if self.drain.samples < ENOUGH_SAMPLES:
            return -math.inf
        wait_s = self._wait_s(self.turns.grants_until(ticket), batch=ticket.lane is Lane.BATCH)
        return (wait_s or 0.0) + self._shut_s(now)

    def _wait_s(self, count: int, *, batch: bool = False) -> float | None:
        return self.drain.wait_s(count, slots=self.slots, starts_per_s=self.pacing.starts_per_s, batch=batch)

    def _shut_s(self, now: float) -> float:
        """How long nobody at all can go: the rest of a pause, or of an exhausted window."""
        paced_at = self.pacing.next_at(now, 0) if self.pacing.active else now
        return max(0.0, self.pause.until - now, paced_at - now)

    def _paced_now(self, now: float) -> bool:
        return not self.pacing.active or self.pacing.next_at(now, 0) <= now

    def _free(self, now: float) -> int:
        if self.pause.over(now):
            return self.slots - self.held - self.in_transit
        if self.pause.probing and now >= self.pause.until:
            # One call asks for all; who holds a slot from before the pause is not asked to leave for it.
            return 0 if self._pause_probe_out else min(1, self.slots - self.held - self.in_transit)
        return self.pause.slots(now, self.slots) - self.held - self.in_transit
