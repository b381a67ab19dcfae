"""Takes one call through its model's upstreams: door, grant, attempts, waits, fallbacks, one deadline.

The dispatcher is the only owner of retries for a direct call. It knows gates and failures; it knows nothing of
wire formats, HTTP or what is inside a message.
"""

import asyncio
import logging
from collections.abc import Container, Mapping
from typing import Final, cast

import msgspec

from headgate.calls.call import RoutedCall, Setback
from headgate.calls.deadlines import Deadlines
from headgate.calls.gate import ChooseAgain
from headgate.calls.hedge import Attempt, Race
from headgate.calls.retries import Retries
from headgate.calls.routes import Route, Routes
from headgate.calls.sending import OpenStream, Result
from headgate.calls.setback import count_attempts, from_refusal, soonest
from headgate.calls.upstream import Emit, Failed, Upstream
from headgate.core import events
from headgate.core.answer import Answer
from headgate.core.errors import (
    CallFailed,
    DeadlineExceeded,
    HeadgateError,
    Preempted,
    QueueFull,
    Refused,
    RetryBudgetSpent,
)
from headgate.core.hedging import Hedging
from headgate.core.ports.clock import Chance, Clock
from headgate.core.ticket import Ticket
from headgate.machine.context import REQUEST_IDS

logger = logging.getLogger("headgate")
PATIENCE_SHARE: Final = 0.25
"""Of the time that is left, so much at most is spent on preferring the first upstream."""
BUDGET_REST_S: Final = 10.0
"""How long a job waits when its upstream's retry budget is used up."""
LEAST_WAIT_S: Final = 0.001
"""A shorter time at a gate is no wait to tell of."""


class Served(msgspec.Struct, eq=False):
    """A result, with the slot it came through still held: whoever gets this must `release` it."""

    result: Result | None
    """None where only a slot was asked for."""
    upstream: Upstream
    ticket: Ticket
    number: int = 0
    """Which attempt on this upstream it was."""

    @property
    def answer(self) -> Answer:
        assert isinstance(self.result, Answer)  # noqa: S101 - the call asked for one
        return self.result

    @property
    def opened(self) -> OpenStream:
        assert isinstance(self.result, OpenStream)  # noqa: S101 - the call asked for one
        return self.result

    def release(self) -> None:
        self.upstream.gate.leave(self.ticket)


