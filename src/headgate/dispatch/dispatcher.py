"""Takes one call through its model's upstreams: door, grant, attempts, waits, fallbacks, one deadline.

The dispatcher is the only owner of retries for a direct call. It knows gates and failures; it knows nothing of
wire formats, HTTP or what is inside a message.
"""

import asyncio
import logging
from typing import Final, Generic, TypeVar, cast

import msgspec

from headgate.core import events
from headgate.core.errors import (
    CallFailed,
    DeadlineExceeded,
    HeadgateError,
    Preempted,
    Refused,
    RetryBudgetSpent,
)
from headgate.core.failures import FailureKind
from headgate.core.ports.clock import Chance, Clock
from headgate.core.retry import GiveUp, Wait
from headgate.core.ticket import Ticket
from headgate.dispatch.call import Call, Setback
from headgate.dispatch.deadlines import Deadlines
from headgate.dispatch.routes import Routes
from headgate.dispatch.setback import count_attempts, from_failure, from_refusal, soonest
from headgate.dispatch.upstream import Emit, Failed, Upstream
from headgate.dispatch.work import Work
from headgate.machine.context import REQUEST_IDS

logger = logging.getLogger("headgate")
T = TypeVar("T")
BUDGET_REST_S: Final = 10.0
"""How long a job waits when its upstream's retry budget is used up."""
LEAST_WAIT_S: Final = 0.001
"""A shorter time at a gate is no wait to tell of."""


class Served(msgspec.Struct, Generic[T], eq=False):
    """A result, with the slot it came through still held: whoever gets this must `release` it."""

    result: T
    upstream: Upstream
    ticket: Ticket
    number: int = 0
    """Which attempt on this upstream it was."""

    def release(self) -> None:
        self.upstream.gate.leave(self.ticket)


