"""The gate of one upstream at work: it holds the futures and the timer; `core.admission` decides.

A slot handed to a waiter that was cancelled meanwhile passes on to the next, so none is ever lost.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headgate.calls.refusals import to_error
from headgate.core.admission import Admission
from headgate.core.call import Lane
from headgate.core.errors import HeadgateError, Preempted
from headgate.core.gate_rules import Door, GateRules, GateStatus, Refusal
from headgate.core.intake import Closed, News
from headgate.core.operator_pause import OperatorPause
from headgate.core.ports.clock import Chance, Clock
from headgate.core.start import Outcome
from headgate.core.ticket import Place, Ticket
from headgate.core.waiting import WaitingBytes


class ChooseAgain(Exception):
    """The upstream closed while a call waited for it that could go elsewhere."""


class Gate:
    """Slots, lanes, bounded waiting and pacing of one upstream."""

    def __init__(
        self, name: str, rules: GateRules, *, clock: Clock, chance: Chance, bodies: WaitingBytes | None = None
    ) -> None:
        self.name = name
        self.rules = rules
        self.admission = Admission(rules, bodies)
        self.on_news: Callable[[News], None] | None = None
        """Called for each change in what the upstream takes."""
        self.stopped: OperatorPause | None = None
        self._clock = clock
        self._chance = chance
        self._waiters: dict[Ticket, asyncio.Future[Refusal | ChooseAgain | None]] = {}
        self._running: dict[Ticket, asyncio.Task[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at: float | None = None
        """Kept here, not read from the timer: uvloop returns a plain Handle for a time that is almost now."""

    def enters_at_once(self, ticket: Ticket) -> bool:
        """Hold a slot now, if nobody waits for one and nothing stands in the way."""
        admission, now = self.admission, self._clock.now()
        if admission.walks_in(ticket, now):
            return True
        if not admission.pacing.active or admission.waiting or admission.arrive(ticket, now) is not None:
            return False
        if admission.next(now) is None:
            if ticket.place is Place.WAITING:  # Else it was put aside: too little time is left.
                admission.withdraw(ticket)
            return False
        admission.take_over(ticket)
        return True

    def refuse_full(self, ticket: Ticket) -> HeadgateError:
        """Reject a newcomer for want of room, without its having to come in."""
        retry_in_s = self.admission.forecast.rejected(ticket.lane, self._clock.now(), ticket.tenant)
        return self._error(Refusal(Door.FULL, retry_in_s))

    async def enter(self, ticket: Ticket, *, returning: bool = False) -> None:
        """Hold a slot when this returns; raise the refusal's error otherwise. `leave` gives it back."""
        now = self._clock.now()
        if (refusal := self.admission.arrive(ticket, now, returning=returning)) is not None:
            raise self._error(refusal)
        future: asyncio.Future[Refusal | ChooseAgain | None] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = future
        try:
            self._pump(now)
            if ticket.place is Place.WAITING and not returning:
                self._turn_away(ticket, now)
            if ticket.place is Place.WAITING:
                self._make_room(now)
            outcome = await future
        except BaseException:
            self._waiters.pop(ticket, None)
            self._walk_away(ticket)
            raise
        if isinstance(outcome, ChooseAgain):
            raise outcome
        if outcome is not None:
            raise self._error(outcome)
        self.admission.take_over(ticket)

    def _turn_away(self, ticket: Ticket, now: float) -> None:
        if (refusal := self.admission.turn_away(ticket, now)) is not None:
            self._dismiss([ticket], refusal)
        displaced, self.admission.displaced = self.admission.displaced, []
        for other in displaced:
            retry_in_s = self.admission.forecast.rejected(other.lane, now, other.tenant)
            self._dismiss([other], Refusal(Door.FULL, retry_in_s))

    def leave(self, ticket: Ticket) -> None:
        """Give the slot back; the next waiter has it at once. Safe to call twice."""
        if ticket.place is Place.HOLDING:
            now = self._clock.now()
            self.admission.give_back(ticket, now)
            if self.admission.waiting or self.admission.intake.news:
                self._pump(now)

    def renew(self, ticket: Ticket) -> bool:
        """Start another call with the slot in hand, if nothing else stands in the way at this instant."""
        return self.admission.renew(ticket, self._clock.now())

    def ended(self, ticket: Ticket, outcome: Outcome, hint_s: float = 0.0, *, served: bool = False) -> None:
        """The call that this ticket was granted for is over; the slot may be held on."""
        now = self._clock.now()
        self.admission.ended(ticket, now, outcome, hint_s, served=served)
        if self.admission.intake.news or self.admission.waiting:
            self._pump(now)

    def put_down(self, ticket: Ticket) -> None:
        now = self._clock.now()
        self.admission.put_down(ticket, now)
        if self.admission.waiting:
            self._pump(now)

    def take_up(self, ticket: Ticket) -> bool:
        """A holder that has idled calls after all, if the upstream takes calls now."""
        return self.admission.take_up(ticket, self._clock.now())

    def closed(self, tenant: str) -> HeadgateError | None:
        """The refusal of those who do not wait until a closed upstream takes calls again."""
        closed, now = self.admission.intake.closed_to(tenant), self._clock.now()
        if closed is None:
            return None
        return self._error(self.admission.refusal_of_closed(tenant, closed.until or now, now))

    def answers_in_s(self, ticket: Ticket, usual_s: float, later_s: float) -> float:
        return self.admission.answers_in_s(ticket, self._clock.now(), usual_s, later_s)

    def look_again(self) -> None:
        """Something changed that may let somebody in."""
        self._pump(self._clock.now())

    def evict(self, refusal: Refusal) -> None:
        """Everybody who waits leaves with this refusal."""
        self._dismiss(self.admission.evict(), refusal)

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

    def dismiss(self, ticket: Ticket, refusal: Refusal) -> None:
        """Reject one that has left the queue."""
        self._dismiss([ticket], refusal)

    def status(self, tenant: str) -> GateStatus:
        return self.admission.status(self._clock.now(), tenant)

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

    def _walk_away(self, ticket: Ticket) -> None:
        """A waiter was cancelled: it leaves the line, or passes on the slot that was already its."""
        now = self._clock.now()
        if ticket.place is Place.IN_TRANSIT:
            self.admission.give_back(ticket, now)
        elif ticket.place is Place.WAITING:
            self.admission.withdraw(ticket)
        self._pump(now)

    def _pump(self, now: float) -> None:
        """Grant until nobody may go, then set the timer for when somebody may."""
        admission = self.admission
        while (ticket := admission.next(now)) is not None:
            self._hand_over(ticket, now)
        if admission.intake.news:
            self._tell_news(now)
        look_again_at = admission.look_again_at(now)
        if admission.late:
            late, admission.late = admission.late, []
            self._dismiss(late, Refusal(Door.LATE, None))
        if look_again_at != self._rings_at:
            self._set_timer(look_again_at)

    def _tell_news(self, now: float) -> None:
        intake = self.admission.intake
        news = intake.news.copy()
        intake.news.clear()
        for item in news:
            if self.on_news is not None:
                self.on_news(item)
        if any(isinstance(item, Closed) for item in news):
            refused, moving = self.admission.leave_closed()
            for ticket in refused:
                closed = intake.closed_to(ticket.tenant)
                until = now if closed is None or closed.until is None else closed.until
                self._dismiss([ticket], self.admission.refusal_of_closed(ticket.tenant, until, now))
            self._dismiss(moving, ChooseAgain())

    def _hand_over(self, ticket: Ticket, now: float) -> None:
        future = self._waiters.pop(ticket)
        if future.done():
            self.admission.give_back(ticket, now)
        else:
            future.set_result(None)

    def _dismiss(self, tickets: list[Ticket], refusal: Refusal | ChooseAgain) -> None:
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
            mistake=self.admission.holds.last_mistake,
            stopped=self.stopped,
            chance=self._chance(),
        )