class Dispatcher:
    """One request, now."""

    def __init__(self, routes: Routes, *, clock: Clock, chance: Chance, emit: Emit) -> None:
        self.routes = routes
        self.clock = clock
        self.emit = emit
        self.retries = Retries(clock=clock, chance=chance, emit=emit)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadlines = Deadlines()

    async def run(self, call: RoutedCall, *, only_slot: bool = False) -> Served:
        """Serve a call before its deadline, or raise the error its caller shall see."""
        if self._loop is not asyncio.get_running_loop():
            self._stay_on_one_loop()
        route = call.route
        call.waits = call.waits and route.wait
        deadline = self._deadlines.enter(call.deadline)
        before = REQUEST_IDS.set(call.request_ids)
        try:
            refused: dict[str, Setback] = {}
            before_it: Upstream | None = None
            why = ""
            while (upstream := self._choose(call, route, refused)) is not None:
                if before_it is not None and upstream is not before_it:
                    self._fell_back(call, before_it, upstream, why)
                outcome = await self._visit(call, upstream, route, refused, only_slot=only_slot)
                if isinstance(outcome, Served):
                    return outcome
                before_it, why = upstream, "waiting"
                if outcome is None:
                    continue
                if not outcome.moves_on and not (call.admitted and isinstance(outcome.error, QueueFull)):
                    raise _told(call, outcome.error)
                refused[upstream.name], why = outcome, outcome.reason
            raise _told(call, _last_word(call, refused))
        except asyncio.CancelledError as stop:
            if deadline.missed():
                raise deadline_passed(call, self.clock.now()) from stop
            raise
        finally:
            if call.prepaid is not None:
                call.give_back()
            REQUEST_IDS.reset(before)
            deadline.leave()

    def check_room(self, call: RoutedCall) -> None:
        """Refuse at sight when all of the model's upstreams are full; otherwise nothing is promised."""
        upstreams = call.route.upstreams
        ticket = _ticket(call)
        if all(upstream.gate.admission.full(ticket) for upstream in upstreams):
            error = upstreams[0].gate.refuse_full(ticket)
            self._refused(call, upstreams[0], error)
            raise error

    def _stay_on_one_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this gateway belongs to another event loop; open one in each")

    def _choose(self, call: RoutedCall, route: Route, refused: Container[str]) -> Upstream | None:
        """Where the answer is expected first; among equals the order decides. None: no upstream is left."""
        if len(route.upstreams) == 1:
            only = route.upstreams[0]
            return None if only.name in refused or only.name in call.finished else only
        left = [
            upstream
            for upstream in route.in_order()
            if upstream.name not in refused and upstream.name not in call.finished
        ]
        if len(left) < 2:
            return left[0] if left else None
        now = self.clock.now()
        # One that was never measured is taken to be as slow as the slowest.
        usual_s = max(upstream.gate.admission.drain.answer_s for upstream in left)
        ticket = _ticket(call)
        answers_in = [
            upstream.gate.answers_in_s(ticket, usual_s, max(0.0, call.later.get(upstream.name, now) - now))
            for upstream in left
        ]
        # What it has spent on its first choice already is gone, and the others need time, too.
        spent_s = now - call.started_at
        patience_s = min(route.patience_s - spent_s, PATIENCE_SHARE * (call.deadline - now))
        latest = min(answers_in) + max(0.0, patience_s)
        return next(upstream for upstream, in_s in zip(left, answers_in, strict=True) if in_s <= latest)

    async def _visit(
        self, call: RoutedCall, upstream: Upstream, route: Route, refused: Container[str], *, only_slot: bool
    ) -> Served | Setback | None:
        """One upstream: wait at its gate, then attempt until served or rejected.

        None: the call has to wait before its next attempt, there or elsewhere.
        """
        movable = len(route.upstreams) > 1 and self._others(call, route, upstream, refused)
        ticket = _ticket(call, movable=movable)
        upstream.visitors += 1
        try:
            if (until := call.later.get(upstream.name)) is not None and until > self.clock.now():
                await self._sit_out(call, until)
            if not upstream.gate.admission.walks_in(ticket, self.clock.now()):
                await self._enter(call, upstream, ticket, returning=upstream.name in call.admitted)
            call.admitted.add(upstream.name)
            if only_slot:
                return Served(None, upstream, ticket)
            return await self._attempts(call, upstream, ticket, route, others=ticket.movable)
        except ChooseAgain:
            call.admitted.add(upstream.name)
            return None
        except _RefusedAtGate as at_gate:
            return from_refusal(at_gate.error, spill=upstream.spill)
        finally:
            upstream.visitors -= 1

    def _others(self, call: RoutedCall, route: Route, upstream: Upstream, refused: Container[str]) -> bool:
        return any(
            other is not upstream and other.name not in refused and other.name not in call.finished
            for other in route.upstreams
        )

    async def _sit_out(self, call: RoutedCall, until: float) -> None:
        wait_s = until - self.clock.now()
        await self.clock.sleep(wait_s)
        call.upstream_s += wait_s

    def _fell_back(self, call: RoutedCall, upstream: Upstream, following: Upstream, reason: str) -> None:
        self.emit(
            events.FellBack(
                request_ids=call.request_ids,
                model=call.model,
                upstream=upstream.name,
                next_upstream=following.name,
                reason=reason,
                tenant=call.tenant,
            )
        )

    async def _enter(
        self, call: RoutedCall, upstream: Upstream, ticket: Ticket, *, returning: bool = False
    ) -> None:
        asked_at = self.clock.now()
        try:
            await upstream.gate.enter(ticket, returning=returning)
        except HeadgateError as error:
            self._refused(call, upstream, error)
            raise _RefusedAtGate(error) from None
        finally:
            wait_s = self.clock.now() - asked_at
            call.queue_s += wait_s
            if wait_s >= LEAST_WAIT_S:
                self._waited(call, upstream, wait_s)

    async def _attempts(
        self, call: RoutedCall, upstream: Upstream, ticket: Ticket, route: Route, *, others: bool
    ) -> Served | Setback | None:
        name = upstream.name
        number = call.tries.get(name, 0)
        keep = False
        try:
            await self._begin(call, upstream)
            while True:
                number += 1
                call.prepaid = None
                try:
                    if route.hedging is None or call.goes_back:
                        result = await upstream.attempt(ticket, call, number)
                    else:
                        result, winner = await self._race(call, upstream, ticket, number, route)
                        if winner.ticket is not ticket and not isinstance(result, Failed):
                            return Served(result, winner.upstream, winner.ticket, winner.number)
                except Preempted:
                    if call.goes_back:
                        raise
                    return None  # Not its fault: uncounted.
                call.tries[name] = number
                if not isinstance(result, Failed):
                    keep = True
                    return Served(result, upstream, ticket, number)
                wait_s = self.retries.decide(call, upstream, result, number, others=others)
                if isinstance(wait_s, Setback):
                    call.finished[name] = wait_s
                    return wait_s
                self.retries.announce(call, upstream, result, number, wait_s)
                failed_at = self.clock.now()
                if others or not await self._in_hand(call, upstream, ticket, wait_s):
                    call.later[name] = failed_at + wait_s
                    return None
        finally:
            if not keep:
                upstream.gate.leave(ticket)

    async def _race(
        self, call: RoutedCall, upstream: Upstream, ticket: Ticket, number: int, route: Route
    ) -> tuple[Result | Failed, Attempt]:
        """The first attempt, and a second one elsewhere if it is slow and a slot is free there at once."""
        hedging = cast("Hedging", route.hedging)
        hedging.begun()

        def second() -> Attempt | None:
            now = self.clock.now()
            for other in (*(one for one in route.in_order() if one is not upstream), upstream):
                if other.name in call.finished or call.later.get(other.name, now) > now:
                    continue
                # It never waits, so it needs no deadline.
                rival = Ticket(
                    since=call.since,
                    lane=call.lane,
                    tenant=call.tenant,
                    endpoint=call.format.value,
                    tokens=call.tokens,
                )
                if other.gate.enters_at_once(rival):
                    return Attempt(other, rival, call.tries.get(other.name, 0) + 1)
            return None

        race = Race(call, Attempt(upstream, ticket, number), hedging, clock=self.clock, emit=self.emit)
        return await race.run(second)

    async def _begin(self, call: RoutedCall, upstream: Upstream) -> None:
        if call.prepaid is not None and call.prepaid is not upstream.budget:
            call.prepaid.give_back()  # It was for another attempt elsewhere.
        if upstream.name not in call.tries:
            call.tries[upstream.name] = 0
            if not call.repeats:
                upstream.budget.first_attempt()
            elif not upstream.budget.take():
                # A job's later attempt is a retry to the upstream, whoever owns it.
                why = f"{upstream.name}: its retry budget is used up"
                raise _RefusedAtGate(RetryBudgetSpent(why, retry_after_s=BUDGET_REST_S))
        announce, call.announce = call.announce, None
        if announce is not None:
            await announce()

    async def _in_hand(self, call: RoutedCall, upstream: Upstream, ticket: Ticket, wait_s: float) -> bool:
        """Sleep exactly as long as was logged, slot in hand, if that is short; True when the call may start then."""
        if wait_s > upstream.gate.rules.hold_wait_s:
            return False
        if wait_s > 0:
            await self._sleep(call, upstream, ticket, wait_s)
        return upstream.gate.renew(ticket)

    async def _sleep(self, call: RoutedCall, upstream: Upstream, ticket: Ticket, wait_s: float) -> None:
        ticket.asleep = True
        try:
            await self.clock.sleep(wait_s)
        finally:
            ticket.asleep = False
            call.upstream_s += wait_s
        if ticket.preempted:
            self.emit(
                events.HolderPreempted(
                    upstream=upstream.name, request_ids=call.request_ids, tenant=call.tenant
                )
            )

    def _waited(self, call: RoutedCall, upstream: Upstream, wait_s: float) -> None:
        self.emit(
            events.WaitEnded(
                request_ids=call.request_ids,
                model=call.model,
                upstream=upstream.name,
                lane=call.lane,
                wait_ms=wait_s * 1000,
                tenant=call.tenant,
            )
        )

    def _refused(self, call: RoutedCall, upstream: Upstream, error: HeadgateError) -> None:
        self.emit(
            events.RequestRefused(
                request_ids=call.request_ids,
                model=call.model,
                upstream=upstream.name,
                lane=call.lane,
                reason=error.code,
                retry_after_s=getattr(error, "retry_after_s", None),
                tenant=call.tenant,
            )
        )


