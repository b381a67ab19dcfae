"""One upstream at work: a provider behind its gate, with its retry budget."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.calls.call import RoutedCall
from headgate.calls.gate import Gate
from headgate.calls.sending import OpenStream, Result, flaw_of, make, usage_of
from headgate.core import events
from headgate.core.allowance import read_quotas
from headgate.core.answer import Answer, Usage
from headgate.core.budget import RetryBudget
from headgate.core.call import Lane
from headgate.core.errors import Preempted, ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.foreign import classify
from headgate.core.gate_rules import SHORT_WAIT_S, Door, Refusal
from headgate.core.hold import Condition
from headgate.core.intake import Closed, Limited, News, Opened
from headgate.core.limit import Limit
from headgate.core.ports.clock import Clock
from headgate.core.ports.provider import Probing, Provider
from headgate.core.retry import RetryPolicy
from headgate.core.start import Outcome
from headgate.core.ticket import Ticket
from headgate.core.timeouts import Timeouts
from headgate.machine.clock import TIMER_SLACK_S
from headgate.machine.context import ANSWER_HEADERS

logger = logging.getLogger("headgate")
CHECK_S: Final = 10.0
CHECK_EVERY_S: Final = 30.0
PROVES: Final = frozenset({401, 402, 403})
"""What our own check must be answered to hold an upstream for all."""
Emit = Callable[[events.Event], None]
Price = Callable[[Usage], float | None]
"""What a usage costs in US dollars; None if unknown."""


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
        self._holds = gate.admission.holds
        self._intake = gate.admission.intake
        self._checking: asyncio.Task[None] | None = None
        self._checked_at = -math.inf
        gate.on_news = self._tell

    @property
    def load(self) -> float:
        """How busy it is: holders and waiters per slot."""
        admission = self.gate.admission
        return (admission.in_use + admission.waiting) / admission.slots

    def cost(self, usage: Usage) -> float | None:
        return None if self.price is None else self.price(usage)

    def probed_in_s(self) -> float | None:
        """When it will be tried again; None when it is called as usual."""
        shut = self._intake.held(self._holds) or self._intake.closed
        return None if shut is None or shut.until is None else max(0.0, shut.until - self._clock.now())

    @property
    def last_mistake(self) -> Failure | None:
        """How it was last found misconfigured."""
        return self._holds.last_mistake

    @property
    def condition(self) -> Condition:
        if self._intake.held(self._holds) is not None:
            return Condition.HELD
        closed = self._intake.closed
        return Condition.OPEN if closed is not None and closed.failing else Condition.OK

    @property
    def limit(self) -> Limit | None:
        """What was learned of how much it takes."""
        return self._intake.limit

    @property
    def refused_lately(self) -> float:
        """The share of its last calls that were refused or failed."""
        return self._intake.refused_lately

    @property
    def closed(self) -> bool:
        """To all who have called lately."""
        return self._intake.closed is not None

    def closed_to(self, tenant: str) -> bool:
        return self._intake.closed_to(tenant) is not None

    def pause_s(self) -> float:
        """What is left until the next probe, where it is closed because it throttles."""
        closed = self._intake.closed
        if closed is None or closed.failing:
            return 0.0
        return max(0.0, (closed.until or 0.0) - self._clock.now())

    @property
    def restricts(self) -> bool:
        """Something that it remembers of its calls restricts the next."""
        intake = self._intake
        return (
            not self._holds.quiet
            or bool(intake.own)
            or intake.until is not None
            or intake.limit is not None
            or self.gate.admission.pacing.called_lately(self._clock.now())
        )

    def takes_calls(self) -> bool:
        """Neither held, nor closed, nor paused by an operator. One that wants a probe takes one."""
        now = self._clock.now()
        held = self._intake.held(self._holds)
        # The gaps between starts are no reason to go away.
        soon = now + SHORT_WAIT_S if self._intake.closed is None else now
        return (
            self.gate.stopped is None
            and (held is None or (held.until or 0.0) <= now)
            and self._intake.first_opens_at(now) <= soon
        )

    async def attempt(self, ticket: Ticket, call: RoutedCall, number: int) -> Result | Failed:
        """Call the provider once and note everything that follows from how it went."""
        ticket.attempt_at = self._clock.now()
        call.attempts += 1
        self.calls_made += 1
        headers: list[tuple[bytes, bytes]] = []
        ANSWER_HEADERS.set(headers)
        result: Result
        try:
            if self.gate.rules.preempt and ticket.lane is Lane.BATCH:
                with self.gate.preemptible(ticket):
                    result = await make(self.provider, call)
            elif call.plain and call.format in self.provider.formats:
                result = await self.provider.send(call)
            else:
                result = await make(self.provider, call)
            usage = result.usage if isinstance(result, Answer) else None
            if usage is None and (usage := usage_of(call, result)) is not None and isinstance(result, Answer):
                result = msgspec.structs.replace(result, usage=usage)
        except (asyncio.CancelledError, Preempted) as stop:
            self._stopped_in(ticket, call, number, stop)
            raise
        except Exception as error:  # noqa: BLE001 - the seam where every foreign error gets its class
            failure = classify(error, now=self._clock.utc())
            failure = self._holds.read(failure, ticket.endpoint, ticket.tenant)
            if _unanswered(error, failure):
                call.lose()
            self.free_tokens(ticket)
            self._read_quotas(ticket, headers)
            self.ended(ticket, call, number, failure, None)
            return Failed(failure, error)
        if ticket.reservation is not None:
            self.settle(ticket, usage)
        self._read_quotas(ticket, headers)
        return self._judged(ticket, call, number, result, usage)

    def _stopped_in(self, ticket: Ticket, call: RoutedCall, number: int, stop: BaseException) -> None:
        call.lose()
        self.free_tokens(ticket)
        self.gate.put_down(ticket)
        self.tell_attempt(call, number, ticket.attempt_at, self._stopped(call, stop), None)
        if isinstance(stop, Preempted):
            self._emit(
                events.HolderPreempted(upstream=self.name, request_ids=call.request_ids, tenant=call.tenant)
            )

    def _read_quotas(self, ticket: Ticket, headers: list[tuple[bytes, bytes]]) -> None:
        if ticket.start is not None and (quotas := read_quotas(headers, self._clock.utc)) is not None:
            self._intake.read(ticket.start, quotas)

    def _judged(
        self, ticket: Ticket, call: RoutedCall, number: int, result: Result, usage: Usage | None
    ) -> Result | Failed:
        """The provider did its part; whether its answer is any good is another question."""
        failure = None
        try:
            if (flaw := flaw_of(call, result)) is not None:
                failure = Failure(kind=FailureKind.INVALID_OUTPUT, message=flaw)
        finally:
            # A stream goes on: its reader says how it ended.
            if failure is not None or not isinstance(result, OpenStream):
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
        if self._holds.lift():
            logger.info("the hold of upstream %s is lifted: calls go through again", self.name)
            self._emit(events.UpstreamHeld(upstream=self.name, held=False))
            self.gate.look_again()

    def ended(
        self,
        ticket: Ticket,
        call: RoutedCall,
        number: int,
        failure: Failure | None,
        usage: Usage | None,
        *,
        begun: bool = False,
    ) -> None:
        """An attempt is over: tell the hold, the gate and the listeners. `begun`: its answer had begun to arrive."""
        started_at = ticket.attempt_at
        probe, ticket.probe = ticket.probe, False
        if failure is not None or self._holds.concern(ticket.endpoint, ticket.tenant):
            self._note_hold(ticket, failure, probe=probe)
        else:
            self._holds.answered[ticket.endpoint] = self._clock.now()
        hint_s = 0.0 if failure is None else failure.retry_after_s or 0.0
        outcome = Outcome.ANSWERED if failure is None else _outcome(failure, begun=begun)
        self.gate.ended(ticket, outcome, hint_s, served=failure is None)
        self.tell_attempt(call, number, started_at, failure, usage)

    def tell_attempt(
        self, call: RoutedCall, number: int, started_at: float, failure: Failure | None, usage: Usage | None
    ) -> None:
        duration_s = self._clock.now() - started_at
        call.upstream_s += duration_s
        if usage is not None:
            cost_usd = call.answer_cost_usd = None if self.price is None else self.price(usage)
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

    def _stopped(self, call: RoutedCall, stop: BaseException) -> Failure:
        """Why we stopped an attempt ourselves; none of it speaks for or against the upstream."""
        if isinstance(stop, Preempted):
            return Failure(kind=FailureKind.PREEMPTED)
        expired = self._clock.now() + TIMER_SLACK_S >= call.deadline
        return Failure(kind=FailureKind.EXPIRED if expired else FailureKind.CANCELLED)

    def _tell(self, news: News) -> None:
        match news:
            case Closed(failing=True, for_s=for_s, tenant=tenant):
                self._emit(
                    events.BreakerChanged(upstream=self.name, state="open", retry_in_s=for_s, tenant=tenant)
                )
            case Closed(for_s=for_s, tenant=tenant):
                self._emit(events.GatePaused(upstream=self.name, pause_s=for_s, tenant=tenant))
            case Opened(failed=failed, tenant=tenant):
                if failed:
                    self._emit(
                        events.BreakerChanged(
                            upstream=self.name, state="closed", retry_in_s=0.0, tenant=tenant
                        )
                    )
            case Limited(limit=limit, tenant=tenant):
                words = "" if limit is None else limit.words
                self._emit(events.LimitChanged(upstream=self.name, limit=words, tenant=tenant))

    def _note_hold(self, ticket: Ticket, failure: Failure | None, *, probe: bool) -> None:
        now = self._clock.now()
        tenants, held = self._holds.record(failure, ticket.endpoint, ticket.tenant, probe=probe, now=now)
        for tenant in tenants:
            self._tell_held(failure, tenant, held=held)
        if held and tenants:
            self._keep_out()
            self._check_soon(ticket.endpoint, ticket.tenant)

    def _keep_out(self) -> None:
        """Those who wait and are held by now leave."""
        for ticket, until in self.gate.admission.held_back(self._clock.now()):
            self.gate.dismiss(ticket, Refusal(Door.MISCONFIGURED, until - self._clock.now()))

    def _tell_held(self, failure: Failure | None, tenant: str | None, *, held: bool) -> None:
        for_tenant = f" for tenant {tenant}" if tenant else ""
        if held and failure is not None:
            logger.error(
                "upstream %s is held back%s: %s. Check its key, model name and permissions.",
                self.name,
                for_tenant,
                failure.error,
            )
        failure = None if failure is None else failure.without_text()
        self._emit(events.UpstreamHeld(upstream=self.name, held=held, failure=failure, tenant=tenant))

    # ---- Our own check ------------------------------------------------------------------------------

    def _check_soon(self, endpoint: str, tenant: str) -> None:
        """One tenant's requests were answered as misconfigured: ask the provider itself, for free, whose fault it is."""
        now = self._clock.now()
        running = self._checking is not None and not self._checking.done()
        if running or now < self._checked_at + CHECK_EVERY_S or not isinstance(self.provider, Probing):
            return
        self._checked_at = now
        self._checking = asyncio.create_task(self._check(self.provider, endpoint, tenant))

    async def _check(self, provider: Probing, endpoint: str, tenant: str) -> None:
        """401 to 403, or a list without our model: it is misconfigured for all. Anything else proves nothing."""
        try:
            async with asyncio.timeout(CHECK_S):
                sighting = await provider.probe()
        except ProviderFailure as error:
            failure = error.failure
        except Exception as error:  # noqa: BLE001 - whatever it is, it proves nothing
            logger.debug("the check of upstream %s failed: %r", self.name, error)
            return
        else:
            if sighting.has_model is not False:
                return
            failure = Failure(kind=FailureKind.MISCONFIGURED, status=404, code="model_not_found")
        proves = failure.status in PROVES or failure.code == "model_not_found"
        if proves and self._holds.checked(failure, endpoint, tenant, self._clock.now()):
            logger.warning("upstream %s is held back for all tenants: our own check failed, too", self.name)
            self._emit(events.UpstreamHeld(upstream=self.name, held=True, failure=failure.without_text()))
            self._keep_out()

    async def aclose(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
        await self.provider.aclose()


def _unanswered(error: Exception, failure: Failure) -> bool:
    """The provider got the request, and neither answered nor refused it: a timeout, a broken connection or answer."""
    silent = failure.kind is FailureKind.TRANSIENT and (failure.status is None or failure.timed_out)
    return silent and getattr(error, "sent", True)


def _outcome(failure: Failure | None, *, begun: bool) -> Outcome:
    """What an attempt's end says of the upstream. One that judges requests, or how it is set up, takes calls."""
    match None if failure is None else failure.kind:
        case FailureKind.THROTTLED:
            return Outcome.THROTTLED
        case FailureKind.TRANSIENT:
            return Outcome.BROKE if begun or (failure is not None and failure.timed_out) else Outcome.FAILED
        case FailureKind.BROKEN:
            return Outcome.UNKNOWN
        case _:
            return Outcome.ANSWERED
