"""The gate of one upstream at work: it holds the futures and the timer; `core.admission` decides.

A slot handed to a waiter that was cancelled meanwhile passes on to the next, so none is ever lost.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headgate.core.admission import Admission
from headgate.core.errors import HeadgateError, Preempted
from headgate.core.gate_rules import Door, GateRules, GateStatus, Refusal
from headgate.core.health import Health
from headgate.core.messages import Lane
from headgate.core.operator_pause import OperatorPause
from headgate.core.ports.clock import Chance, Clock
from headgate.core.ticket import Place, Ticket
from headgate.dispatch.refusals import to_error


class Gate:
    """Slots, lanes, bounded waiting, pacing and pause of one upstream."""

    def __init__(
        self, name: str, rules: GateRules, *, clock: Clock, chance: Chance, health: Health | None = None
    ) -> None:
        self.name = name
        self.rules = rules
        self.admission = Admission(rules, health)
        self.stopped: OperatorPause | None = None
        self._clock = clock
        self._chance = chance
        self._waiters: dict[Ticket, asyncio.Future[Refusal | None]] = {}
        self._running: dict[Ticket, asyncio.Task[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at: float | None = None
        """Kept here, not read from the timer: uvloop returns a plain Handle for a time that is almost now."""

    def walks_in(self, ticket: Ticket) -> bool:
        """Nobody waits and a slot is free: it is the ticket's, at once."""
        return self.admission.walks_in(ticket, self._clock.now())

    def full(self, lane: Lane) -> HeadgateError | None:
        """The refusal that a newcomer would get for want of room, without its having to come in."""
        if not self.admission.full(lane):
            return None
        return self._error(Refusal(Door.FULL, self.admission.drained_in_s(lane, self._clock.now())))

    async def enter(self, ticket: Ticket, *, returning: bool = False) -> None:
        """Hold a slot when this returns; raise the refusal's error otherwise. `leave` gives it back."""
        now = self._clock.now()
        if self.admission.walks_in(ticket, now):
            return
        if (refusal := self.admission.arrive(ticket, now, returning=returning)) is not None:
            raise self._error(refusal)
        try:
            self._pump(now)
            if ticket.place is Place.WAITING and not returning:
                refusal = self.admission.turn_away(ticket, now)
            if ticket.place is Place.WAITING:
                self._make_room(now)
        except BaseException:
            self._walk_away(ticket)
            raise
        if refusal is not None:
            raise self._error(refusal)
        if ticket.place is Place.IN_TRANSIT:
            self.admission.take_over(ticket)
        else:
            await self._wait(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Give the slot back; the next waiter has it at once. Safe to call twice."""
        if ticket.place is Place.HOLDING:
            now = self._clock.now()
            self.admission.give_back(ticket, now)
            if self.admission.waiting:
                self._pump(now)

    def renew(self, ticket: Ticket) -> bool:
        """Start another call with the slot in hand, if pause, pacing and health allow it at this instant."""
        return self.admission.renew(ticket, self._clock.now())

    def pause(self, seconds: float) -> bool:
        """Nobody goes in for this long; True when that is news."""
        now = self._clock.now()
        leaving = self.admission.pause_for(seconds, now)
        if leaving is None:
            return False
        self._dismiss(leaving, Refusal(Door.PAUSED, self.admission.pause.until - now))
        self._pump(now)
        return True

    def look_again(self) -> None:
        """Something changed that may let somebody in."""
        self._pump(self._clock.now())

    def evict(self, refusal: Refusal) -> None:
        """Everybody who waits leaves with this refusal."""
        self._dismiss(self.admission.evict(), refusal)

    def resize(self, slots: int) -> None:
        self.admission.resize(slots)
        self._pump(self._clock.now())

    def close(self) -> None:
        """No new callers, and those who wait leave. Holders finish."""
        self.admission.shut = Door.CLOSED
        self.evict(Refusal(Door.CLOSED, None))

    def stop(self, pause: OperatorPause) -> None:
        """The same while an operator's pause holds. A gate that is closed stays closed."""
        self.stopped = pause
        if self.admission.shut is None:
            self.admission.shut = Door.STOPPED
            self.evict(Refusal(Door.STOPPED, None))

    def resume(self) -> None:
        self.stopped = None
        if self.admission.shut is Door.STOPPED:
            self.admission.shut = None

    def status(self) -> GateStatus:
        return self.admission.status(self._clock.now())

    def may_preempt(self, ticket: Ticket) -> bool:
        return self.rules.preempt and ticket.lane is Lane.BATCH

    @contextmanager
    def preemptible(self, ticket: Ticket) -> Iterator[None]:
        """While a batch call runs in here, preemption really cancels it; it comes out as `Preempted`."""
        task = asyncio.current_task()
        if task is None or not self.rules.preempt or ticket.lane is not Lane.BATCH:
            yield
            return
        self._running[ticket] = task
        ticket.calling = True
        cancels = task.cancelling()
        self._make_room(self._clock.now())  # Somebody may have come while this one was on its way in.
        try:
            yield
        except BaseException as error:
            # Ours, unless the caller cancelled too: then the caller's cancellation wins. A provider may
            # have turned our cancellation into an error of its own.
            if ticket.preempted and task.uncancel() <= cancels:
                raise Preempted(f"{self.name}: gave way to an interactive call") from error
            raise
        else:
            if ticket.preempted and task.cancelling() > cancels:
                task.uncancel()  # It finished all the same.
        finally:
            ticket.calling = False
            self._running.pop(ticket, None)

    async def _wait(self, ticket: Ticket) -> None:
        future: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = future
        try:
            refusal = await future
        except BaseException:
            self._waiters.pop(ticket, None)
            self._walk_away(ticket)
            raise
        if refusal is not None:
            raise self._error(refusal)
        self.admission.take_over(ticket)

    def _walk_away(self, ticket: Ticket) -> None:
        """A waiter was cancelled: it leaves the line, or passes on the slot that was already its."""
        now = self._clock.now()
        if ticket.place is Place.IN_TRANSIT:
            self.admission.give_back(ticket, now)
        elif ticket.place is Place.WAITING:
            self.admission.withdraw(ticket)
            # Only a pacing token can have been kept waiting for this one: the next may need fewer.
            if not self.admission.pacing.active:
                return
        self._pump(now)

    def _pump(self, now: float) -> None:
        """Grant until nobody may go, then set the timer for when somebody may."""
        admission = self.admission
        while (ticket := admission.next(now)) is not None:
            self._hand_over(ticket, now)
        look_again_at = admission.look_again_at(now)
        if look_again_at != self._rings_at:
            self._set_timer(look_again_at)

    def _hand_over(self, ticket: Ticket, now: float) -> None:
        future = self._waiters.pop(ticket, None)
        if future is None:
            return  # It has not begun to wait: `enter` sees that it was granted.
        if future.done():
            self.admission.give_back(ticket, now)
        else:
            future.set_result(None)

    def _dismiss(self, tickets: list[Ticket], refusal: Refusal) -> None:
        for ticket in tickets:
            future = self._waiters.pop(ticket, None)
            if future is not None and not future.done():
                future.set_result(refusal)

    def _make_room(self, now: float) -> None:
        """Preempt for the interactive callers that wait, where that is switched on."""
        if not self.rules.preempt:
            return
        while (victim := self.admission.victim(now)) is not None:
            victim.preempted = True
            if victim.asleep:
                self.leave(victim)
            elif (task := self._running.get(victim)) is not None:
                task.cancel()

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_at(at, self._on_timer)
        self._rings_at = at

    def _on_timer(self) -> None:
        self._timer = self._rings_at = None
        now = self._clock.now()
        self._pump(now)
        self._make_room(now)  # Who came during a pause could not preempt then.

    def _error(self, refusal: Refusal) -> HeadgateError:
        return to_error(
            refusal,
            upstream=self.name,
            mistake=self.admission.health.last_mistake,
            stopped=self.stopped,
            chance=self._chance(),
        )