def _ticket(call: RoutedCall, *, movable: bool = False) -> Ticket:
    return Ticket(
        since=call.since,
        lane=call.lane,
        tenant=call.tenant,
        endpoint=call.format.value,
        deadline=call.deadline,
        tokens=call.tokens,
        size_bytes=call.size_bytes,
        # A job returns to its store instead.
        patient=call.waits and not call.goes_back,
        movable=movable,
    )


def _told(call: RoutedCall, error: HeadgateError) -> HeadgateError:
    """A gate that refuses knows nothing of the calls made elsewhere before."""
    if isinstance(error, Refused | CallFailed | DeadlineExceeded):
        error.attempts = max(error.attempts, call.attempts)
    return error


def _last_word(call: RoutedCall, refused: Mapping[str, Setback]) -> HeadgateError:
    """A job gets a real failure, which counts; other callers get the earliest time to retry."""
    setbacks = [*call.finished.values(), *refused.values()]
    failed = [setback for setback in setbacks if not setback.refused] if call.goes_back else []
    return soonest(failed or setbacks)


class _RefusedAtGate(Exception):
    """A gate said no, at the first knock or on coming back."""

    def __init__(self, error: HeadgateError) -> None:
        super().__init__(str(error))
        self.error = error


def deadline_passed(call: RoutedCall, now: float) -> DeadlineExceeded:
    waited = f"{call.queue_s:.1f} s in the queue" if call.queue_s else "not queued"
    error = DeadlineExceeded(
        f"{call.model}: no answer within {now - call.started_at:.1f} s ({waited}, {count_attempts(call.attempts)} made)"
    )
    error.attempts = call.attempts
    return error