class Dispatcher:
    """One request, now."""

    def __init__(self, routes: Routes, *, clock: Clock, chance: Chance, emit: Emit) -> None:
        self.routes = routes
        self.clock = clock
        self.emit = emit
        self._chance = chance
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadlines = Deadlines()

    async def run(self, call: Call, work: Work[T] | None) -> Served[T]:
        """Serve a call before its deadline, or raise the error its caller shall see."""
        self._stay_on_one_loop()
        route = self.routes.find(call.model)
        deadline = self._deadlines.enter(call.deadline)
        before = REQUEST_IDS.set(call.request_ids)
        try:
            setbacks = list(call.finished.values())
            # The model's upstreams in order, but for those that have failed this call already.
            ahead = [upstream for upstream in route.in_order() if upstream.name not in call.finished]
            while ahead:
                upstream = ahead.pop(0)
                outcome = await self._visit(call, upstream, work, last=not ahead)
                if isinstance(outcome, Served):
                    return outcome
                setbacks.append(outcome)
                if not outcome.moves_on:
                    raise _told(call, outcome.error)
                if ahead:
                    self._fell_back(call, upstream, ahead[0], outcome)
            raise _told(call, soonest(setbacks))
        except asyncio.CancelledError as stop:
            if deadline.missed():
                raise deadline_passed(call, self.clock.now()) from stop
            raise
        finally:
            REQUEST_IDS.reset(before)
            deadline.leave()

    def check_room(self, call: Call) -> None:
        """Refuse at sight when all of the model's upstreams are full; otherwise nothing is promised."""
        upstreams = self.routes.find(call.model).upstreams
        refusals = [upstream.gate.full(call.lane) for upstream in upstreams]
        if (error := refusals[0]) is not None and all(refusals):
            self._refused(call, upstreams[0], error)
            raise error

    async def acquire(self, call: Call) -> Served[None]:
        """A slot of the first upstream that takes the call, with nothing sent yet."""
        return await self.run(call, None)

    def _stay_on_one_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this gateway belongs to another event loop; open one in each")

    async def _visit(
        self, call: Call, upstream: Upstream, work: Work[T] | None, *, last: bool
    ) -> Served[T] | Setback:
        """One upstream: wait at its gate, then attempt until served or told to go. Without work the slot is all."""
        ticket = Ticket(
            since=call.since,
            lane=call.lane,
            tenant=call.tenant,
            deadline=call.deadline,
            tokens=call.tokens,
            patient=last,
        )
        upstream.visitors += 1
        try:
            if not upstream.gate.walks_in(ticket):
                await self._enter(call, upstream, ticket)
            if work is None:
                return Served(cast("T", None), upstream, ticket)
            return await self._attempts(call, work, upstream, ticket, last=last)
        except _RefusedAtGate as refused:
            return from_refusal(refused.error, spill=upstream.spill)
        finally:
            upstream.visitors -= 1

    def _fell_back(self, call: Call, upstream: Upstream, following: Upstream, setback: Setback) -> None:
        self.emit(
            events.FellBack(
                request_ids=call.request_ids,
                model=call.model,
                upstream=upstream.name,
                next_upstream=following.name,
                reason=setback.reason,
                tenant=call.tenant,
            )
        )

    async def _enter(
        self, call: Call, upstream: Upstream, ticket: Ticket, *, returning: bool = False
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
        self, call: Call, work: Work[T], upstream: Upstream, ticket: Ticket, *, last: bool
    ) -> Served[T] | Setback:
        number = call.tries.get(upstream.name, 0)
        paid, call.prepaid = call.prepaid, 0.0
        failed: Failed | None = None
        keep = False
        try:
            if call.repeats:
                paid = self._pay(upstream)
            if call.announce is not None:
                await self._announce(call)
            while True:
                number += 1
                try:
                    result = await upstream.attempt(ticket, call, work, number)
                except Preempted:
                    if call.goes_back:
                        raise
                    # Not its fault: uncounted, and back at the head of its turn.
                    number -= 1
                    await self._give_way(call, upstream, ticket)
                    continue
                call.tries[upstream.name] = number
                if not isinstance(result, Failed):
                    self._reward(upstream, number, paid)
                    paid, keep = 0.0, True
                    return Served(result, upstream, ticket, number)
                paid, failed = 0.0, result
                decision = self.decide(call, upstream, failed, number, last=last)
                if isinstance(decision, Setback):
                    call.finished[upstream.name] = decision
                    return decision
                wait_s, paid = decision
                await self._wait(call, upstream, ticket, failed, number, wait_s)
        except _RefusedAtGate as refused:
            return self._refused_on_return(call, upstream, failed, refused.error)
        finally:
            # A retry that was paid for but never came to its end (cancelled, refused) costs nothing.
            upstream.budget.give_back(paid)
            if not keep:
                upstream.gate.leave(ticket)

    async def _announce(self, call: Call) -> None:
        announce, call.announce = call.announce, None
        if announce is not None:
            await announce()

    def _pay(self, upstream: Upstream) -> float:
        """A job's later attempt is a retry to the upstream, whoever owns it."""
        cost = upstream.budget.take(FailureKind.TRANSIENT)
        if cost is None:
            error = RetryBudgetSpent(
                f"{upstream.name}: its retry budget is used up", retry_after_s=BUDGET_REST_S
            )
            raise _RefusedAtGate(error)
        return cost

    def _refused_on_return(
        self, call: Call, upstream: Upstream, failed: Failed | None, error: HeadgateError
    ) -> Setback:
        """It came back to a gate that is shut: a pause is told as such, a sick upstream by what it did to us."""
        if failed is None or isinstance(error, Refused):
            return from_refusal(error, spill=upstream.spill)
        setback = self._setback(call, upstream, failed, "it keeps failing and is left alone for a while")
        call.finished[upstream.name] = setback
        return setback

    def decide(
        self, call: Call, upstream: Upstream, failed: Failed, number: int, *, last: bool
    ) -> tuple[float, float] | Setback:
        """After a failed attempt: how long to wait and what that cost, or why this upstream is done with."""
        decision, drawn_s = self._asked(call, upstream, failed, number)
        failure = failed.failure
        if failure.kind is FailureKind.THROTTLED:
            # One wait for everybody: the provider's own, else the one just drawn.
            upstream.throttled(drawn_s if failure.retry_after_s is None else failure.retry_after_s)
        if isinstance(decision, GiveUp):
            return self._setback(call, upstream, failed, decision.reason, expired=decision.expired)
        if not last and failure.kind is FailureKind.THROTTLED:
            return self._setback(call, upstream, failed, "it asked to wait")
        if not last and failure.timed_out:
            return self._setback(call, upstream, failed, "it took too long")
        if upstream.blocked():
            return self._setback(call, upstream, failed, "it keeps failing and is left alone for a while")
        cost = upstream.budget.take(failure.kind)
        if cost is None:
            return self._setback(call, upstream, failed, "its retry budget is used up")
        return decision.seconds, cost

    def _asked(
        self, call: Call, upstream: Upstream, failed: Failed, number: int
    ) -> tuple[Wait | GiveUp, float]:
        """The policy's decision, and the wait it drew, which is the gate's pause after a throttle without a hint."""
        policy = call.policy or upstream.policy
        remaining_s, chance = call.deadline - self.clock.now(), self._chance()
        try:
            decision: object = policy.decide(
                failed.failure, attempt=number, remaining_s=remaining_s, chance=chance
            )
            if isinstance(decision, Wait | GiveUp):
                return decision, policy.backoff_s(number, chance)
            logger.error("the retry policy of %s answered %r, which is no decision", upstream.name, decision)
        except Exception:
            # A policy may be the user's own. If it breaks, the provider's error goes out, unrepeated.
            logger.exception("the retry policy of %s raised; the call is not retried", upstream.name)
        return GiveUp("the retry policy itself failed"), upstream.policy.first_wait_s

    async def _wait(
        self, call: Call, upstream: Upstream, ticket: Ticket, failed: Failed, number: int, wait_s: float
    ) -> None:
        """Sleep exactly as long as is logged: short waits with the slot in hand, long ones without it."""
        self.announce(call, upstream, failed, number, wait_s)
        if wait_s > upstream.gate.rules.hold_wait_s:
            upstream.gate.leave(ticket)
        if wait_s > 0:
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
        if not upstream.gate.renew(ticket):
            await self._give_way(call, upstream, ticket)

    def announce(self, call: Call, upstream: Upstream, failed: Failed, number: int, wait_s: float) -> None:
        self.emit(
            events.RetryScheduled(
                request_ids=call.request_ids,
                model=call.model,
                upstream=upstream.name,
                attempt=number,
                failure=failed.failure.without_text(),
                delay_ms=wait_s * 1000,
                tenant=call.tenant,
            )
        )

    async def _give_way(self, call: Call, upstream: Upstream, ticket: Ticket) -> None:
        upstream.gate.leave(ticket)
        await self._enter(call, upstream, ticket, returning=True)

    def _reward(self, upstream: Upstream, number: int, paid: float) -> None:
        if number == 1 and not paid:
            upstream.budget.first_try_succeeded()
        else:
            upstream.budget.give_back(paid)

    def _setback(
        self, call: Call, upstream: Upstream, failed: Failed, why: str, *, expired: bool = False
    ) -> Setback:
        return from_failure(failed, upstream=upstream.name, attempts=call.attempts, why=why, expired=expired)

    def _waited(self, call: Call, upstream: Upstream, wait_s: float) -> None:
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

    def _refused(self, call: Call, upstream: Upstream, error: HeadgateError) -> None:
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


def _told(call: Call, error: HeadgateError) -> HeadgateError:
    """A gate that refuses knows nothing of the calls made elsewhere before."""
    if isinstance(error, Refused | CallFailed | DeadlineExceeded):
        error.attempts = max(error.attempts, call.attempts)
    return error


class _RefusedAtGate(Exception):
    """A gate said no, at the first knock or on coming back."""

    def __init__(self, error: HeadgateError) -> None:
        super().__init__(str(error))
        self.error = error


def deadline_passed(call: Call, now: float) -> DeadlineExceeded:
    waited = f"{call.queue_s:.1f} s in the queue" if call.queue_s else "not queued"
    error = DeadlineExceeded(
        f"{call.model}: no answer within {now - call.started_at:.1f} s ({waited}, {count_attempts(call.attempts)} made)"
    )
    error.attempts = call.attempts
    return error
