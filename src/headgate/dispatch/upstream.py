"""One upstream at work: a provider behind its gate, with its budget, health and adaptive limit."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headgate.core import events
from headgate.core.adaptive import AdaptiveLimit
from headgate.core.budget import RetryBudget
from headgate.core.errors import Preempted
from headgate.core.failures import Failure, FailureKind
from headgate.core.foreign import classify
from headgate.core.gate_rules import Door, Refusal
from headgate.core.health import Change, Condition
from headgate.core.messages import Usage
from headgate.core.ports.clock import Clock
from headgate.core.ports.provider import Provider
from headgate.core.retry import RetryPolicy
from headgate.core.ticket import Ticket
from headgate.core.timeouts import Timeouts
from headgate.dispatch.call import Call
from headgate.dispatch.gate import Gate
from headgate.dispatch.work import Work
from headgate.machine.clock import TIMER_SLACK_S

logger = logging.getLogger("headgate")
T = TypeVar("T")
Emit = Callable[[events.Event], None]
Price = Callable[[Usage], float | None]
"""What a usage costs in US dollars; None when nobody knows."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt that went wrong; `cause` is the exception it came from, if there was one."""

    failure: Failure
    cause: BaseException | None = None


class Upstream:
    """Everything one provider model needs to be called well."""

    def __init__(
        self,
        name: str,
        provider: Provider,
        gate: Gate,
        *,
        policy: RetryPolicy,
        timeouts: Timeouts,
        budget: RetryBudget,
        clock: Clock,
        emit: Emit,
        adaptive: bool = False,
        spill: bool = False,
        price: Price | None = None,
    ) -> None:
        self.name = name
        self.provider = provider
        self.gate = gate
        self.policy = policy
        self.timeouts = timeouts
        self.budget = budget
        self.spill = spill
        self.price = price
        self.calls_made = 0
        self.visitors = 0
        """Calls that are with this upstream in any way, asleep between attempts included."""
        self._clock = clock
        self._emit = emit
        self._health = gate.admission.health
        self._adaptive = AdaptiveLimit(gate.rules.slots) if adaptive else None

    @property
    def load(self) -> float:
        """How busy it is: holders and waiters per slot."""
        admission = self.gate.admission
        return (admission.in_use + admission.waiting) / admission.slots

    def cost(self, usage: Usage) -> float | None:
        return None if self.price is None else self.price(usage)

    def blocked(self) -> bool:
        return self._health.block(self._clock.now()) is not None

    def probed_in_s(self) -> float | None:
        """When it will be tried again; None when it is called as usual."""
        block = self._health.block(self._clock.now())
        return None if block is None else block.until - self._clock.now()

    @property
    def last_mistake(self) -> Failure | None:
        """What it said when it was last found misconfigured."""
        return self._health.last_mistake

    @property
    def condition(self) -> Condition:
        return self._health.condition

    def pause_s(self) -> float:
        """What is left of its pause."""
        return max(0.0, self.gate.admission.pause.until - self._clock.now())

    def paused(self) -> bool:
        return self._clock.now() < self.gate.admission.pause.until

    def takes_calls(self) -> bool:
        """Neither unhealthy, nor paused by its provider or by an operator."""
        return self.gate.stopped is None and not self.blocked() and not self.paused()

    async def attempt(self, ticket: Ticket, call: Call, work: Work[T], number: int) -> T | Failed:
        """Call the provider once and note everything that follows from how it went."""
        ticket.attempt_at = started_at = self._clock.now()
        call.attempts += 1
        self.calls_made += 1
        try:
            if self.gate.may_preempt(ticket):
                with self.gate.preemptible(ticket):
                    result = await work.call(self.provider)
            else:
                result = await work.call(self.provider)
            usage = work.usage(result)
        except (asyncio.CancelledError, Preempted) as stop:
            self.free_tokens(ticket)
            self.tell_attempt(call, number, started_at, self._stopped(call, stop), None)
            if isinstance(stop, Preempted):
                self._emit(
                    events.HolderPreempted(
                        upstream=self.name, request_ids=call.request_ids, tenant=call.tenant
                    )
                )
            raise
        except Exception as error:  # noqa: BLE001 - the seam where every foreign error gets its class
            failure = self._health.read(classify(error, now=self._clock.utc()))
            self.free_tokens(ticket)
            self.ended(ticket, call, number, failure, None)
            return Failed(failure, error)
        self.settle(ticket, usage)
        return self._judged(ticket, call, work, number, result, usage)

    def _judged(
        self, ticket: Ticket, call: Call, work: Work[T], number: int, result: T, usage: Usage | None
    ) -> T | Failed:
        """The provider did its part; whether its answer is any good is another question."""
        failure = None
        try:
            if (flaw := work.flaw(result)) is not None:
                failure = Failure(kind=FailureKind.INVALID_OUTPUT, message=flaw)
        finally:
            if failure is not None or not work.stays_open:
                self.ended(ticket, call, number, failure, usage)
        return result if failure is None else Failed(failure)

    def settle(self, ticket: Ticket, usage: Usage | None) -> None:
        """The provider has counted its tokens; an unknown count leaves the estimate standing."""
        if ticket.reservation is not None and usage is not None and not usage.estimated:
            self.gate.admission.pacing.settle(ticket.reservation, usage.total_tokens)

    def free_tokens(self, ticket: Ticket) -> None:
        """The call ended without an answer: the tokens reserved for it are free again."""
        if ticket.reservation is not None:
            self.gate.admission.pacing.release_tokens(ticket.reservation)
            ticket.reservation = None

    def lift_hold(self) -> None:
        """Call it again at once, if it is held back as misconfigured."""
        if self._health.lift_hold():
            logger.info("the hold of upstream %s is lifted: calls go through again", self.name)
            self._emit(events.UpstreamHeld(upstream=self.name, held=False))
            self.gate.look_again()

    def throttled(self, pause_s: float) -> None:
        """The provider asked to wait: everybody at this gate does."""
        if self.gate.pause(pause_s):
            self._emit(events.GatePaused(upstream=self.name, pause_s=self.pause_s()))

    def ended(
        self, ticket: Ticket, call: Call, number: int, failure: Failure | None, usage: Usage | None
    ) -> None:
        """An attempt is over: tell health, the adaptive limit and the listeners."""
        started_at, now = ticket.attempt_at, self._clock.now()
        probe, ticket.probe = ticket.probe, False
        for change in self._health.record(failure, probe=probe, now=now):
            self._tell(change, failure)
        if failure is None and self.gate.admission.pause.call_succeeded(started_at):
            self.gate.look_again()
        if self._adaptive is not None:
            self._adapt(self._adaptive, failure, started_at, now)
        self.tell_attempt(call, number, started_at, failure, usage)

    def tell_attempt(
        self, call: Call, number: int, started_at: float, failure: Failure | None, usage: Usage | None
    ) -> None:
        duration_s = self._clock.now() - started_at
        call.upstream_s += duration_s
        if usage is not None:
            cost_usd = self.cost(usage)
            call.cost_usd += cost_usd or 0.0
            call.unpriced += cost_usd is None
        self._emit(
            events.AttemptEnded(
                request_ids=call.request_ids,
                model=call.model,
                upstream=self.name,
                attempt=number,
                duration_ms=duration_s * 1000,
                failure=None if failure is None else failure.without_text(),
                usage=usage,
                tenant=call.tenant,
            )
        )

    def _stopped(self, call: Call, stop: BaseException) -> Failure:
        """Why we stopped an attempt ourselves; none of it speaks for or against the upstream."""
        if isinstance(stop, Preempted):
            return Failure(kind=FailureKind.PREEMPTED)
        expired = self._clock.now() + TIMER_SLACK_S >= call.deadline
        return Failure(kind=FailureKind.EXPIRED if expired else FailureKind.CANCELLED)

    def _tell(self, change: Change, failure: Failure | None) -> None:
        block = self._health.block(self._clock.now())
        retry_in_s = block.until - self._clock.now() if block else 0.0
        if change in {Change.OPENED, Change.CLOSED}:
            self._emit(events.BreakerChanged(upstream=self.name, state=str(change), retry_in_s=retry_in_s))
        else:
            if change is Change.HELD and failure is not None:
                logger.error(
                    "upstream %s is held back: %s. Check its key, model name and permissions.",
                    self.name,
                    failure.error,
                )
            self._emit(
                events.UpstreamHeld(
                    upstream=self.name,
                    held=change is Change.HELD,
                    failure=None if failure is None else failure.without_text(),
                )
            )
        if block is not None:
            door = Door.UNHEALTHY if change is Change.OPENED else Door.MISCONFIGURED
            self.gate.evict(Refusal(door, retry_in_s))

    def _adapt(self, limit: AdaptiveLimit, failure: Failure | None, started_at: float, now: float) -> None:
        before = limit.slots
        if failure is None:
            limit.succeeded(in_use=self.gate.admission.in_use)
        elif failure.kind is FailureKind.THROTTLED or failure.timed_out:
            limit.pushed_back(started_at=started_at, now=now)
        if limit.slots != before:
            self.gate.resize(limit.slots)
            self._emit(events.SlotsChanged(upstream=self.name, slots=limit.slots))
